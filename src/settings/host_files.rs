//! Reads configuration files of the host, with a bounded size.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::SettingsError;
use crate::registry::ConfText;

/// The largest file. Configuration files are far smaller; a pull secret for a hundred registries has a few dozen KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The files of a directory whose names end in `suffix`, in the order of their names, as containers/image merges them.
/// Directories are ignored.
pub(super) fn drop_ins(dir: &Path, suffix: &str) -> Result<Vec<ConfText>, SettingsError> {
    let unreadable = |source| SettingsError::HostFile {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(_) if !is_present(dir) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let is_dir = entry.file_type().map_err(unreadable)?.is_dir();
        if !is_dir && entry.file_name().as_encoded_bytes().ends_with(suffix.as_bytes()) {
            paths.push(entry.path());
        }
    }
    paths.sort();
    let texts = paths.into_iter().map(|path| match read(&path) {
        Ok(text) => Ok(ConfText { path, text }),
        Err(source) => Err(SettingsError::HostFile { path, source }),
    });
    texts.collect()
}

pub(super) fn read_if_present(path: &Path) -> Result<Option<String>, SettingsError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(_) if !is_present(path) => Ok(None),
        Err(source) => Err(SettingsError::HostFile {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Whether the path exists, also as a dangling symbolic link: on the host it may have a target, so reading it must fail
/// instead of skipping it.
pub(super) fn is_present(path: &Path) -> bool {
    let found = path.symlink_metadata();
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

pub(super) fn read(path: &Path) -> io::Result<String> {
    let text = String::from_utf8(read_bytes(path)?);
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

pub(super) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(FILE_LIMIT + 1).read_to_end(&mut bytes)?;
    if read as u64 > FILE_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {FILE_LIMIT} bytes"),
        ));
    }
    Ok(bytes)
}
