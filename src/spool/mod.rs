//! Blobs on disk, by the digest of the bytes as they travel: what was fetched and is not yet unpacked.
//!
//! ```text
//! spoke-precache/                      0700
//!   lock                               held by the one agent that may use the directory; the boot in which one last did
//!   sha256:<hex>.partial               the first bytes of a blob, from offset 0, without holes
//!   sha256:<hex>.journal               records of them, if the blob is large: (offset, SHA-256 of the bytes before it)
//!   sha256:<hex>.from-<n>.partial      a piece: bytes of it from n on, which came by another connection; and its .journal
//!   sha256:<hex>                       a whole blob; renamed from .partial when its digest matched
//!
//!   .partial   |=========durable=========|~~~~~~tail~~~~~~|
//!   .journal   2 MiB … 4 MiB …          ^ last record: continue from here after a reboot, from the end otherwise
//! ```
//!
//! A file is never believed because of its name. A `.partial` is hashed again before it is continued, and a whole
//! file before it is handed out as a [`VerifiedBlob`], once in each process: it is in the path to the unpacker
//! anyway, and reading it is far cheaper than the link. So nobody waits for the disk here: a full disk says so when it
//! is written to, a failing one when a record is made or when the store syncs the file system before it commits.
//!
//! What a process wrote outlives it in the page cache, so after a kill the whole `.partial` is continued. A power loss
//! leaves zeros, or nothing, where the tail was. Therefore a thread (`syncer`) makes the bytes of large blobs durable,
//! about one blob a second, and then writes a record into the blob's `journal`; after a reboot (`boot`) each `.partial`
//! is cut off after its newest record. When it is hashed again, every record is compared: if one does not hold, bytes on
//! the disk have changed, and only what comes before the newest record that does hold is kept. A whole blob that
//! turns out to be something else becomes a `.partial` again as far as a record holds. The digest of the whole decides in
//! the end, so all this only decides what a power loss costs: of each blob that travels, what came since its last
//! record, which is some MiB or a few seconds of the link.
//!
//! A piece is a file of its own, so that none has holes and each proves itself as the first bytes do. It is appended to
//! these, and removed, when they reach it ([`Partial::absorb`]).
//!
//! Everything here is removed with the blob, and a journal without one when the spool is opened.

mod error;
mod file_names;
mod journal;
mod partial;
mod reboot;
mod syncer;
mod verified_blob;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::oci::{Digest, Hasher};

use file_names::FileNames;
use journal::Record;
use syncer::Syncer;

pub use error::SpoolError;
pub use partial::Partial;
pub use verified_blob::VerifiedBlob;

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
    /// Those that lie here.
    pieces: Mutex<BTreeSet<FileNames>>,
    syncer: Syncer,
    /// Locked as long as this lives; the kernel drops it with the process.
    lock: File,
}

/// A blob that lies in the spool, whole or not; nobody has looked at its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The digest that its name claims.
    pub digest: Digest,
    /// How many of its bytes are here.
    pub bytes: u64,
    /// Whether it bears the name of a whole blob.
    pub whole: bool,
    /// When bytes were last written to it, by the clock of the node at that time.
    pub touched: SystemTime,
}

impl Spool {
    /// Opens the spool at `path`, making the directory if need be, and locks it against other agents. After a reboot
    /// what may not have reached the disk before it is cut off.
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
        let syncer = dir.try_clone().and_then(Syncer::start).map_err(&at)?;
        let shared = Shared {
            dir,
            path: path.into(),
            verified: Mutex::default(),
            pieces: Mutex::default(),
            syncer,
            lock,
        };
        shared.recover()?;
        Ok(Self(Arc::new(shared)))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The blob whose bytes have this digest, if it is here whole. Hashes it unless this process did so before; of a
    /// file that turns out to be something else, what its journal shows to be right becomes a partial blob again.
    pub fn verified(&self, digest: &Digest) -> Result<Option<VerifiedBlob>, SpoolError> {
        let Some(file) = self.0.open(&whole(digest), OFlags::RDONLY)? else {
            self.0.verified().remove(digest);
            return Ok(None);
        };
        let size = self.0.regular_size(&file, &whole(digest))?;
        if !self.0.verified().contains(digest) {
            let records = journal::records(&self.0, &FileNames::first(digest));
            let read = self.0.hash(&file, &whole(digest), size, &records)?;
            if read.hasher.finish() != *digest {
                self.0.demote(digest, read.proven.1)?;
                return Ok(None);
            }
            self.0.verified().insert(*digest);
        }
        Ok(Some(VerifiedBlob::new(self.0.clone(), *digest, size)))
    }

    /// Starts or continues the blob with this digest, `size` bytes long. What is there of it is hashed first.
    /// Waits while another [`Partial`] of the same digest exists; a thread that has one must not ask for it again.
    pub fn partial(&self, digest: &Digest, size: u64) -> Result<Partial, SpoolError> {
        self.piece(digest, size, 0)
    }

    /// Starts or continues the piece that begins with byte `from`, as [`partial`](Self::partial) does with the first bytes.
    pub fn piece(&self, digest: &Digest, size: u64, from: u64) -> Result<Partial, SpoolError> {
        let stem = FileNames { blob: *digest, from };
        Partial::open(self.0.clone(), stem, size)
    }

    /// With which bytes the pieces of this blob that are here begin, in order. Nobody has looked at them.
    pub fn pieces(&self, digest: &Digest) -> Vec<u64> {
        self.0.pieces_of(digest).iter().map(|stem| stem.from).collect()
    }

    /// All blobs in the spool, whole and partial, in no order. Files with other names are not ours.
    pub fn list(&self) -> Result<Vec<Entry>, SpoolError> {
        list(&self.0.dir, &self.0.path)
    }

    /// What lies in the spool at `path`, for those who only want to know: takes no lock and makes nothing. No spool is
    /// an empty one; that of an agent at work is another a moment later, and after a reboot the next agent to open it
    /// may keep less.
    pub fn glance(path: &Path) -> Result<Vec<Entry>, SpoolError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => list(&File::from(dir), path),
            Err(Errno::NOENT) => Ok(Vec::new()),
            Err(error) => Err(SpoolError::at(path)(error.into())),
        }
    }

    /// These bytes of a blob, if the spool at `path` has them, whole or partial. Nobody has verified them; for those who
    /// only want to know, as [`glance`](Self::glance) is.
    pub fn peek(path: &Path, digest: &Digest, range: Range<u64>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(range.end.checked_sub(range.start)?).ok()?];
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        [whole(digest), FileNames::first(digest).partial()]
            .into_iter()
            .find_map(|name| {
                let file = File::from(rustix::fs::open(path.join(name), flags, Mode::empty()).ok()?);
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, range.start).ok()?;
                Some(bytes.clone())
            })
    }

    /// Removes what there is of the blob, whole or partial. Nothing there is an ordinary answer.
    pub fn remove(&self, digest: &Digest) -> Result<(), SpoolError> {
        self.0.verified().remove(digest);
        self.0.unlink(&whole(digest))?;
        for piece in self.0.pieces_of(digest) {
            self.0.remove_part(&piece)?;
        }
        self.0.remove_part(&FileNames::first(digest))
    }
}

impl Shared {
    /// Opens the file `name`, or says that there is none.
    fn open(&self, name: &str, flags: OFlags) -> Result<Option<File>, SpoolError> {
        match self.open_raw(name, flags) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.at(name)(error.into())),
        }
    }

    fn open_raw(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        // Without NONBLOCK a FIFO that bears a blob's name would hold us for ever.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::openat(&self.dir, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
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

    /// Hashes up to the first `limit` bytes of a file, and compares what the records, by offset, say of them.
    fn hash(&self, file: &File, name: &str, limit: u64, records: &[Record]) -> Result<Read, SpoolError> {
        let mut hasher = Hasher::default();
        let mut proven = (Hasher::default(), 0);
        let mut offset = 0;
        for record in records {
            if record.offset > limit {
                break;
            }
            offset = self.hash_on(&mut hasher, file, name, offset..record.offset)?;
            if offset == record.offset && hasher.clone().finish() == record.prefix {
                proven = (hasher.clone(), offset);
            }
        }
        let offset = self.hash_on(&mut hasher, file, name, offset..limit)?;
        let newest = records.last().map_or(0, |record| record.offset);
        Ok(Read {
            is_contradicted: newest > proven.1,
            hasher,
            offset,
            proven,
        })
    }

    /// Adds a range of a file to a hash, and says how far it could be read.
    fn hash_on(
        &self,
        hasher: &mut Hasher,
        file: &File,
        name: &str,
        range: Range<u64>,
    ) -> Result<u64, SpoolError> {
        if range.is_empty() {
            return Ok(range.start);
        }
        let mut offset = range.start;
        let mut buffer = vec![0; HASH_BUFFER];
        while offset < range.end {
            let want = usize::try_from(range.end - offset).map_or(HASH_BUFFER, |left| left.min(HASH_BUFFER));
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
        Ok(offset)
    }

    /// Keeps the first `proven` bytes of a whole blob that turned out to be something else, as a partial one. Nothing
    /// is kept if one was begun meanwhile.
    fn demote(&self, digest: &Digest, proven: u64) -> Result<(), SpoolError> {
        let (whole, stem) = (whole(digest), FileNames::first(digest));
        let partial = stem.partial();
        if proven == 0 {
            self.unlink(&whole)?;
            if self.open(&partial, OFlags::RDONLY)?.is_none() {
                self.unlink_if_possible(&stem.journal());
            }
            return Ok(());
        }
        let Some(file) = self.open(&whole, OFlags::RDWR)? else {
            return Ok(());
        };
        // Whoever finds it under the other name waits until it is cut.
        file.lock().map_err(self.at(&whole))?;
        match rustix::fs::renameat_with(&self.dir, &whole, &self.dir, &partial, RenameFlags::NOREPLACE) {
            Ok(()) => file.set_len(proven).map_err(self.at(&partial)),
            Err(Errno::NOENT) => Ok(()),
            // There is a partial one, or the file system cannot rename in this way.
            Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) => self.unlink(&whole),
            Err(error) => Err(self.at(&whole)(error.into())),
        }
    }

    fn unlink(&self, name: &str) -> Result<(), SpoolError> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(self.at(name)(error.into())),
        }
    }

    /// Removes bytes and their records.
    fn remove_part(&self, stem: &FileNames) -> Result<(), SpoolError> {
        self.unlink(&stem.partial())?;
        self.unlink_if_possible(&stem.journal());
        self.pieces().remove(stem);
        Ok(())
    }

    fn pieces_of(&self, blob: &Digest) -> Vec<FileNames> {
        let stem = |from| FileNames { blob: *blob, from };
        self.pieces().range(stem(1)..=stem(u64::MAX)).copied().collect()
    }

    /// A set of names is whole at every moment, also when its holder panicked.
    fn pieces(&self) -> std::sync::MutexGuard<'_, BTreeSet<FileNames>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For journals: without its blob one is of no use to anybody, and harms nobody.
    fn unlink_if_possible(&self, name: &str) {
        if let Err(error) = self.unlink(name) {
            tracing::warn!("a file of no use stays in the spool: {error}");
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

/// A file as it was read.
struct Read {
    /// Of its first `offset` bytes.
    hasher: Hasher,
    offset: u64,
    /// The longest prefix that a record proves, and the hash of it.
    proven: (Hasher, u64),
    /// There is a newer record than that.
    is_contradicted: bool,
}

/// The names in a directory that are text.
fn names(dir: &File, path: &Path) -> Result<Vec<String>, SpoolError> {
    let at = SpoolError::at(path);
    let mut names = Vec::new();
    for item in rustix::fs::Dir::read_from(dir).map_err(|e| at(e.into()))? {
        let item = item.map_err(|e| at(e.into()))?;
        names.extend(item.file_name().to_str().ok().map(str::to_owned));
    }
    Ok(names)
}

/// What the name of a blob's file says.
enum Name {
    Whole(Digest),
    Part(FileNames),
}

/// The files with bytes of blobs.
fn files(dir: &File, path: &Path) -> Result<Vec<(Name, rustix::fs::Stat)>, SpoolError> {
    let mut files = Vec::new();
    for name in names(dir, path)? {
        let parsed = match FileNames::of_partial(&name) {
            Some(stem) => Name::Part(stem),
            None => match name.parse() {
                Ok(digest) => Name::Whole(digest),
                Err(_) => continue,
            },
        };
        match rustix::fs::statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => files.push((parsed, stat)),
            // Removed since the directory was read.
            Err(Errno::NOENT) => {}
            Err(error) => return Err(SpoolError::at(&path.join(&name))(error.into())),
        }
    }
    Ok(files)
}

fn list(dir: &File, path: &Path) -> Result<Vec<Entry>, SpoolError> {
    let mut entries = Vec::new();
    let mut parts: BTreeMap<FileNames, (u64, SystemTime)> = BTreeMap::new();
    for (name, stat) in files(dir, path)? {
        let (bytes, touched) = (u64::try_from(stat.st_size).unwrap_or_default(), modified(&stat));
        match name {
            Name::Whole(digest) => entries.push(Entry {
                digest,
                bytes,
                whole: true,
                touched,
            }),
            Name::Part(stem) => drop(parts.insert(stem, (bytes, touched))),
        }
    }
    // In the order of their first bytes. One that was being appended when the run was killed overlaps those before it.
    let mut end = 0;
    for (stem, (bytes, touched)) in parts {
        let until = stem.from.saturating_add(bytes);
        match entries.last_mut() {
            Some(entry) if !entry.whole && entry.digest == stem.blob => {
                entry.bytes += until.saturating_sub(end.max(stem.from));
                entry.touched = entry.touched.max(touched);
                end = end.max(until);
            }
            _ => {
                entries.push(Entry {
                    digest: stem.blob,
                    bytes,
                    whole: false,
                    touched,
                });
                end = until;
            }
        }
    }
    Ok(entries)
}

/// To the second. A time before 1970 is taken for 1970.
fn modified(stat: &rustix::fs::Stat) -> SystemTime {
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::try_from(stat.st_mtime).unwrap_or_default())
}

fn whole(digest: &Digest) -> String {
    digest.to_string()
}

#[cfg(test)]
mod tests;
