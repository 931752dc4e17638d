//! Creates and removes the directory of a stage, and detects by its lock whether the run that made it is alive.

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
use super::layout::Layout;
use super::{atomic_file, lock, tree_removal, unrecorded};
use crate::write_back::WriteQueue;

/// The prefix of stage names.
const PREFIX: &str = ".spoke-precache-stage-";

/// The lock of a stage.
const LOCK: &str = "lock";

/// The attribute that holds an SELinux label.
const SELINUX: &str = "security.selinux";

/// The longest SELinux label that is copied.
const LABEL_LIMIT: usize = 4096;

/// Number of stages of this process whose directories exist.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// How often the number of stages is checked.
const POLL: Duration = Duration::from_millis(5);

/// Waits up to `patience` until threads have removed their staged layers. The next run removes the rest.
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
    /// Writes the files of the stage's layers before they are synced.
    pub(super) write_queue: WriteQueue,
    #[expect(dead_code, reason = "held for its lock, until the directory is removed")]
    lock: File,
}

impl StageDir {
    /// `None` if another run took the new directory for a dead stage, which can happen until its lock is taken.
    pub(super) fn create(
        root: &Path,
        overlay: &Path,
        write_queue: &WriteQueue,
    ) -> Result<Option<Self>, StoreError> {
        let name = format!("{PREFIX}{:016x}", rand::random::<u64>());
        let path = root.join(&name);
        match Self::create_as(name, path.clone(), overlay, write_queue) {
            Err(_) if !path.exists() => Ok(None),
            Err(error) => {
                // It contains at most the lock. If it cannot be removed, the next run treats it as a dead stage.
                let _ = fs::remove_file(path.join(LOCK));
                let _ = fs::remove_dir(&path);
                Err(error)
            }
            created => created,
        }
    }

    fn create_as(
        name: String,
        path: PathBuf,
        overlay: &Path,
        write_queue: &WriteQueue,
    ) -> Result<Option<Self>, StoreError> {
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
        let write_queue = write_queue.clone();
        Ok(Some(Self {
            name,
            path,
            fd,
            write_queue,
            lock,
        }))
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

/// Stages of dead runs, with the bytes that each takes on the disk. Writes nothing.
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

/// Files that cannot be read count as empty.
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

/// Removes the stages of dead runs, and what these runs moved into the store without recording it. A failure is
/// logged as a warning: it costs space only.
pub(super) fn sweep(layout: &Layout) {
    for path in stages(layout.root()) {
        let swept = (|| -> Result<bool, StoreError> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(io_error("open", &path))?;
            // Created if it is missing, so that a run that is just creating this stage notices.
            let Some(_lock) = lock::try_exclusive(&path.join(LOCK))? else {
                return Ok(false);
            };
            if !unrecorded::remove(layout, &fd, &path)? {
                // The notes stay for a later run.
                empty_stage(&fd, unrecorded::is_note).map_err(io_error("empty", &path))?;
                return Ok(false);
            }
            remove_stage(&fd, &path).map_err(io_error("remove", &path))?;
            Ok(true)
        })();
        match swept {
            Ok(true) => {
                tracing::info!(stage = %path.display(), "removed the stage of a killed run")
            }
            Ok(false) => tracing::debug!(stage = %path.display(), "kept a stage that is in use"),
            Err(error) => {
                tracing::warn!(stage = %path.display(), %error, "cannot remove the stage of a killed run")
            }
        }
    }
}

/// Removes a stage whose lock we hold. The lock file is removed last, so that an interrupted removal still leaves a
/// stage.
fn remove_stage(fd: &OwnedFd, path: &Path) -> Result<(), std::io::Error> {
    empty_stage(fd, |_| false)?;
    fs::remove_file(path.join(LOCK))?;
    fs::remove_dir(path)
}

/// Removes everything from a stage but the lock and what is kept.
fn empty_stage(fd: &OwnedFd, is_kept: impl Fn(&str) -> bool) -> Result<(), std::io::Error> {
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_kept = name.to_str().is_ok_and(&is_kept);
        if !is_kept && !matches!(name.to_bytes(), b"." | b".." | b"lock") {
            tree_removal::remove_tree(fd.as_fd(), name)?;
        }
    }
    Ok(())
}

/// Copies the SELinux label: files inherit the label of the directory in which they are created, and keep it when
/// they are renamed into `overlay/`.
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
