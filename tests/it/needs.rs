//! What a test needs of the machine, and how it says that it did not run.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Ends the test loudly when a need is not met: `needs!(root(), stock());`.
macro_rules! needs {
    ($($need:ident()),+) => {$(
        if let Err(why) = crate::needs::$need() {
            return crate::needs::skip(&why);
        }
    )+};
}
pub(crate) use needs;

/// Says that a test did not run and why; under CI that is a failure, for there everything is to be had.
pub(crate) fn skip(why: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "under CI nothing may be skipped: {why}"
    );
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
}

/// Layers hold devices and foreign owners; mounts are made.
pub(crate) fn root() -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err("needs root".into())
    }
}

/// podman and its friends, on this machine or in `SPOKE_STOCK_ROOT`.
pub(crate) fn stock() -> Result<(), String> {
    let top = crate::stock::top();
    for tool in ["podman", "skopeo"] {
        let there = |dir: &str| top.join(dir).join(tool).exists();
        if !there("usr/bin") && !there("usr/local/bin") {
            return Err(format!("`{tool}` is not installed under {}", top.display()));
        }
    }
    Ok(())
}

/// A registry by somebody else, to push to.
pub(crate) fn docker_registry() -> Result<(), String> {
    if Path::new(crate::stock::docker_registry::PROGRAM).exists() {
        return Ok(());
    }
    Err(format!(
        "`{}` is not installed",
        crate::stock::docker_registry::PROGRAM
    ))
}

/// A C compiler that links statically, for the program inside of images that are run.
pub(crate) fn static_program() -> Result<(), String> {
    crate::stock::hello::program()
        .map(|_| ())
        .map_err(|why| format!("no static program: {why}"))
}

/// A binary with a command line.
pub(crate) fn product() -> Result<(), String> {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    let speaks = *ANSWER.get_or_init(|| {
        let output = Command::new(crate::world::product()).arg("--version").output();
        output.is_ok_and(|output| !output.stdout.is_empty())
    });
    if speaks {
        Ok(())
    } else {
        Err(format!(
            "`{} --version` says nothing yet",
            crate::world::product().display()
        ))
    }
}

/// Whether tests may take minutes.
pub(crate) fn long() -> bool {
    std::env::var_os("SPOKE_LONG").is_some()
}

/// Says that a test takes minutes and was not asked for; that is no failure anywhere.
pub(crate) fn skip_long() {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED {name}: it takes minutes; set SPOKE_LONG=1"
    );
}
