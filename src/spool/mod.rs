//! Blobs on disk, by the digest of the bytes as they travel: what was fetched and is not yet unpacked.
//!
//! ```text
//! spoke-precache/                      0700
//!   lock                               held by the one agent that may use the directory
//!   sha256:<hex>.partial               the first bytes of a blob, from offset 0, without holes
//!   sha256:<hex>                       a whole blob; renamed from .partial when its digest matched
//! ```
//!
//! A file is never believed because of its name. A `.partial` is hashed again before it is continued, and a whole
//! file before it is handed out as a [`VerifiedBlob`], once in each process: it is in the path to the unpacker
//! anyway, and reading it is far cheaper than the link. So nothing is synced here: a full disk says so when it is
//! written to, a failing one when the store syncs the file system before it commits, and to wait for the disk would
//! keep the threads that unpack idle.
//!
//! After a power loss the tail of a `.partial`, or of a whole blob of the last half minute, may be zeros. That shows
//! when the blob's digest does not match, and costs the blob once more. A journal of the durable prefix can stand beside
//! it and mend that without another change to the form:
//!
//! ```text
//!   sha256:<hex>.journal               (offset, SHA-256 state) pairs, each written after an fdatasync of .partial
//!
//!   .partial   |=========durable=========|~~~~~~tail~~~~~~|
//!   .journal   1 MiB … 2 MiB …          ^ last record: continue from here after a crash, from the end otherwise
//! ```

mod error;
mod partial;
mod verified;

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::oci::{Digest, Hasher};

pub use error::SpoolError;
pub use partial::Partial;
pub use verified::VerifiedBlob;

/// How much is read at once while a file is hashed; larger is not faster (shared/crates.md, 2.1).
const HASH_BUFFER: usize = 256 << 10;

/// The directory, for the one agent that holds its lock. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    dir: File,
    path: PathBuf,
    /// Whole blobs that this process has hashed.
    verified: Mutex<HashSet<Digest>>,
    /// Held as long as this lives; the kernel drops it with the process.
    _lock: File,
}

/// A blob that lies in the spool, whole or not; nobody has looked at its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The digest that its name claims.
    pub digest: Digest,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Whether it bears the name of a whole blob.
    pub whole: bool,
}

impl Spool {
    /// Opens the spool at `path`, making the directory if need be, and locks it against other agents.
    pub fn open(path: &Path) -> Result<Self, SpoolError> {
        let at = SpoolError::at(path);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(&at)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(|e| at(e.into()))?);
        // Whoever may write here could slip another blob in between hashing and unpacking.
        dir.set_permissions(std::fs::Permissions::from_mode(0o700))
            .map_err(&at)?;

        let lock_path = path.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = rustix::fs::openat(&dir, "lock", flags, Mode::RUSR | Mode::WUSR)
            .map(File::from)
            .map_err(|e| SpoolError::at(&lock_path)(e.into()))?;
        lock.try_lock().map_err(|error| match error {
            std::fs::TryLockError::WouldBlock => SpoolError::Busy { path: path.into() },
            std::fs::TryLockError::Error(error) => SpoolError::at(&lock_path)(error),
        })?;
        Ok(Self(Arc::new(Shared {
            dir,
            path: path.into(),
            verified: Mutex::default(),
            _lock: lock,
        })))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The blob whose bytes have this digest, if it is here whole. Hashes it unless this process did so before;
    /// a file that turns out to be something else is removed.
    pub fn verified(&self, digest: &Digest) -> Result<Option<VerifiedBlob>, SpoolError> {
        let Some(file) = self.0.open(&whole(digest), OFlags::RDONLY)? else {
            self.0.verified().remove(digest);
            return Ok(None);
        };
        let size = self.0.regular_size(&file, &whole(digest))?;
        if !self.0.verified().contains(digest) {
            let (found, _) = self.0.hash(&file, &whole(digest), size)?;
            if found.finish() != *digest {
                self.0.unlink(&whole(digest))?;
                return Ok(None);
            }
            self.0.verified().insert(*digest);
        }
        Ok(Some(VerifiedBlob::new(self.0.clone(), *digest, size)))
    }

    /// Starts or continues the blob with this digest, `size` bytes long. What is there of it is hashed first.
    /// Waits while another [`Partial`] of the same digest exists; a thread that has one must not ask for it again.
    pub fn partial(&self, digest: &Digest, size: u64) -> Result<Partial, SpoolError> {
        Partial::open(self.0.clone(), *digest, size)
    }

    /// All blobs in the spool, whole and partial, in no order. Files with other names are not ours.
    pub fn list(&self) -> Result<Vec<Entry>, SpoolError> {
        list(&self.0.dir, &self.0.path)
    }

    /// What lies in the spool at `path`, for those who only want to know: takes no lock and makes nothing. No spool is
    /// an empty one; that of an agent at work is another a moment later.
    pub fn glance(path: &Path) -> Result<Vec<Entry>, SpoolError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => list(&File::from(dir), path),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(SpoolError::at(path)(error.into())),
        }
    }

    /// Removes what there is of the blob, whole or partial. Nothing there is an ordinary answer.
    pub fn remove(&self, digest: &Digest) -> Result<(), SpoolError> {
        self.0.verified().remove(digest);
        self.0.unlink(&whole(digest))?;
        self.0.unlink(&partial(digest))
    }
}

impl Shared {
    /// Opens the file `name`, or says that there is none.
    fn open(&self, name: &str, flags: OFlags) -> Result<Option<File>, SpoolError> {
        // Without NONBLOCK a FIFO that bears a blob's name would hold us for ever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => Ok(Some(file.into())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.at(name)(error.into())),
        }
    }

    fn regular_size(&self, file: &File, name: &str) -> Result<u64, SpoolError> {
        let metadata = file.metadata().map_err(self.at(name))?;
        if metadata.is_file() {
            Ok(metadata.len())
        } else {
            Err(SpoolError::NotAFile {
                path: self.path.join(name),
            })
        }
    }

    /// Hashes up to the first `limit` bytes of a file, and says how many there were.
    fn hash(&self, file: &File, name: &str, limit: u64) -> Result<(Hasher, u64), SpoolError> {
        let mut hasher = Hasher::default();
        let mut offset = 0;
        let mut buffer = vec![0; HASH_BUFFER];
        while offset < limit {
            let want = usize::try_from(limit - offset).map_or(HASH_BUFFER, |left| left.min(HASH_BUFFER));
            let read = std::os::unix::fs::FileExt::read_at(file, &mut buffer[..want], offset);
            match read {
                Ok(0) => break,
                Ok(n) => {
                    hasher.update(&buffer[..n]);
                    offset += n as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.at(name)(error)),
            }
        }
        Ok((hasher, offset))
    }

    fn unlink(&self, name: &str) -> Result<(), SpoolError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.at(name)(error.into())),
        }
    }

    fn at(&self, name: &str) -> impl Fn(std::io::Error) -> SpoolError + use<> {
        SpoolError::at(&self.path.join(name))
    }

    /// A set of digests is whole at every moment, also when its holder panicked.
    fn verified(&self) -> std::sync::MutexGuard<'_, HashSet<Digest>> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn list(dir: &File, path: &Path) -> Result<Vec<Entry>, SpoolError> {
    let at = SpoolError::at(path);
    let mut entries = Vec::new();
    for item in rustix::fs::Dir::read_from(dir).map_err(|e| at(e.into()))? {
        let item = item.map_err(|e| at(e.into()))?;
        let Ok(name) = item.file_name().to_str() else {
            continue;
        };
        let (stem, whole) = match name.strip_suffix(PARTIAL) {
            Some(stem) => (stem, false),
            None => (name, true),
        };
        let Ok(digest) = stem.parse() else { continue };
        match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => entries.push(Entry {
                digest,
                bytes: u64::try_from(stat.st_size).unwrap_or_default(),
                whole,
            }),
            // Removed since the directory was read.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(SpoolError::at(&path.join(name))(error.into())),
        }
    }
    Ok(entries)
}

const PARTIAL: &str = ".partial";

fn whole(digest: &Digest) -> String {
    digest.to_string()
}

fn partial(digest: &Digest) -> String {
    format!("{digest}{PARTIAL}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"a layer's bytes as they travel";

    fn spool(dir: &tempfile::TempDir) -> Spool {
        Spool::open(&dir.path().join("spool")).expect("a spool")
    }

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    #[test]
    fn a_blob_grows_across_agents_and_is_whole_when_its_digest_matches() {
        let (dir, digest, size) = (dir(), Digest::of(TEXT), TEXT.len() as u64);
        let first = spool(&dir);
        let mut partial = first.partial(&digest, size).expect("a partial");
        partial.write(&TEXT[..10]).expect("room");
        let second = std::thread::spawn({
            let first = first.clone();
            move || first.partial(&digest, size).map(|partial| partial.offset())
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!second.is_finished(), "two would write at once");
        drop(partial);
        assert_eq!(second.join().expect("no panic").expect("a partial"), 10);
        drop(first);

        let second = spool(&dir);
        assert!(second.verified(&digest).expect("readable").is_none());
        let mut partial = second.partial(&digest, size).expect("a partial");
        assert_eq!(partial.offset(), 10);
        partial.write(&TEXT[10..]).expect("room");
        partial.finish().expect("the digest matches");
        drop(second);

        let third = spool(&dir);
        let blob = third.verified(&digest).expect("readable").expect("whole");
        let text = std::io::read_to_string(blob.open().expect("a file")).expect("text");
        assert_eq!(text.as_bytes(), TEXT);
        blob.remove().expect("removable");
        assert_eq!(third.list().expect("a list"), []);
    }

    #[test]
    fn other_bytes_never_become_a_blob() {
        let (dir, digest, size) = (dir(), Digest::of(TEXT), TEXT.len() as u64);
        let spool = spool(&dir);
        let mut partial = spool.partial(&digest, size).expect("a partial");
        assert!(matches!(partial.write(&[0; 99]), Err(SpoolError::TooLong { .. })));
        partial.write(&[0; 3]).expect("room");
        assert!(matches!(
            partial.finish(),
            Err(SpoolError::TooShort { found: 3, .. })
        ));

        let mut partial = spool.partial(&digest, size).expect("a partial");
        partial.write(&vec![0; TEXT.len() - 3]).expect("room");
        assert!(matches!(partial.finish(), Err(SpoolError::Mismatch { .. })));
        assert_eq!(spool.list().expect("a list"), []);

        std::fs::write(spool.path().join(digest.to_string()), b"something else").expect("a file");
        assert!(spool.verified(&digest).expect("readable").is_none());
        assert_eq!(spool.list().expect("a list"), []);
    }

    #[test]
    fn what_was_begun_for_a_larger_size_is_begun_anew() {
        let (dir, digest) = (dir(), Digest::of(TEXT));
        let spool = spool(&dir);
        spool
            .partial(&digest, 99)
            .expect("a partial")
            .write(TEXT)
            .expect("room");
        assert_eq!(spool.partial(&digest, 5).expect("a partial").offset(), 0);
        let entry = spool.list().expect("a list")[0];
        assert_eq!((entry.digest, entry.bytes, entry.whole), (digest, 0, false));
        spool.remove(&digest).expect("removable");
        assert_eq!(spool.list().expect("a list"), []);
    }

    #[test]
    fn a_second_agent_is_told_of_the_first() {
        let dir = dir();
        let first = spool(&dir);
        let error = Spool::open(first.path()).expect_err("the lock is held");
        assert!(
            error.to_string().starts_with("another spoke-precache is running"),
            "{error}"
        );
        assert_eq!(Spool::glance(first.path()).expect("no lock"), []);
        let none = dir.path().join("none");
        assert_eq!(Spool::glance(&none).expect("an empty one"), []);
        assert!(!none.exists());
    }
}
