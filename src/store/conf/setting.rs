//! Defines one value of a configuration file with its key and file, for messages.

use std::fmt;
use std::path::{Path, PathBuf};

/// A value that matters for writing to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The value as text; `name=value` for an option of the driver.
    pub(super) value: String,
    /// The key with its tables, and the value, as shown in messages.
    assignment: String,
    file: PathBuf,
}

impl Setting {
    /// The value of `key` in `file`; `shown` is its text in the file.
    pub fn new(value: impl Into<String>, key: &str, shown: &str, file: &Path) -> Self {
        Self {
            value: value.into(),
            assignment: format!("{key} = {shown}"),
            file: file.to_owned(),
        }
    }
}

/// For messages, with the file.
impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` in `{}`", self.assignment, self.file.display())
    }
}
