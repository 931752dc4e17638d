//! Makes layers from packages: tars as a rebuilt image has them, and their blobs.
//!
//! A file keeps the time that its package gives it. Files that the build itself makes, and all directories that it touches, have
//! the time of the build, so the tars of two releases differ in headers even where all files are equal. Blobs are those of
//! `gzip -6`.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::archives::{Archives, cache, call, output_of};
use crate::contents::{Generation, Kind, Part, Recipe};
use crate::go_programs;
use crate::image::tar::{Entry, entry};
use crate::image::{Compression, Layer, sha256};
use crate::tar_entries;

/// Where whole wheels are installed.
const SITE_PACKAGES: &str = "usr/lib64/python3.11/site-packages";
/// Two empty blocks end a tar.
const END: [u8; 1024] = [0; 1024];

/// A layer of a release, in the cache.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) name: String,
    pub(crate) tar: PathBuf,
    pub(crate) tar_length: u64,
    /// Digest of the tar.
    pub(crate) diff_id: String,
    /// The tar as gzip.
    pub(crate) blob: PathBuf,
    pub(crate) blob_length: u64,
    /// Digest of the blob.
    pub(crate) digest: String,
}

impl Made {
    /// The layer for an image.
    pub(crate) fn layer(&self) -> anyhow::Result<Layer> {
        let blob = fs::read(&self.blob)?.into();
        Ok(Layer::of_blob(blob, self.diff_id.clone(), Compression::Gzip))
    }

    /// Bytes of the tar.
    pub(crate) fn tar(&self) -> anyhow::Result<Vec<u8>> {
        fs::read(&self.tar).with_context(|| self.tar.display().to_string())
    }

    /// Makes it if the cache does not have it. `recipe` is everything that it depends on.
    fn cached(
        name: &str,
        recipe: &str,
        entries: impl FnOnce() -> anyhow::Result<Vec<Entry>>,
    ) -> anyhow::Result<Self> {
        let dir = cache()?.join("layers");
        fs::create_dir_all(&dir)?;
        let key = sha256(format!("{recipe}{}", include_str!("layers.rs")).as_bytes());
        let at = |suffix: &str| dir.join(format!("{name}-{}{suffix}", &key["sha256:".len()..][..16]));
        let (tar, blob) = (at(".tar"), at(".tar.gz"));
        if !blob.exists() {
            let bytes: Vec<u8> = entries()?.iter().fold(Vec::new(), |mut bytes, entry| {
                entry.write(&mut bytes);
                bytes
            });
            fs::write(&tar, [&bytes[..], &END].concat())?;
            let partial = at(".partial");
            let file = fs::File::create(&partial)?;
            call(
                Command::new("gzip")
                    .args(["-6", "-n", "-c"])
                    .arg(&tar)
                    .stdout(file),
            )?;
            fs::rename(partial, &blob)?;
        }
        let (tar_bytes, blob_bytes) = (fs::read(&tar)?, fs::read(&blob)?);
        Ok(Self {
            name: name.to_owned(),
            tar_length: tar_bytes.len() as u64,
            diff_id: sha256(&tar_bytes),
            tar,
            blob_length: blob_bytes.len() as u64,
            digest: sha256(&blob_bytes),
            blob,
        })
    }
}

/// The layer of a recipe in that release.
pub(crate) fn make(recipe: &Recipe, generation: Generation, archives: &Archives) -> anyhow::Result<Made> {
    let versions: Vec<_> = recipe.parts.iter().map(|part| part.version(generation)).collect();
    let key = format!("{recipe:?} {versions:?} {}", generation.build_time());
    Made::cached(&recipe.name, &key, || {
        let mut all = Vec::new();
        for part in &recipe.parts {
            let version = part.version(generation).context("a layer that the release has")?;
            all.extend(entries(part, version, generation, archives)?);
        }
        Ok(with_directories(all, generation))
    })
}

/// The layer that has one program, from a file.
pub(crate) fn of_program(name: &str, program: &Path, generation: Generation) -> anyhow::Result<Made> {
    let bytes = fs::read(program).with_context(|| program.display().to_string())?;
    let key = format!("{name} {} {}", sha256(&bytes), generation.build_time());
    Made::cached(name, &key, || {
        let program = built(&format!("usr/bin/{name}"), bytes, generation);
        Ok(with_directories(vec![program], generation))
    })
}

fn entries(
    part: &Part,
    version: &str,
    generation: Generation,
    archives: &Archives,
) -> anyhow::Result<Vec<Entry>> {
    let archive = archives.path(part.kind, &part.package, version)?;
    match part.kind {
        Kind::Deb => of_deb(&archive, part, generation),
        Kind::Wheel => of_wheel(&archive, part, version, generation),
        Kind::Go => part
            .files
            .iter()
            .map(|command| {
                let program = fs::read(go_programs::path(version, command)?)?;
                Ok(built(&format!("usr/bin/{command}"), program, generation))
            })
            .collect(),
    }
}

/// Files as dpkg unpacks them. A whole package also has its record, at the path that images without dpkg use.
fn of_deb(archive: &Path, part: &Part, generation: Generation) -> anyhow::Result<Vec<Entry>> {
    let tar = output_of(Command::new("dpkg-deb").arg("--fsys-tarfile").arg(archive))?;
    let mut entries = tar_entries::read(&tar)?;
    if part.files.is_empty() {
        let record = output_of(Command::new("dpkg-deb").arg("--field").arg(archive))?;
        let path = format!("var/lib/dpkg/status.d/{}", part.package);
        entries.push(built(&path, record, generation));
    } else {
        entries.retain(|entry| part.files.iter().any(|file| file.as_bytes() == entry.name));
        ensure!(
            entries.len() == part.files.len(),
            "{} lacks files",
            archive.display()
        );
    }
    Ok(entries)
}

fn of_wheel(
    archive: &Path,
    part: &Part,
    version: &str,
    generation: Generation,
) -> anyhow::Result<Vec<Entry>> {
    let dir = tempfile::tempdir()?;
    call(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .args([archive, dir.path()]),
    )?;
    if part.files.is_empty() {
        return tree(dir.path(), dir.path(), generation);
    }
    let files = part.files.iter().map(|file| file.replace("{version}", version));
    let program = |file: String| {
        let name = file.rsplit('/').next().unwrap_or_default();
        let bytes = fs::read(dir.path().join(&file)).with_context(|| file.clone())?;
        Ok(built(&format!("usr/bin/{name}"), bytes, generation))
    };
    files.map(program).collect()
}

/// All files below `dir`, sorted.
fn tree(dir: &Path, root: &Path, generation: Generation) -> anyhow::Result<Vec<Entry>> {
    let paths: Result<Vec<PathBuf>, _> = fs::read_dir(dir)?
        .map(|item| item.map(|item| item.path()))
        .collect();
    let mut paths = paths?;
    paths.sort();
    let mut entries = Vec::new();
    for path in paths {
        if path.is_dir() {
            entries.extend(tree(&path, root, generation)?);
        } else {
            let name = format!("{SITE_PACKAGES}/{}", path.strip_prefix(root)?.display());
            entries.push(built(&name, fs::read(&path)?, generation));
        }
    }
    Ok(entries)
}

/// A file of the build. Programs and libraries are executable.
fn built(path: &str, data: Vec<u8>, generation: Generation) -> Entry {
    Entry {
        mode: if data.starts_with(b"\x7fELF") {
            0o755
        } else {
            0o644
        },
        seconds: generation.build_time(),
        data,
        ..entry(b'0', path)
    }
}

/// Each directory once, before what is in it.
fn with_directories(entries: Vec<Entry>, generation: Generation) -> Vec<Entry> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for mut entry in entries {
        let name = entry.name.clone();
        let ends = name
            .iter()
            .enumerate()
            .filter(|(at, byte)| **byte == b'/' && at + 1 < name.len());
        for (end, _) in ends {
            if seen.insert(name[..=end].to_vec()) {
                all.push(directory(&name[..=end], generation));
            }
        }
        if entry.typeflag == b'5' {
            if !seen.insert(name) {
                continue;
            }
            entry.seconds = generation.build_time();
        }
        all.push(entry);
    }
    all
}

fn directory(name: &[u8], generation: Generation) -> Entry {
    Entry {
        mode: 0o755,
        seconds: generation.build_time(),
        ..entry(b'5', name)
    }
}
