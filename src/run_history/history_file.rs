//! Reads and replaces the history's file, never follows a link there, and never blocks on a FIFO.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::error::{DamagedHistory, HistoryError};
use super::{LIMIT, RunHistory};

/// The file's name in the spool's directory.
const NAME: &str = "history.json";

/// Its name until it is complete. One is enough, because the directory is locked meanwhile.
const TEMPORARY: &str = ".history.json.tmp";

/// How long a change waits for the lock of the directory, which others hold for milliseconds. Less than what remains of
/// the second in which a stopped run ends.
const LOCK_PATIENCE: Duration = Duration::from_millis(150);

/// How often it tries.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// A changed history, which survives the death of the process.
#[must_use]
pub(super) struct Changed {
    history: HistoryFile,
    directory: File,
    file: File,
}

impl Changed {
    /// Makes it survive a power loss too, which may take seconds on a busy disk.
    pub(super) fn sync(&self) -> Result<(), HistoryError> {
        let synced = self.file.sync_all().and_then(|()| self.directory.sync_all());
        synced.map_err(self.history.failed_to("write"))
    }
}

/// The file in a spool's directory.
#[derive(Clone, Debug)]
pub struct HistoryFile {
    directory: PathBuf,
}

impl HistoryFile {
    /// The file in this directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Where it is.
    pub fn path(&self) -> PathBuf {
        self.directory.join(NAME)
    }

    /// The runs that the file has; none if it or its directory does not exist.
    pub fn read(&self) -> Result<RunHistory, HistoryError> {
        match self.open_directory() {
            Ok(directory) => self.read_in(&directory),
            Err(HistoryError::NoDirectory { .. }) => Ok(RunHistory::default()),
            Err(error) => Err(error),
        }
    }

    /// Changes the history. One that is damaged is replaced.
    pub(super) fn change(&self, change: impl FnOnce(&mut RunHistory)) -> Result<Changed, HistoryError> {
        let directory = self.open_directory()?;
        self.lock(&directory)?;
        let mut history = match self.read_in(&directory) {
            Ok(history) => history,
            Err(error @ HistoryError::Damaged { .. }) => {
                tracing::warn!("a new history of runs is started: {error}");
                RunHistory::default()
            }
            Err(error) => return Err(error),
        };
        change(&mut history);
        let written = replace(&directory, history.bounded_json().as_bytes());
        let file = written.map_err(self.failed_to("write"))?;
        directory.unlock().map_err(self.failed_to("write"))?;
        Ok(Changed {
            history: self.clone(),
            directory,
            file,
        })
    }

    fn open_directory(&self) -> Result<File, HistoryError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::open(&self.directory, flags, Mode::empty()) {
            Ok(directory) => Ok(File::from(directory)),
            Err(Errno::NOENT) => Err(HistoryError::NoDirectory {
                path: self.directory.clone(),
            }),
            Err(error) => Err(self.failed_to("read")(error.into())),
        }
    }

    fn lock(&self, directory: &File) -> Result<(), HistoryError> {
        let began = Instant::now();
        loop {
            match directory.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) => return Err(self.failed_to("write")(error)),
                Err(TryLockError::WouldBlock) if began.elapsed() < LOCK_PATIENCE => {
                    thread::sleep(LOCK_INTERVAL);
                }
                Err(TryLockError::WouldBlock) => return Err(HistoryError::Locked { path: self.path() }),
            }
        }
    }

    fn read_in(&self, directory: &File) -> Result<RunHistory, HistoryError> {
        let damaged = |source| HistoryError::Damaged {
            path: self.path(),
            source,
        };
        // Without NONBLOCK, opening a FIFO would block forever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(directory, NAME, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(RunHistory::default()),
            // A symbolic link, or a socket.
            Err(Errno::LOOP | Errno::NXIO) => return Err(damaged(DamagedHistory::NotAFile)),
            Err(error) => return Err(self.failed_to("read")(error.into())),
        };
        let is_file = file.metadata().map_err(self.failed_to("read"))?.is_file();
        if !is_file {
            return Err(damaged(DamagedHistory::NotAFile));
        }
        let mut bytes = Vec::new();
        let read = file.take(LIMIT as u64 + 1).read_to_end(&mut bytes);
        read.map_err(self.failed_to("read"))?;
        RunHistory::parse(&bytes).map_err(damaged)
    }

    fn failed_to(&self, what: &'static str) -> impl Fn(io::Error) -> HistoryError {
        let path = self.path();
        move |source| HistoryError::Io {
            what,
            path: path.clone(),
            source,
        }
    }
}

/// Writes a temporary file and renames it; the directory is locked.
fn replace(directory: &File, bytes: &[u8]) -> io::Result<File> {
    let remove = || rustix::fs::unlinkat(directory, TEMPORARY, AtFlags::empty());
    // A killed run may have left its file.
    match remove() {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let created = rustix::fs::openat(directory, TEMPORARY, flags, Mode::RUSR | Mode::WUSR)?;
    let mut file = File::from(created);
    let renamed = file.write_all(bytes).and_then(|()| {
        rustix::fs::renameat(directory, TEMPORARY, directory, NAME)?;
        Ok(())
    });
    match renamed {
        Ok(()) => Ok(file),
        Err(error) => {
            // The first error is the one to report, and the next change removes the file.
            let _ = remove();
            Err(error)
        }
    }
}
