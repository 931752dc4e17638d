//! Fetches the packages that the releases consist of, and keeps them in the user's cache.
//!
//! `archives.sha256` names every file, which states package and version, and its digest: `sha256sum -c` reads it too. pip and
//! apt download what the cache does not have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::contents::Kind;
use crate::image::sha256;

/// The Python for which wheels are chosen.
const PYTHON: &str = "3.11";

/// The cache of this benchmark.
pub(crate) fn cache() -> anyhow::Result<PathBuf> {
    let parent = match std::env::var_os("XDG_CACHE_HOME") {
        Some(cache) => PathBuf::from(cache),
        None => Path::new(&std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?)
            .join(".cache"),
    };
    let cache = parent.join("spoke-precache/delta");
    fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    Ok(cache)
}

/// The packages, all present.
pub(crate) struct Archives {
    dir: PathBuf,
}

impl Archives {
    /// Downloads what is missing.
    pub(crate) fn fetch() -> anyhow::Result<Self> {
        let dir = cache()?.join("archives");
        fs::create_dir_all(&dir)?;
        let missing = listed().filter(|(_, name)| !dir.join(name).exists());
        let (wheels, debs): (Vec<_>, Vec<_>) = missing.partition(|(_, name)| name.ends_with(".whl"));
        // On the same file system, so that a complete file can be renamed.
        let download = tempfile::tempdir_in(&dir)?;
        for (digest, name) in &wheels {
            println!("downloading {name}");
            download_wheel(download.path(), digest, name)?;
            keep(download.path(), &dir, digest, name)?;
        }
        if !debs.is_empty() {
            println!("downloading {} Debian packages", debs.len());
            download_debs(download.path(), debs.iter().map(|(_, name)| *name))?;
            for (digest, name) in debs {
                keep(download.path(), &dir, digest, name)?;
            }
        }
        Ok(Self { dir })
    }

    /// The file of a package.
    pub(crate) fn path(&self, kind: Kind, package: &str, version: &str) -> anyhow::Result<PathBuf> {
        let begin = match kind {
            Kind::Deb => format!("{package}_{}_", version.replace(':', "%3a")),
            Kind::Wheel | Kind::Go => format!("{package}-{version}-"),
        };
        let name = listed()
            .map(|(_, name)| name)
            .find(|name| name.starts_with(&begin));
        Ok(self
            .dir
            .join(name.with_context(|| format!("archives.sha256 has no `{begin}…`"))?))
    }
}

/// Digest and name of each archive.
fn listed() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("archives.sha256").lines();
    lines.filter_map(|line| line.split_once("  "))
}

/// `NAME-VERSION-PYTHON-ABI-PLATFORM[.PLATFORM…].whl`
fn download_wheel(dir: &Path, digest: &str, name: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = name.trim_end_matches(".whl").split('-').collect();
    let [package, version, .., platforms] = parts.as_slice() else {
        anyhow::bail!("`{name}` is not the name of a wheel");
    };
    let requirement = dir.join("requirement.txt");
    fs::write(
        &requirement,
        format!("{package}=={version} --hash=sha256:{digest}\n"),
    )?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--require-hashes",
    ])
    .args(["--only-binary=:all:", "--python-version", PYTHON]);
    for platform in platforms.split('.') {
        pip.args(["--platform", platform]);
    }
    call(pip.arg("--dest").arg(dir).arg("--requirement").arg(&requirement))
}

/// `NAME_VERSION_ARCHITECTURE.deb`, with `%3a` for a colon.
fn download_debs<'a>(dir: &Path, names: impl Iterator<Item = &'a str>) -> anyhow::Result<()> {
    let packages = names.filter_map(|name| {
        let (package, rest) = name.split_once('_')?;
        let (version, _) = rest.rsplit_once('_')?;
        Some(format!("{package}={}", version.replace("%3a", ":")))
    });
    let mut apt = Command::new("apt-get");
    apt.args(["download", "--quiet"]).args(packages).current_dir(dir);
    call(&mut apt).context(
        "hint: apt needs bookworm, bookworm-updates and bookworm-security; run `apt-get update`\n\
         hint: a version that Debian no longer has is replaced in contents.txt and archives.sha256",
    )
}

fn keep(from: &Path, to: &Path, digest: &str, name: &str) -> anyhow::Result<()> {
    let path = from.join(name);
    let bytes = fs::read(&path).with_context(|| format!("no `{name}` was downloaded"))?;
    let actual = sha256(&bytes);
    ensure!(
        actual["sha256:".len()..] == *digest,
        "`{name}` has the digest {actual}, not {digest}"
    );
    Ok(fs::rename(path, to.join(name))?)
}

/// Runs a command that must succeed.
pub(crate) fn call(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(())
}

/// Runs a command that must succeed, and returns its standard output.
pub(crate) fn output_of(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(
        output.status.success(),
        "{command:?}: {}: {}",
        output.status,
        output.stderr.escape_ascii()
    );
    Ok(output.stdout)
}
