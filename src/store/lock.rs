//! Takes the locks of layers.json and images.json, which containers/storage uses too, and announces changes to other
//! programs.
//!
//! containers/storage takes POSIX record locks over the whole file. We take open file description locks
//! (`fcntl_locking(2)`). Both kinds conflict with each other, and ours do not vanish when another descriptor of the
//! file is closed. Dropping a guard or the death of the process closes the file and releases the lock.
//!
//! Up to 1.61, containers/storage holds layers.lock while it unpacks a layer, so a wait of minutes is normal and has
//! no bound. The kernel serves a blocked waiter before one that polls. Therefore a helper thread blocks on the lock,
//! and the caller waits for the helper, for [`Cancel`] and for the next log line.
//!
//! Order: layers before images. Acquiring an [`ImagesLock`] requires a [`SharedLayersLock`]. The kernel does not
//! detect deadlocks of these locks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::error::{StoreError, io_error};
use super::layout::Layout;
use crate::cancel::{Cancel, StopReason};

/// How often a waiting caller checks [`Cancel`]: ten times in the second within which the program must exit.
const POLL: Duration = Duration::from_millis(100);

/// How often a waiting caller logs the wait.
const NOTICE: Duration = Duration::from_secs(10);

/// Length of the last-writer token. containers/storage treats another length as "always modified".
const TOKEN_LEN: usize = 64;

/// The right to change layers.json.
pub(super) struct LayersLock(File);

/// The right to rely on layers.json not changing.
pub(super) struct SharedLayersLock(#[expect(dead_code, reason = "held for its lock")] File);

/// The right to change images.json; layers.json cannot change meanwhile.
pub(super) struct ImagesLock(File);

impl LayersLock {
    pub(super) fn acquire(layout: &Layout, cancel: &Cancel) -> Result<Self, StoreError> {
        wait_for(&layout.layers().join("layers.lock"), Mode::Exclusive, cancel).map(Self)
    }

    /// Announces a change, before it is made: a death in between only makes other programs read the file once more.
    pub(super) fn write_token(&self, layout: &Layout) -> Result<(), StoreError> {
        write_token(&self.0).map_err(io_error(
            "write the token of",
            &layout.layers().join("layers.lock"),
        ))
    }
}

impl SharedLayersLock {
    pub(super) fn acquire(layout: &Layout, cancel: &Cancel) -> Result<Self, StoreError> {
        wait_for(&layout.layers().join("layers.lock"), Mode::Shared, cancel).map(Self)
    }
}

impl ImagesLock {
    pub(super) fn acquire(
        layout: &Layout,
        _order: &SharedLayersLock,
        cancel: &Cancel,
    ) -> Result<Self, StoreError> {
        wait_for(&layout.images().join("images.lock"), Mode::Exclusive, cancel).map(Self)
    }

    /// Announces a change, see [`LayersLock::write_token`].
    pub(super) fn write_token(&self, layout: &Layout) -> Result<(), StoreError> {
        write_token(&self.0).map_err(io_error(
            "write the token of",
            &layout.images().join("images.lock"),
        ))
    }
}

#[derive(Clone, Copy)]
enum Mode {
    Shared,
    Exclusive,
}

impl Mode {
    fn flock(self) -> libc::flock {
        let kind = match self {
            Self::Shared => libc::F_RDLCK,
            Self::Exclusive => libc::F_WRLCK,
        };
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            // The kernel requires 0 for open file description locks.
            l_pid: 0,
        }
    }
}

fn open(path: &Path) -> Result<File, StoreError> {
    // The standard library sets O_CLOEXEC; an inherited descriptor would keep the lock.
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o644)
        .open(path);
    opened.map_err(io_error("open the lock", path))
}

/// Takes a lock that is only held briefly; `None` if another process has it.
pub(super) fn try_exclusive(path: &Path) -> Result<Option<File>, StoreError> {
    let file = open(path)?;
    Ok(try_lock(&file, Mode::Exclusive)
        .map_err(io_error("lock", path))?
        .then_some(file))
}

/// The same, but waits for it for at most `patience`.
pub(super) fn exclusive_within(path: &Path, patience: Duration) -> Result<Option<File>, StoreError> {
    if let Some(file) = try_exclusive(path)? {
        return Ok(Some(file));
    }
    let cancel = Cancel::default();
    let timer = cancel.stop_at(Instant::now() + patience, StopReason::Deadline);
    timer.map_err(io_error("wait for the lock", path))?;
    match wait_for(path, Mode::Exclusive, &cancel) {
        Err(StoreError::Stopped { .. }) => Ok(None),
        locked => locked.map(Some),
    }
}

/// Whether the lock is free or does not exist. Neither takes nor creates it.
pub(super) fn is_free(path: &Path) -> bool {
    let Ok(file) = File::open(path) else {
        return !path.exists();
    };
    let mut found = Mode::Exclusive.flock();
    let asked = fcntl(&file, libc::F_OFD_GETLK, &mut found);
    asked.is_ok() && found.l_type == libc::F_UNLCK as libc::c_short
}

fn wait_for(path: &Path, mode: Mode, cancel: &Cancel) -> Result<File, StoreError> {
    loop {
        let file = wait_for_file(path, mode, cancel)?;
        // No program unlinks a lock file of a store in use, but the whole store may be deleted during the wait.
        let held = file.metadata().map_err(io_error("examine the lock", path))?;
        match std::fs::metadata(path) {
            Ok(named) if (named.dev(), named.ino()) == (held.dev(), held.ino()) => return Ok(file),
            Ok(_) => {
                tracing::warn!(lock = %path.display(), "the lock file was replaced during the wait, waiting again")
            }
            Err(error) => return Err(io_error("examine the lock", path)(error)),
        }
    }
}

fn wait_for_file(path: &Path, mode: Mode, cancel: &Cancel) -> Result<File, StoreError> {
    let file = open(path)?;
    if try_lock(&file, mode).map_err(io_error("lock", path))? {
        return Ok(file);
    }
    let since = Instant::now();
    let (sender, receiver) = mpsc::sync_channel(1);
    let helper = move || {
        let locked = lock(&file, mode).map(|()| file);
        // If the caller has stopped waiting, the file is closed here, which releases the lock.
        let _ = sender.send(locked);
    };
    let spawned = std::thread::Builder::new()
        .name("store-lock".into())
        .spawn(helper);
    spawned.map_err(io_error("wait for the lock", path))?;
    tracing::debug!(lock = %path.display(), holder = holder(path), "waiting for another program's lock");
    let mut notice = since + NOTICE;
    loop {
        match receiver.recv_timeout(POLL) {
            Ok(locked) => return locked.map_err(io_error("lock", path)),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io_error("wait for the lock", path)(io::Error::other(
                    "its thread died",
                )));
            }
        }
        cancel.check().map_err(|stopped| StoreError::Stopped {
            lock: PathBuf::from(path),
            stopped,
        })?;
        if Instant::now() >= notice {
            notice += NOTICE;
            let seconds = since.elapsed().as_secs();
            tracing::info!(lock = %path.display(), holder = holder(path), seconds, "still waiting for a lock");
        }
    }
}

fn try_lock(file: &File, mode: Mode) -> io::Result<bool> {
    match fcntl(file, libc::F_OFD_SETLK, &mut mode.flock()) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn lock(file: &File, mode: Mode) -> io::Result<()> {
    loop {
        match fcntl(file, libc::F_OFD_SETLKW, &mut mode.flock()) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// The holder of the lock, as far as the kernel knows it: a POSIX lock has a process, an open file description lock
/// has none.
fn holder(path: &Path) -> String {
    let mut found = Mode::Exclusive.flock();
    match File::open(path).and_then(|file| fcntl(&file, libc::F_OFD_GETLK, &mut found)) {
        Ok(()) if found.l_pid > 0 => {
            let name = std::fs::read_to_string(format!("/proc/{}/comm", found.l_pid)).unwrap_or_default();
            format!("process {} {}", found.l_pid, name.trim())
        }
        _ => "another process".to_owned(),
    }
}

fn fcntl(file: &File, command: libc::c_int, flock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is open while `file` is borrowed, and `flock` is a valid `struct flock` that the
    // kernel reads, and for F_OFD_GETLK writes, during the call only.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(flock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Writes a token with the layout of containers/storage; readers only compare the bytes:
///
/// ```text
/// u64le nanoseconds since 1970 | u64le counter | u32le process | 44 random bytes
/// ```
fn write_token(file: &File) -> io::Result<()> {
    let mut token: [u8; TOKEN_LEN] = rand::random();
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    token[..8].copy_from_slice(&(now.as_nanos() as u64).to_le_bytes());
    token[8..16].copy_from_slice(&1_u64.to_le_bytes());
    token[16..20].copy_from_slice(&std::process::id().to_le_bytes());
    file.write_all_at(&token, 0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cancel::StopReason;

    #[test]
    fn a_waiter_gets_the_lock_or_is_stopped() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path().into());
        std::fs::create_dir(layout.layers()).unwrap();
        let cancel = Cancel::default();
        let first = LayersLock::acquire(&layout, &cancel).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| LayersLock::acquire(&layout, &cancel).is_ok());
            let stopped = Cancel::default();
            stopped.stop(StopReason::Deadline);
            let refused = SharedLayersLock::acquire(&layout, &stopped);
            assert!(matches!(refused.err(), Some(StoreError::Stopped { .. })));
            drop(first);
            assert!(waiter.join().unwrap());
        });
        // The helper thread of the stopped caller releases the lock.
        let lock = LayersLock::acquire(&layout, &cancel).unwrap();
        lock.write_token(&layout).unwrap();
        assert_eq!(
            std::fs::metadata(layout.layers().join("layers.lock"))
                .unwrap()
                .len(),
            64
        );
    }

    #[test]
    fn readers_share_and_the_stray_close_of_another_descriptor_unlocks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path().into());
        std::fs::create_dir(layout.layers()).unwrap();
        let cancel = Cancel::default();
        let one = SharedLayersLock::acquire(&layout, &cancel).unwrap();
        let two = SharedLayersLock::acquire(&layout, &cancel).unwrap();
        let path = layout.layers().join("layers.lock");
        drop(std::fs::read(&path).unwrap());
        assert!(try_exclusive(&path).unwrap().is_none());
        drop((one, two));
        assert!(try_exclusive(&path).unwrap().is_some());
    }
}
