//! The names of a blob's files.
//!
//! ```text
//! sha256:<hex>                       whole
//! sha256:<hex>.partial               its first bytes             sha256:<hex>.journal               and their records
//! sha256:<hex>.from-<n>.partial      those from byte n on        sha256:<hex>.from-<n>.journal      and theirs
//! ```

use std::fmt;
use std::str::FromStr;

use crate::oci::{Digest, DigestError};

const PARTIAL: &str = ".partial";
const JOURNAL: &str = ".journal";
const FROM: &str = ".from-";

/// Which bytes a file has: a blob's, from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileNames {
    pub(super) blob: Digest,
    pub(super) from: u64,
}

impl FileNames {
    /// Of the file with the blob's first bytes.
    pub(super) fn first(blob: &Digest) -> Self {
        Self { blob: *blob, from: 0 }
    }

    /// The name of the bytes.
    pub(super) fn partial(&self) -> String {
        format!("{self}{PARTIAL}")
    }

    /// The name of their records.
    pub(super) fn journal(&self) -> String {
        format!("{self}{JOURNAL}")
    }

    /// Whose bytes bear this name.
    pub(super) fn of_partial(name: &str) -> Option<Self> {
        name.strip_suffix(PARTIAL)?.parse().ok()
    }

    /// Whose records bear this name.
    pub(super) fn of_journal(name: &str) -> Option<Self> {
        name.strip_suffix(JOURNAL)?.parse().ok()
    }
}

impl fmt::Display for FileNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            0 => self.blob.fmt(f),
            from => write!(f, "{}{FROM}{from}", self.blob),
        }
    }
}

impl FromStr for FileNames {
    type Err = DigestError;

    /// Only what is written as we write it: two names of the same bytes would be two truths.
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let stem = text.split_once(FROM).and_then(|(blob, from)| {
            let (blob, from) = (blob.parse().ok()?, from.parse().ok()?);
            Some(Self { blob, from }).filter(|stem| stem.to_string() == text)
        });
        match stem {
            Some(stem) => Ok(stem),
            None => Ok(Self::first(&text.parse()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_bytes_of_which_blob_and_has_one_form() {
        let blob = Digest::of(b"");
        for from in [0, 1, 1 << 40, u64::MAX] {
            let stem = FileNames { blob, from };
            assert_eq!(FileNames::of_partial(&stem.partial()), Some(stem));
            assert_eq!(FileNames::of_journal(&stem.journal()), Some(stem));
        }
        assert_eq!(FileNames::first(&blob).partial(), format!("{blob}.partial"));
        for other in [
            "",
            ".from-0",
            ".from-007",
            ".from--1",
            ".from-+1",
            ".from-",
            ".from-1.from-2",
        ] {
            assert_eq!(FileNames::of_partial(&format!("{blob}{other}")), None, "{other}");
            if !other.is_empty() {
                assert_eq!(
                    FileNames::of_partial(&format!("{blob}{other}.partial")),
                    None,
                    "{other}"
                );
            }
        }
    }
}
