//! Writes the container's termination message: one paragraph that `kubectl describe pod` shows after the pod has ended.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use super::{Printable, Report};

/// Bytes of a termination message that the kubelet reads (kubernetes `MaxContainerTerminationMessageLength`).
const LIMIT: usize = 4096;

/// Bytes reserved for the number of failures that do not fit.
const TAIL: usize = 32;

/// Bytes for one failure, so that the first does not displace all others.
const SHARE: usize = 600;

impl Report {
    /// At most 4096 bytes on one line; `meaning` is the meaning of the exit code.
    pub fn termination_message(&self, meaning: &str) -> String {
        let mut message = format!("{} (exit code {}: {meaning})", self.headline(), self.exit_code);
        let problems = self.problems().map(|problem| Printable(&problem).to_string());
        let failures = self
            .failures()
            .map(|(name, reason)| format!("{}: {}", Printable(&name), Printable(reason)));
        let waiting = self
            .waiting()
            .map(|(name, reason)| format!("{} waits: {}", Printable(name), Printable(reason)));
        let mut details = problems.chain(failures).chain(waiting);
        while let Some(mut detail) = details.next() {
            if detail.len() > SHARE {
                detail.truncate(detail.floor_char_boundary(SHARE - '…'.len_utf8()));
                detail.push('…');
            }
            if message.len() + "; ".len() + detail.len() > LIMIT - TAIL {
                message.push_str(&format!("; and {} more", 1 + details.count()));
                break;
            }
            message.push_str("; ");
            message.push_str(&detail);
        }
        message.truncate(message.floor_char_boundary(LIMIT));
        message
    }

    /// Writes [`Self::termination_message`] to `path` (`/dev/termination-log`) if that is a file, and returns whether it is.
    /// The file is never created: outside a pod no kubelet reads it.
    pub fn write_termination_message(&self, meaning: &str, path: &Path) -> io::Result<bool> {
        match std::fs::metadata(path) {
            Ok(target) if target.is_file() => (),
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        // The file is a bind mount and must be written in place: a rename over it fails.
        let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
        file.write_all(self.termination_message(meaning).as_bytes())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::report::tests::{failing, report};

    #[test]
    fn a_success_is_one_sentence() {
        assert_eq!(
            report().termination_message("every requested image is in the store, verified"),
            "Succeeded: all 2 images are in the store (exit code 0: every requested image is in the store, verified)"
        );
    }

    #[test]
    fn failures_are_named_on_the_same_line() {
        assert_eq!(
            failing(1, "not found\nhint: look").termination_message("some images are missing after retries"),
            "UnrecoverableError: 0 of 1 images are in the store, 1 missing \
             (exit code 1: some images are missing after retries); \
             Pull: ImagesFailed: 1 failed; example.com/image-0:v1: not found hint: look"
        );
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        for (images, reason) in [
            (100, "näh ".repeat(20)),
            (3, "ä".repeat(9000)),
            (10, "ü".repeat(299)),
        ] {
            let message = failing(images, &reason).termination_message("some images are missing");
            assert!(message.len() <= LIMIT, "{}", message.len());
            let listed = message.matches("example.com/").count();
            if listed < images {
                assert!(
                    message.ends_with(&format!("; and {} more", images - listed)),
                    "{message}"
                );
            }
            assert!(listed >= images.min(3), "{message}");
        }
        assert!(failing(1, "").termination_message(&"long ".repeat(2000)).len() <= LIMIT);
    }

    #[test]
    fn only_a_file_that_exists_is_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("termination-log");
        assert!(!report().write_termination_message("fine", &path).unwrap());
        assert!(!path.exists());
        assert!(
            !report()
                .write_termination_message("fine", directory.path())
                .unwrap()
        );

        std::fs::write(&path, "x".repeat(9000)).unwrap();
        assert!(report().write_termination_message("fine", &path).unwrap());
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            report().termination_message("fine")
        );
    }
}
