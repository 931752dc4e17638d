//! The report on disk: whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::Report;

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// Nowhere to put it. The directory is not created: in a container it would be lost with the container.
    #[error("cannot write the report `{}`: its directory does not exist", .0.display())]
    NoDirectory(PathBuf),
    /// Writing failed.
    #[error("cannot write the report `{}`", path.display())]
    Write {
        /// Where to.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

impl Report {
    /// The report as JSON, with a line end.
    pub fn json(&self) -> String {
        let mut json =
            serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise");
        json.push('\n');
        json
    }

    /// Writes the JSON to `path`: beside it first, then renamed, so that a reader sees the report of before or this one,
    /// also after a power loss. What is no regular file, say a pipe or `/dev/stderr`, is written to as it is.
    pub fn write(&self, path: &Path) -> Result<(), ReportError> {
        let failed = |source| ReportError::Write {
            path: path.to_owned(),
            source,
        };
        let json = self.json();
        if fs::metadata(path).is_ok_and(|target| !target.is_file() && !target.is_dir()) {
            let mut target = OpenOptions::new().write(true).open(path).map_err(failed)?;
            return target.write_all(json.as_bytes()).map_err(failed);
        }
        let Some(name) = path.file_name() else {
            return Err(failed(io::ErrorKind::IsADirectory.into()));
        };
        let directory = match path.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        if !directory.is_dir() {
            return Err(ReportError::NoDirectory(path.to_owned()));
        }
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".tmp-{}", std::process::id()));
        let temporary = directory.join(temporary);
        replace(path, &temporary, directory, json.as_bytes()).map_err(|error| {
            // The first error is the one to tell; what is left over is overwritten by the next attempt.
            let _ = fs::remove_file(&temporary);
            failed(error)
        })
    }
}

fn replace(path: &Path, temporary: &Path, directory: &Path, content: &[u8]) -> io::Result<()> {
    // In a container the process id is 1 each time: a run that was killed here has left its file. Created anew, never
    // opened, so that nobody can have put a link there.
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => (),
    }
    let mut file = File::create_new(temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(temporary, path)?;
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::symlink;

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

        report().write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), report().json());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
    }

    #[test]
    fn a_missing_directory_has_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("no/report.json");
        let error = report().write(&path).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "cannot write the report `{}`: its directory does not exist",
                path.display()
            )
        );
    }

    #[test]
    fn a_directory_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        fs::create_dir(&path).unwrap();
        assert!(matches!(report().write(&path), Err(ReportError::Write { .. })));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
    }

    #[test]
    fn a_device_stays_a_device() {
        report().write(Path::new("/dev/null")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
