//! Reads a file-based catalog: every file below a directory, except those that `.indexignore` files name.
//!
//! Files are read in the order of their paths, as by Go's `fs.WalkDir`; the order decides only which error is reported.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::bounded_reader::ReadBudget;
use super::collection::Collection;
use super::error::CatalogError;
use super::fbc_document::TextBudget;
use super::{fbc_file, indexignore};
use crate::cancel::Cancel;
use crate::store::{FileKind, Node, Tree};

const INDEX_IGNORE: &str = ".indexignore";

/// The longest `.indexignore`.
const IGNORE_LIMIT: u64 = 1 << 20;

/// The most patterns of all `.indexignore` files: each is matched against each file.
const PATTERNS_LIMIT: usize = 10_000;

/// The most files and directories: one file for each bundle of all operators is a tenth of it.
const FILES_LIMIT: usize = 100_000;

/// The deepest directory.
const DEPTH_LIMIT: usize = 64;

/// Reads the requested packages below `directory`.
pub(super) fn read(
    tree: &Tree,
    directory: &str,
    collection: &mut Collection<'_>,
    cancel: &Cancel,
) -> Result<(), CatalogError> {
    let files = files(tree, Path::new(directory), cancel)?;
    let (texts, budget) = (TextBudget::default(), ReadBudget::new(cancel));
    for path in files {
        let opened = open(tree, &path)?;
        fbc_file::read(&shown(&path), opened, collection, &texts, &budget)?;
    }
    Ok(())
}

/// The paths of the catalog's files in the image.
fn files(tree: &Tree, root: &Path, cancel: &Cancel) -> Result<Vec<PathBuf>, CatalogError> {
    let exceeded = |limit: usize, what| CatalogError::LimitExceeded {
        file: shown(root),
        limit: limit as u64,
        what,
    };
    let (mut files, mut patterns, mut entries_read) = (Vec::new(), Vec::new(), 0);
    // A stack of paths, each also as components below the root.
    let mut pending: Vec<(Vec<String>, PathBuf, FileKind)> =
        vec![(Vec::new(), root.to_owned(), FileKind::Directory)];
    while let Some((components, path, kind)) = pending.pop() {
        cancel.check()?;
        if kind != FileKind::Directory {
            if path.file_name() == Some(OsStr::new(INDEX_IGNORE)) {
                let text = ignore_file(tree, &path)?;
                let directory = &components[..components.len().saturating_sub(1)];
                patterns.extend(indexignore::patterns(&text, directory));
                if patterns.len() > PATTERNS_LIMIT {
                    return Err(exceeded(PATTERNS_LIMIT, "patterns in `.indexignore`"));
                }
            } else {
                files.push((components, path));
            }
            continue;
        }
        if components.len() > DEPTH_LIMIT {
            return Err(exceeded(DEPTH_LIMIT, "levels of directories"));
        }
        let Some(Node::Directory(directory)) = tree.open(&path)? else {
            return Err(CatalogError::Io {
                file: shown(&path),
                why: "it is not a directory any more".to_owned(),
            });
        };
        let entries = directory.entries(&path, FILES_LIMIT)?;
        entries_read += entries.len();
        if entries_read > FILES_LIMIT {
            return Err(exceeded(FILES_LIMIT, "files and directories"));
        }
        for entry in entries.into_iter().rev() {
            let mut below = components.clone();
            below.push(entry.name.to_string_lossy().into_owned());
            pending.push((below, path.join(&entry.name), entry.kind));
        }
    }
    let documents = files.into_iter();
    let documents = documents.filter(|(components, _)| !indexignore::is_ignored(&patterns, components));
    Ok(documents.map(|(_, path)| path).collect())
}

/// Opens a file and follows symlinks. Anything else is an error, as for the programs that serve catalogs.
fn open(tree: &Tree, path: &Path) -> Result<File, CatalogError> {
    let why = match tree.open(path)? {
        Some(Node::File(file)) => return Ok(file),
        Some(Node::Directory(_)) => "it is a symlink to a directory",
        Some(Node::Other(_)) => "it is neither a file nor a directory",
        None => "it is a dangling symlink",
    };
    Err(CatalogError::Io {
        file: shown(path),
        why: why.to_owned(),
    })
}

fn ignore_file(tree: &Tree, path: &Path) -> Result<String, CatalogError> {
    let mut bytes = Vec::new();
    let read = open(tree, path)?.take(IGNORE_LIMIT + 1).read_to_end(&mut bytes);
    read.map_err(|error| CatalogError::Io {
        file: shown(path),
        why: error.to_string(),
    })?;
    if bytes.len() as u64 > IGNORE_LIMIT {
        return Err(CatalogError::LimitExceeded {
            file: shown(path),
            limit: IGNORE_LIMIT,
            what: "bytes",
        });
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}
