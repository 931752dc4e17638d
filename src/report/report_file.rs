//! Writes the report and other result files to disk, each whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Report;

/// Why a document could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The directory is missing. It is not created: in a container it would be lost with the container.
    #[error("cannot write the {what} `{}`: its directory does not exist", path.display())]
    NoDirectory {
        /// What it is.
        what: &'static str,
        /// Where to.
        path: PathBuf,
    },
    /// Writing failed.
    #[error("cannot write the {what} `{}`: {source}", path.display())]
    Write {
        /// What it is.
        what: &'static str,
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A temporary file that is older belongs to a run that was killed in the milliseconds of writing it.
const STALE: Duration = Duration::from_secs(3600);

impl WriteError {
    /// The error of the system, if there is one.
    fn source(&self) -> Option<&io::Error> {
        match self {
            Self::NoDirectory { .. } => None,
            Self::Write { source, .. } => Some(source),
        }
    }

    /// True when the file system, or a quota on it, is full.
    pub fn is_no_space(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        let kind = self.source().map(io::Error::kind);
        matches!(kind, Some(StorageFull | QuotaExceeded))
    }

    /// True when the disk fails.
    pub fn is_broken_disk(&self) -> bool {
        self.source().and_then(io::Error::raw_os_error) == Some(libc::EIO)
    }
}

impl Report {
    /// The report as JSON, with a line end.
    pub fn json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise");
        json.push('\n');
        json
    }

    /// Writes the JSON to `path`, as [`OutputFile::write`] does.
    pub fn write(&self, path: &Path) -> Result<(), WriteError> {
        OutputFile::at(path, REPORT).write(&self.json())
    }
}

/// The report's name in messages.
const REPORT: &str = "report";

/// A file to write whole or not at all.
#[derive(Clone, Copy, Debug)]
pub struct OutputFile<'a> {
    path: &'a Path,
    /// Its name in messages.
    what: &'static str,
}

impl<'a> OutputFile<'a> {
    /// The file at `path`, which messages call `what`.
    pub fn at(path: &'a Path, what: &'static str) -> Self {
        Self { path, what }
    }

    /// Writes a temporary file and renames it, so that a reader sees the previous content or the new one, also after a power
    /// loss. A path that is no regular file, such as a pipe or `/dev/stderr`, is written to directly.
    pub fn write(&self, text: &str) -> Result<(), WriteError> {
        match self.method()? {
            WriteMethod::Direct => OpenOptions::new()
                .write(true)
                .open(self.path)
                .and_then(|mut target| target.write_all(text.as_bytes()))
                .map_err(self.failed()),
            WriteMethod::Replace { temporary, directory } => {
                write_temporary(&temporary, text.as_bytes())
                    .and_then(|()| fs::rename(&temporary, self.path))
                    .and_then(|()| File::open(&directory)?.sync_all())
                    .map_err(|error| {
                        // The first error is the one to report. The next attempt overwrites a temporary file that stays.
                        let _ = fs::remove_file(&temporary);
                        self.failed()(error)
                    })
            }
        }
    }

    /// Checks whether the file can be written, before hours of work rather than after them.
    pub fn check_writable(&self) -> Result<(), WriteError> {
        if let WriteMethod::Replace { temporary, directory } = self.method()? {
            remove_stale(self.path, &directory);
            write_temporary(&temporary, b"")
                .and_then(|()| fs::remove_file(&temporary))
                .map_err(self.failed())?;
        }
        Ok(())
    }

    fn method(&self) -> Result<WriteMethod, WriteError> {
        let target = fs::metadata(self.path).ok();
        if target
            .as_ref()
            .is_some_and(|target| !target.is_file() && !target.is_dir())
        {
            return Ok(WriteMethod::Direct);
        }
        let name = self
            .path
            .file_name()
            .filter(|_| !target.is_some_and(|target| target.is_dir()))
            .ok_or_else(|| self.failed()(io::ErrorKind::IsADirectory.into()))?;
        let directory = match self.path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        if !directory.is_dir() {
            return Err(WriteError::NoDirectory {
                what: self.what,
                path: self.path.to_owned(),
            });
        }
        let temporary = format!("{}{}", prefix(&name.to_string_lossy()), std::process::id());
        Ok(WriteMethod::Replace {
            temporary: directory.join(temporary),
            directory: directory.to_owned(),
        })
    }

    fn failed(&self) -> impl Fn(io::Error) -> WriteError {
        let (what, path) = (self.what, self.path.to_owned());
        move |source| WriteError::Write {
            what,
            path: path.clone(),
            source,
        }
    }
}

/// Checks whether a report can be written to `path`. Removes an older report: a reader could take it for the report of this
/// run if the run is killed.
pub fn remove_old_report(path: &Path) -> Result<(), WriteError> {
    let report = OutputFile::at(path, REPORT);
    report.check_writable()?;
    match report.method()? {
        WriteMethod::Direct => Ok(()),
        WriteMethod::Replace { .. } => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(report.failed()(error)),
            _ => Ok(()),
        },
    }
}

/// Removes temporary files of killed runs for `path`, as far as possible.
fn remove_stale(path: &Path, directory: &Path) {
    let Some(prefix) = path.file_name().and_then(|name| name.to_str()).map(prefix) else {
        return;
    };
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(&prefix));
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        if is_ours && age().is_some_and(|age| age > STALE) {
            // The file is small, and the next run tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The prefix of temporary files for a file of this name; the process id follows.
fn prefix(name: &str) -> String {
    format!(".{name}.tmp-")
}

/// How a file is written.
enum WriteMethod {
    /// For a pipe or a device.
    Direct,
    /// For a regular file, or a new one.
    Replace { temporary: PathBuf, directory: PathBuf },
}

fn write_temporary(temporary: &Path, content: &[u8]) -> io::Result<()> {
    // In a container the process id is always 1, so a killed run may have left its file. The file is created and never
    // opened, so that a symbolic link at the path has no effect.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    // The process has no umask.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(temporary)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::report::tests::report;

    #[test]
    fn replaces_the_old_report_and_leaves_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        fs::write(&path, "old").unwrap();
        // Left over by a run that was killed, and hostile.
        let victim = directory.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        symlink(
            &victim,
            directory
                .path()
                .join(format!(".report.json.tmp-{}", std::process::id())),
        )
        .unwrap();

        let old = std::time::SystemTime::now() - 2 * STALE;
        let forgotten = File::create(directory.path().join(".report.json.tmp-0")).unwrap();
        forgotten.set_modified(old).unwrap();

        remove_old_report(&path).unwrap();
        assert!(!path.exists(), "it is not this run's");
        report().write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), report().json());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    }

    #[test]
    fn a_missing_directory_has_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("no/report.json");
        let expected = format!(
            "cannot write the report `{}`: its directory does not exist",
            path.display()
        );
        assert_eq!(report().write(&path).unwrap_err().to_string(), expected);
        assert_eq!(remove_old_report(&path).unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        fs::create_dir(&path).unwrap();
        assert!(matches!(report().write(&path), Err(WriteError::Write { .. })));
        assert!(matches!(remove_old_report(&path), Err(WriteError::Write { .. })));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn a_device_stays_a_device() {
        report().write(Path::new("/dev/null")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
