//! Stores files in a layout from a thread: blobs that are verified already, several tags at once, and other files.

use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::PoisonError;

use super::error::{OciLayoutError, at};
use super::{OciLayout, partial_file};
use crate::cancel::Cancel;
use crate::oci::{Descriptor, Digest};

impl OciLayout {
    /// The path of the blob with this digest, whether it is there or not.
    pub fn blob_path(&self, digest: Digest) -> PathBuf {
        self.0.blob(digest)
    }

    /// Opens the blob with this digest, which is not verified. Nothing if there is no such file.
    pub fn blob(&self, digest: Digest) -> Result<Option<File>, OciLayoutError> {
        let path = self.0.blob(digest);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => file.map(Some).map_err(at(&path)),
        }
    }

    /// Removes a blob.
    pub fn remove_blob(&self, digest: Digest) -> Result<(), OciLayoutError> {
        remove(&self.0.blob(digest))
    }

    /// Copies the first `size` bytes of `file`, whose digest this is.
    pub fn copy_blob(
        &self,
        digest: Digest,
        size: u64,
        file: &File,
        cancel: &Cancel,
    ) -> Result<(), OciLayoutError> {
        self.0.copy(digest, size, file, cancel)
    }

    /// Stores a small blob, unless a file of its length is there.
    pub fn put(&self, bytes: &[u8]) -> Result<(), OciLayoutError> {
        self.0.put(bytes)
    }

    /// Points each tag to its manifest.
    pub fn tag_all(&self, tags: &[(&str, &Descriptor)]) -> Result<(), OciLayoutError> {
        let _changing = self.0.changing.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.index.tag_all(tags)
    }

    /// Stores a file that is no blob, below the layout's directory. `name` has only names between its slashes.
    pub fn put_file(&self, name: &str, bytes: &[u8]) -> Result<(), OciLayoutError> {
        let path = self.file(name)?;
        if fs::read(&path).is_ok_and(|known| known == bytes) {
            return Ok(());
        }
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(at(directory))?;
        }
        partial_file::write_via(&self.0.path, &path, bytes)
    }

    /// Removes a file that is no blob.
    pub fn remove_file(&self, name: &str) -> Result<(), OciLayoutError> {
        remove(&self.file(name)?)
    }

    /// Waits until everything in the layout is on the disk.
    pub fn sync(&self) -> Result<(), OciLayoutError> {
        let synced = File::open(&self.0.path).and_then(|directory| Ok(rustix::fs::syncfs(directory)?));
        synced.map_err(at(&self.0.path))
    }

    fn file(&self, name: &str) -> Result<PathBuf, OciLayoutError> {
        let name = Path::new(name);
        let path = self.0.path.join(name);
        match name.components().all(|part| matches!(part, Component::Normal(_))) {
            true => Ok(path),
            false => Err(at(&path)(io::ErrorKind::InvalidFilename.into())),
        }
    }
}

fn remove(path: &Path) -> Result<(), OciLayoutError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}
