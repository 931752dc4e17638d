//! Opens the media at a path: the path itself, or what a directory contains.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::archive::Archive;
use super::directory::Directory;
use super::error::MediaError;
use super::layout::Layout;
use super::medium::Medium;
use super::tree::Tree;
use crate::cancel::Cancel;

/// How many entries of a directory that is no medium itself are tried.
const MAX_ENTRIES: usize = 200;

/// The name of a part of an oc-mirror archive: this, six digits, and `.tar` (`archiveFileNameFormat`).
const PART: &str = "mirror_";

/// Opens everything that `path` names. Adds what is damaged or skipped to `warnings`.
pub(super) fn open(
    path: &Path,
    cancel: &Cancel,
    warnings: &mut Vec<String>,
) -> Result<Vec<Medium>, MediaError> {
    let kind = fs::metadata(path).map_err(MediaError::at(path))?.file_type();
    if kind.is_file() {
        return Ok(vec![archive(path, &[path.to_owned()], cancel, warnings)?]);
    }
    if !kind.is_dir() {
        return Err(MediaError::unrecognised(
            path,
            "it is neither a directory nor a regular file",
        ));
    }
    let opened = Directory::open(path).map_err(MediaError::at(path))?;
    let entries = opened.entries("").map_err(MediaError::at(path))?;
    let (parts, others): (Vec<_>, Vec<_>) = entries
        .into_iter()
        .partition(|(name, kind)| kind.is_file() && part_number(name).is_some());
    let mut media = Vec::new();
    let own = recognised(path, Tree::Directory(opened), warnings)?;
    let is_medium = own.is_some() || !parts.is_empty();
    media.extend(own);
    if !parts.is_empty() {
        let names = parts.iter().map(|(name, _)| name.as_str());
        warnings.extend(missing_parts(path, names.clone()));
        let paths: Vec<PathBuf> = names.map(|name| path.join(name)).collect();
        media.push(archive(path, &paths, cancel, warnings)?);
    }
    if !is_medium {
        for (name, kind) in others.into_iter().take(MAX_ENTRIES) {
            media.extend(entry(&path.join(name), kind, cancel, warnings)?);
        }
    }
    match media.is_empty() {
        true => Err(MediaError::unrecognised(
            path,
            "neither the directory nor anything in it has a known form",
        )),
        false => Ok(media),
    }
}

/// The medium that an entry of a directory is, if it is one. Links are not followed.
fn entry(
    path: &Path,
    kind: FileType,
    cancel: &Cancel,
    warnings: &mut Vec<String>,
) -> Result<Option<Medium>, MediaError> {
    let opened = match kind {
        FileType::RegularFile => archive(path, &[path.to_owned()], cancel, warnings).map(Some),
        FileType::Directory => {
            let opened = Directory::open(path).map_err(MediaError::at(path));
            opened.and_then(|opened| recognised(path, Tree::Directory(opened), warnings))
        }
        _ => return Ok(None),
    };
    match opened {
        Err(error @ MediaError::Stopped(_)) => Err(error),
        // Any other file may be beside a medium.
        Err(MediaError::Unrecognised { .. }) => Ok(None),
        Err(error) => {
            warnings.push(error.to_string());
            Ok(None)
        }
        Ok(medium) => Ok(medium),
    }
}

/// The medium in the tar at `paths`, or in all of them together.
fn archive(
    path: &Path,
    paths: &[PathBuf],
    cancel: &Cancel,
    warnings: &mut Vec<String>,
) -> Result<Medium, MediaError> {
    let mut damages = Vec::new();
    let tree = Tree::Archive(Archive::open(paths, cancel, &mut damages)?);
    let medium = recognised(path, tree, warnings)?;
    warnings.extend(damages);
    medium.ok_or_else(|| MediaError::unrecognised(path, "the archive has no file of a known form"))
}

fn recognised(path: &Path, mut tree: Tree, warnings: &mut Vec<String>) -> Result<Option<Medium>, MediaError> {
    let name = path.display().to_string();
    let mut own = Vec::new();
    let mut layouts = Layout::recognise(&tree, &mut own).map_err(MediaError::at(path))?;
    // `tar -c layout` puts a directory around everything.
    if layouts.is_empty() && tree.enter_directory() {
        layouts = Layout::recognise(&tree, &mut own).map_err(MediaError::at(path))?;
    }
    if layouts.is_empty() {
        return Ok(None);
    }
    warnings.extend(
        own.into_iter()
            .map(|warning| format!("medium `{name}`: {warning}")),
    );
    Ok(Some(Medium::new(name, tree, layouts)))
}

/// The number in the name of a part.
fn part_number(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(PART)?.strip_suffix(".tar")?;
    let is_number = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// A warning for each gap in the numbers of the parts, which begin with 1. The last ones may be missing unnoticed.
fn missing_parts<'a>(path: &Path, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut expected = 1;
    let mut warnings = Vec::new();
    for number in names.filter_map(part_number) {
        if number > expected {
            let range = match number - expected {
                1 => format!("`{PART}{expected:06}.tar` is missing"),
                _ => format!(
                    "`{PART}{expected:06}.tar` to `{PART}{:06}.tar` are missing",
                    number - 1
                ),
            };
            warnings.push(format!("medium `{}`: {range}", path.display()));
        }
        expected = number + 1;
    }
    warnings
}
