//! The names that the program goes by, as a container runtime starts it: TALM's bash and script, and its own.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use crate::world::product;

const SCRIPT: &str = "/opt/precache/precache.sh";

/// It fails before it looks at a store: this variable makes no sense. That tells `run` from anything else.
fn start(program: &Path, name: &str, args: &[&str]) -> Output {
    Command::new(program)
        .arg0(name)
        .args(args)
        .env_clear()
        .env("PRE_CACHE_LOG_LEVEL", "loud")
        .output()
        .expect("the product can be started")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn talms_names_mean_run_in_talms_form() {
    for (name, args) in [
        ("/bin/bash", &["-c", SCRIPT][..]),
        ("bash", &["-c", SCRIPT, "bash"]),
        ("/bin/sh", &["-c", SCRIPT]),
        (SCRIPT, &[]),
    ] {
        let output = start(&product(), name, args);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        let line = stderr(&output);
        assert!(line.starts_with("upgrades.pre-cache 2"), "{name}: {line}");
        assert!(line.contains(" [ERROR]: Spec: InvalidSpec: "), "{name}: {line}");
        assert!(line.contains("PRE_CACHE_LOG_LEVEL"), "{name}: {line}");
    }
    let output = start(&product(), SCRIPT, &["--log-format", "json"]);
    assert!(stderr(&output).starts_with('{'), "{}", stderr(&output));
}

#[test]
fn links_are_as_good_as_names() {
    let dir = tempfile::tempdir().unwrap();
    for (link, args) in [("bash", &["-c", SCRIPT][..]), ("precache.sh", &[])] {
        let path = dir.path().join(link);
        symlink(product(), &path).unwrap();
        let output = start(&path, path.to_str().unwrap(), args);
        assert_eq!(output.status.code(), Some(2), "{link}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("upgrades.pre-cache "), "{link}");
    }
}

#[test]
fn whoever_wants_a_shell_is_told_that_there_is_none() {
    for args in [
        &[][..],
        &["-c", "ls"],
        &["-c", "/opt/precache/precache.sh && ls"],
        &["-l"],
    ] {
        let output = start(&product(), "/bin/bash", args);
        assert_eq!(output.status.code(), Some(127), "{args:?}");
        let said = stderr(&output);
        assert!(said.contains("bash: this image has no shell"), "{said}");
        assert!(said.contains("/usr/bin/spoke-precache run"), "{said}");
    }
}

#[test]
fn its_own_name_takes_its_own_words() {
    let output = start(&product(), "/usr/bin/spoke-precache", &["--version"]);
    let version = format!("spoke-precache {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
    let output = start(&product(), "/usr/bin/spoke-precache", &["run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        !stderr(&output).contains("upgrades.pre-cache"),
        "{}",
        stderr(&output)
    );
}
