//! The directory of a stage: how it is made, known to be alive, and removed after a kill.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::error::{StoreError, io_error};
use super::{atomic_file, lock, remove_tree};

/// How the names of stages begin.
const PREFIX: &str = ".spoke-precache-stage-";

/// The lock of a stage.
const LOCK: &str = "lock";

/// The attribute that holds an SELinux label.
const SELINUX: &str = "security.selinux";

/// The longest SELinux label that is copied.
const LABEL_LIMIT: usize = 4096;

/// Stages of this process whose directories are there.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How often it is looked whether a stage is gone.
const POLL: Duration = Duration::from_millis(5);

/// Waits for threads to remove what they had staged, so long at most. What they do not come to is removed by the next run.
pub fn await_removal(patience: Duration) {
    let begin = Instant::now();
    while LIVE.load(Ordering::Acquire) > 0 && begin.elapsed() < patience {
        std::thread::sleep(POLL);
    }
}

/// A stage's directory with its lock; removed when dropped.
#[derive(Debug)]
pub(super) struct StageDir {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    #[expect(dead_code, reason = "held for its lock, until the directory is removed")]
    lock: File,
}

impl StageDir {
    /// `None` if a sweeper took the new directory for a dead program's: that can happen until the lock is
    /// ours.
    pub(super) fn create(root: &Path, overlay: &Path) -> Result<Option<Self>, StoreError> {
        let name = format!("{PREFIX}{:016x}", rand::random::<u64>());
        let path = root.join(&name);
        match Self::create_as(name, path.clone(), overlay) {
            Err(_) if !path.exists() => Ok(None),
            Err(error) => {
                // Nothing but the lock can be in it. What stays is a dead program's stage to the next run.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
                Err(error)
            }
            created => created,
        }
    }

    fn create_as(name: String, path: PathBuf, overlay: &Path) -> Result<Option<Self>, StoreError> {
        if !atomic_file::create_dir(&path, 0o700)? {
            return Ok(None);
        }
        copy_label(overlay, &path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(io_error("open", &path))?;
        let Some(lock) = lock::try_exclusive(&path.join(LOCK))? else {
            return Ok(None);
        };
        let links = lock
            .metadata()
            .map_err(io_error("examine the lock in", &path))?
            .nlink();
        if links == 0 {
            return Ok(None);
        }
        LIVE.fetch_add(1, Ordering::AcqRel);
        Ok(Some(Self { name, path, fd, lock }))
    }
}

impl Drop for StageDir {
    fn drop(&mut self) {
        if let Err(error) = remove_stage(&self.fd, &self.path) {
            tracing::warn!(stage = %self.path.display(), %error, "cannot remove the stage");
        }
        LIVE.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Stages whose programs are gone, and how many bytes of the disk each takes. Writes nothing.
pub(super) fn dead(root: &Path) -> Vec<(PathBuf, u64)> {
    let stages = stages(root).filter(|path| lock::is_free(&path.join(LOCK)));
    stages.map(|path| (path.clone(), used_bytes(path))).collect()
}

fn stages(root: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let is_stage = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
    };
    entries.filter(is_stage).map(|entry| entry.path())
}

/// What cannot be read counts as nothing.
fn used_bytes(path: PathBuf) -> u64 {
    let (mut bytes, mut linked, mut pending) = (0, HashSet::new(), vec![path]);
    while let Some(path) = pending.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| entry.path()));
        }
        if metadata.nlink() == 1 || metadata.is_dir() || linked.insert(metadata.ino()) {
            bytes += metadata.blocks() * 512;
        }
    }
    bytes
}

/// Removes the stages whose programs are gone. What cannot be removed is left with a warning: it costs space
/// only.
pub(super) fn sweep(root: &Path) {
    for path in stages(root) {
        let swept = (|| -> Result<bool, StoreError> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(io_error("open", &path))?;
            // Made here if it is missing, so that a program which is just making this stage notices us.
            let Some(_lock) = lock::try_exclusive(&path.join(LOCK))? else {
                return Ok(false);
            };
            remove_stage(&fd, &path).map_err(io_error("remove", &path))?;
            Ok(true)
        })();
        match swept {
            Ok(true) => {
                tracing::info!(stage = %path.display(), "removed the stage of a program that was killed")
            }
            Ok(false) => tracing::debug!(stage = %path.display(), "left the stage of a running program"),
            Err(error) => {
                tracing::warn!(stage = %path.display(), %error, "cannot remove the stage of a program that was killed")
            }
        }
    }
}

/// Removes a stage whose lock we hold; the lock last, so that a sweeper who is killed too leaves a stage.
fn remove_stage(fd: &OwnedFd, path: &Path) -> Result<(), std::io::Error> {
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b".." | b"lock") {
            remove_tree::tree(fd.as_fd(), name)?;
        }
    }
    fs::remove_file(path.join(LOCK))?;
    fs::remove_dir(path)
}

/// Files inherit the label of the directory they are made in, and keep it when they are renamed into
/// `overlay/`.
fn copy_label(from: &Path, to: &Path) -> Result<(), StoreError> {
    let mut label = vec![0; LABEL_LIMIT];
    let len = match rustix::fs::lgetxattr(from, SELINUX, &mut label) {
        Ok(len) => len,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(()),
        Err(error) => return Err(io_error("read the SELinux label of", from)(error)),
    };
    rustix::fs::lsetxattr(to, SELINUX, &label[..len], XattrFlags::empty())
        .map_err(io_error("set the SELinux label of", to))
}
