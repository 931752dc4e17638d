//! One value of a configuration file, with where it stands.

use std::fmt;
use std::path::{Path, PathBuf};

/// A value that matters to a writer of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As text; of an option of the driver, `name=value`.
    pub(super) value: String,
    /// The key with its tables, and what it is set to.
    assignment: String,
    file: PathBuf,
}

impl Setting {
    /// The value of `key` in `file`; `shown` is how the file has it.
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
