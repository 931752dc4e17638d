//! Makes a file name or path safe to print: control characters escaped, cut to a readable length.

use std::fmt;

/// A name for messages: escaped, and cut to a readable length.
#[derive(Clone, PartialEq, Eq)]
pub struct EscapedName(Vec<u8>);

/// The longest name in a message; a path may have 4096 bytes, a hostile name any number.
const SHOWN: usize = 300;

impl EscapedName {
    /// Keeps the bytes that may be shown.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes[..bytes.len().min(SHOWN + 1)].to_vec())
    }
}

impl fmt::Display for EscapedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0[..self.0.len().min(SHOWN)].utf8_chunks() {
            for char in chunk.valid().chars() {
                match char {
                    '`' | '\\' => write!(f, "\\{char}")?,
                    char if char.is_control() => write!(f, "{}", char.escape_default())?,
                    char => write!(f, "{char}")?,
                }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        f.write_str(if self.0.len() > SHOWN { "…" } else { "" })
    }
}

impl fmt::Debug for EscapedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{self}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_any_bytes() {
        assert_eq!(
            EscapedName::new(b"a\n`b\xff\xc3\xa4").to_string(),
            "a\\n\\`b\\xff\u{e4}"
        );
        assert_eq!(
            EscapedName::new(&[b'x'; 5000]).to_string().chars().count(),
            SHOWN + 1
        );
    }
}
