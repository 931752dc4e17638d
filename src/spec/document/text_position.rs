//! Defines the position of a value in a text, for messages.

use std::fmt;

/// The position of a value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// Counted from 1.
    pub line: u64,
    /// In characters, counted from 1.
    pub column: u64,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}
