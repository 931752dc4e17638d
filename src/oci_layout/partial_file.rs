//! Writes a file under another name until it is complete.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::error::{OciLayoutError, at};

/// The ending of files that are being written.
const ENDING: &str = ".partial";

/// A file that is removed unless it is committed.
pub(super) struct PartialFile {
    file: File,
    path: PathBuf,
    partial: PathBuf,
}

impl PartialFile {
    pub(super) fn create(path: &Path) -> Result<Self, OciLayoutError> {
        Self::create_in(path.parent().unwrap_or(Path::new(".")), path)
    }

    /// The file is in `directory` until it is complete.
    fn create_in(directory: &Path, path: &Path) -> Result<Self, OciLayoutError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Two writers of the same content must not share a file.
        let partial = directory.join(format!("{name}.{:016x}{ENDING}", rand::random::<u64>()));
        Ok(Self {
            file: File::create_new(&partial).map_err(at(&partial))?,
            path: path.to_owned(),
            partial,
        })
    }

    pub(super) fn write(&self, bytes: &[u8]) -> Result<(), OciLayoutError> {
        (&self.file).write_all(bytes).map_err(at(&self.partial))
    }

    /// Renames it to its name, durably.
    pub(super) fn commit(self) -> Result<(), OciLayoutError> {
        self.file.sync_all().map_err(at(&self.partial))?;
        fs::rename(&self.partial, &self.path).map_err(at(&self.path))?;
        let directory = self.path.parent().unwrap_or(Path::new("."));
        let synced = File::open(directory).and_then(|directory| directory.sync_all());
        synced.map_err(at(directory))
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        // After the commit there is no such file; a leftover is removed when the layout is opened again.
        let _ = fs::remove_file(&self.partial);
    }
}

/// Writes a file with this content.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), OciLayoutError> {
    let partial = PartialFile::create(path)?;
    partial.write(bytes)?;
    partial.commit()
}

/// Writes a file with this content, which is in `directory` until it is complete: only a few directories are searched for
/// what a killed run left.
pub(super) fn write_via(directory: &Path, path: &Path, bytes: &[u8]) -> Result<(), OciLayoutError> {
    let partial = PartialFile::create_in(directory, path)?;
    partial.write(bytes)?;
    partial.commit()
}

/// Whether the directory has no other files than incomplete ones, hidden ones, and those that a system creates at the top of
/// a file system.
pub(super) fn is_empty(directory: &Path) -> Result<bool, OciLayoutError> {
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let entry = entry.map_err(at(directory))?;
        if !is_partial(&entry) && !is_of_system(&entry) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the incomplete files of a killed run.
pub(super) fn remove_all(directory: &Path) -> Result<(), OciLayoutError> {
    for entry in fs::read_dir(directory).map_err(at(directory))? {
        let entry = entry.map_err(at(directory))?;
        if is_partial(&entry) {
            fs::remove_file(entry.path()).map_err(at(&entry.path()))?;
        }
    }
    Ok(())
}

fn is_partial(entry: &fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().ends_with(ENDING)
}

fn is_of_system(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    name.starts_with('.') || matches!(&*name, "lost+found" | "System Volume Information")
}
