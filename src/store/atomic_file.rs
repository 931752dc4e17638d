//! Creates and replaces files atomically and durably: after a power loss a file has its old or its new content.
//!
//! A file is written under a temporary name in the same directory, synced and renamed. Then the directory is synced,
//! which containers/storage omits. The temporary name is that of containers/storage (`pkg/ioutils/fswriters.go`), so
//! that programs that clean up after it clean up after us too.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::error::{StoreError, io_error};

/// A temporary file that has not been written for this long belongs to a dead writer. It is only inspected under the
/// lock of its directory, which every live writer holds for milliseconds. The hour allows for clock changes.
const STALE: Duration = Duration::from_secs(3600);

/// Replaces `path` with a file of mode 0600 and content `bytes`.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace(path, 0o600, bytes)
}

/// Replaces `path` with a file of mode `mode` and content `bytes`.
pub(super) fn replace(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), StoreError> {
    put(path, mode, bytes)?;
    sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// The same without the sync of the directory, for several files in one directory: the new name is durable after the
/// caller syncs it.
pub(super) fn put(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), StoreError> {
    let (Some(dir), Some(base)) = (path.parent(), path.file_name().and_then(|base| base.to_str())) else {
        return Err(io_error("write", path)(std::io::Error::from(
            ErrorKind::InvalidInput,
        )));
    };
    let temporary = dir.join(format!(".tmp-{base}{}", rand::random::<u32>()));
    let written = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_data()?;
        fs::rename(&temporary, path)
    })();
    if let Err(error) = written {
        // The file may not exist; the first error is the one to report.
        let _ = fs::remove_file(&temporary);
        return Err(io_error("write", path)(error));
    }
    Ok(())
}

/// Makes the names in `dir` durable.
pub(super) fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", dir))
}

/// Creates a file that must not exist yet, with mode `mode`. Nothing of it is durable.
pub(super) fn create(path: &Path, mode: u32, bytes: &[u8]) -> Result<File, StoreError> {
    let created = (|| {
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        file.set_permissions(Permissions::from_mode(mode))?;
        file.write_all(bytes)?;
        std::io::Result::Ok(file)
    })();
    created.map_err(io_error("create", path))
}

/// Creates one directory with exactly this mode, whatever the umask. Returns false if it existed.
pub(super) fn create_dir(path: &Path, mode: u32) -> Result<bool, StoreError> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            fs::set_permissions(path, Permissions::from_mode(mode))
                .map_err(io_error("set the mode of", path))?;
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(io_error("create", path)(error)),
    }
}

/// Opens a file for reading. A FIFO reads as an empty file; without `O_NONBLOCK` the open would block forever.
pub(super) fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Reads a file of at most `limit` bytes; `None` if it does not exist.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(io_error("open", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(io_error("read", path))?;
    if bytes.len() as u64 > limit {
        return Err(StoreError::corrupt(
            path,
            format_args!("it is longer than {limit} bytes"),
        ));
    }
    Ok(Some(bytes))
}

/// Removes temporary files of dead writers of `dir/base`. The lock that guards `base` must be held.
pub(super) fn sweep(dir: &Path, base: &str) {
    let prefix = format!(".tmp-{base}");
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    sweep_named(dir, |name| name.strip_prefix(&prefix).is_some_and(is_number));
}

/// The same for all files in `dir`.
pub(super) fn sweep_all(dir: &Path) {
    sweep_named(dir, |name| name.starts_with(".tmp-"));
}

fn sweep_named(dir: &Path, is_temporary: impl Fn(&str) -> bool) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().to_str().is_some_and(&is_temporary) {
            continue;
        }
        let stale = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .is_ok_and(|modified| {
                SystemTime::now()
                    .duration_since(modified)
                    .is_ok_and(|age| age > STALE)
            });
        if stale {
            match fs::remove_file(entry.path()) {
                Ok(()) => {
                    tracing::info!(path = %entry.path().display(), "removed a dead writer's temporary file")
                }
                Err(error) => {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot remove a dead writer's temporary file")
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_is_replaced_and_no_temporary_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("layers.json");
        write(&path, b"[]").unwrap();
        write(&path, b"[1]").unwrap();
        assert_eq!(read(&path, 10).unwrap().unwrap(), b"[1]");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(matches!(read(&path, 2), Err(StoreError::Corrupt { .. })));
        assert_eq!(read(&dir.path().join("none"), 2).unwrap(), None);
    }

    #[test]
    fn only_old_temporaries_of_the_same_file_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - STALE - Duration::from_secs(60);
        for name in [
            ".tmp-layers.json1",
            ".tmp-layers.json",
            ".tmp-layers.jsonx",
            ".tmp-images.json1",
            "layers.json",
        ] {
            File::create(dir.path().join(name))
                .unwrap()
                .set_modified(old)
                .unwrap();
        }
        File::create(dir.path().join(".tmp-layers.json2")).unwrap();
        sweep(dir.path(), "layers.json");
        assert!(!dir.path().join(".tmp-layers.json1").exists());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 5);
    }
}
