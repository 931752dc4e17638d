//! Compiles a static program for containers: it prints the user and the content of a file.

use std::process::Command;
use std::sync::OnceLock;

const SOURCE: &str = r#"
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv) {
    printf("hello from uid %d gid %d\n", getuid(), getgid());
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "r");
        if (!file) { perror(argv[i]); return 1; }
        for (int c; (c = getc(file)) != EOF;) putchar(c);
    }
    return 0;
}
"#;

/// The program's bytes; compiled once.
pub(crate) fn program() -> Result<&'static [u8], String> {
    static PROGRAM: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    PROGRAM
        .get_or_init(compile)
        .as_ref()
        .map(Vec::as_slice)
        .map_err(Clone::clone)
}

fn compile() -> Result<Vec<u8>, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (source, target) = (dir.path().join("hello.c"), dir.path().join("hello"));
    std::fs::write(&source, SOURCE).map_err(|error| error.to_string())?;
    let output = Command::new("gcc")
        .args(["-Os", "-s", "-static", "-o"])
        .args([&target, &source])
        .output();
    let output = output.map_err(|error| format!("gcc: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    std::fs::read(&target).map_err(|error| error.to_string())
}
