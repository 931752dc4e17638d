//! Defines the names of the files of a blob in the spool: whole, partial, ranges and journals.
//!
//! ```text
//! sha256:<hex>                       whole
//! sha256:<hex>.partial               the first bytes             sha256:<hex>.journal               their journal
//! sha256:<hex>.from-<n>.partial      a range from byte n on      sha256:<hex>.from-<n>.journal      its journal
//! ```

use std::fmt;
use std::str::FromStr;

use crate::oci::{Digest, DigestError};

const PARTIAL: &str = ".partial";
const JOURNAL: &str = ".journal";
const FROM: &str = ".from-";

/// The names of the files with one range of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileNames {
    pub(super) blob: Digest,
    /// The offset in the blob of the range's first byte.
    pub(super) start: u64,
}

impl FileNames {
    /// The names of the first range.
    pub(super) fn first(blob: &Digest) -> Self {
        Self {
            blob: *blob,
            start: 0,
        }
    }

    /// The file with the bytes.
    pub(super) fn partial(&self) -> String {
        format!("{self}{PARTIAL}")
    }

    /// The file with their journal.
    pub(super) fn journal(&self) -> String {
        format!("{self}{JOURNAL}")
    }

    /// The range whose bytes have this file name.
    pub(super) fn of_partial(name: &str) -> Option<Self> {
        name.strip_suffix(PARTIAL)?.parse().ok()
    }

    /// The range whose journal has this file name.
    pub(super) fn of_journal(name: &str) -> Option<Self> {
        name.strip_suffix(JOURNAL)?.parse().ok()
    }
}

impl fmt::Display for FileNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.start {
            0 => self.blob.fmt(f),
            start => write!(f, "{}{FROM}{start}", self.blob),
        }
    }
}

impl FromStr for FileNames {
    type Err = DigestError;

    /// Accepts only the exact text that [`Display`](fmt::Display) writes, so that a range has one name.
    fn from_str(text: &str) -> Result<Self, DigestError> {
        let names = text.split_once(FROM).and_then(|(blob, start)| {
            let (blob, start) = (blob.parse().ok()?, start.parse().ok()?);
            Some(Self { blob, start }).filter(|names| names.to_string() == text)
        });
        match names {
            Some(names) => Ok(names),
            None => Ok(Self::first(&text.parse()?)),
        }
    }
}

/// The name of a whole blob.
pub(super) fn whole(digest: &Digest) -> String {
    digest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_has_one_name() {
        let blob = Digest::of(b"");
        for start in [0, 1, 1 << 40, u64::MAX] {
            let names = FileNames { blob, start };
            assert_eq!(FileNames::of_partial(&names.partial()), Some(names));
            assert_eq!(FileNames::of_journal(&names.journal()), Some(names));
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
