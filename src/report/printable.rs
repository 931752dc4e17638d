//! Makes text from registries and files safe for a terminal.
//!
//! An escape sequence in such text could rewrite the screen that shows the result.

use std::fmt::{self, Write as _};

/// Shows a text on one line: line ends and tabs as a blank, other control characters as `?`.
#[derive(Clone, Copy, Debug)]
pub struct Printable<'a>(pub &'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.trim().chars() {
            f.write_char(match character {
                '\n' | '\r' | '\t' => ' ',
                // Bidirectional control characters can change how a line reads (CVE-2021-42574).
                '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
                control if control.is_control() => '?',
                plain => plain,
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let text = Printable("500: \u{1b}[2Jboom\r\nhint: wait\u{202e}\n").to_string();
        assert_eq!(text, "500: ?[2Jboom  hint: wait?");
    }
}
