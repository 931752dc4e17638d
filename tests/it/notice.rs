//! Prints why a test does not run, so that no check is skipped in silence. The unit tests of the library include this file.

use std::io::Write as _;

/// Prints that a test is skipped, and why. With `CI=true` the test fails instead: there nothing may be missing.
pub(crate) fn skip(why: &str) {
    assert!(
        std::env::var("CI").as_deref() != Ok("true"),
        "with CI=true nothing may be skipped: {why}"
    );
    print("SKIPPED", why);
}

/// Prints a line with the name of the test. Not `eprintln!`: the test runner hides what passing tests print with it.
pub(crate) fn print(what: &str, why: &str) {
    let thread = std::thread::current();
    let _ = writeln!(
        std::io::stderr(),
        "{what} {}: {why}",
        thread.name().unwrap_or("a test")
    );
}

/// Layers contain devices and files of other owners, and some tests mount file systems.
pub(crate) fn root() -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        Ok(())
    } else {
        Err("needs root".into())
    }
}
