//! Draws on a terminal with escape sequences, for the progress bars.
//!
//! indicatif can draw on terminals itself, but not on a stream that only the user calls a terminal (`--progress always`),
//! and it panics inside a log line when the terminal is closed. This type never fails, and it ends each row itself: the
//! terminal may wrap at another width than it reports. It also leaves out blanks at the end of a row. They would put the
//! cursor behind the last column, where the `^C` that a terminal echoes starts a new row, and one bar would stay visible.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;

use super::shared_output::SharedOutput;

/// Rows and columns if the stream does not report a size.
const SIZE: (u16, u16) = (24, 100);

/// Writes only sequences that every terminal since the VT100 supports.
pub(super) struct Terminal {
    out: SharedOutput,
    /// Returns the current rows and columns.
    size: fn() -> (u16, u16),
    cursor: Mutex<Cursor>,
}

/// The position in the current row.
#[derive(Default)]
struct Cursor {
    /// Column of the next character. At the width, the character goes to the next row.
    column: usize,
    /// Blanks before this column that are not written yet.
    blanks: usize,
}

impl Terminal {
    /// Redraws per second; indicatif's default for terminals.
    pub(super) const REFRESH: u8 = 20;

    pub(super) fn new(out: SharedOutput, size: fn() -> (u16, u16)) -> Self {
        Self {
            out,
            size,
            cursor: Mutex::default(),
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let width = usize::from(self.width());
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wrapped = String::with_capacity(text.len());
        for character in text.chars() {
            if cursor.column >= width {
                wrapped.push_str("\r\n");
                *cursor = Cursor::default();
            }
            if character == ' ' {
                cursor.blanks += 1;
            } else {
                wrapped.extend(std::iter::repeat_n(' ', std::mem::take(&mut cursor.blanks)));
                wrapped.push(character);
            }
            // Every character of a bar is one column wide.
            cursor.column += 1;
        }
        self.control(&wrapped)
    }

    /// Ignores errors: a closed terminal or a full disk must not end the run, and there is no other place to report them.
    fn control(&self, sequence: &str) -> io::Result<()> {
        let _ = self.out.write(sequence.as_bytes());
        Ok(())
    }

    fn move_cursor(&self, by: usize, direction: char) -> io::Result<()> {
        match by {
            // Terminals treat 0 as 1.
            0 => Ok(()),
            by => self.control(&format!("\x1b[{by}{direction}")),
        }
    }
}

/// Rows and columns of standard error.
pub(super) fn size_of_stderr() -> (u16, u16) {
    match rustix::termios::tcgetwinsize(rustix::stdio::stderr()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => (size.ws_row, size.ws_col),
        _ => SIZE,
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Terminal")
    }
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        (self.size)().1
    }

    fn height(&self) -> u16 {
        (self.size)().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.move_cursor(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write(text)?;
        *self.cursor.lock().unwrap_or_else(PoisonError::into_inner) = Cursor::default();
        self.control("\r\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.write(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        *self.cursor.lock().unwrap_or_else(PoisonError::into_inner) = Cursor::default();
        self.control("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::report::terminal_emulator::Emulator;

    #[test]
    fn rows_wrap_at_the_width_and_have_no_blanks_at_their_end() {
        let emulator = Emulator::default();
        let terminal = Terminal::new(SharedOutput::new(emulator.clone()), || (24, 6));
        terminal.write_str("a  b  ").unwrap();
        terminal.write_str("c     ").unwrap();
        // As the terminal echoes it.
        terminal.out.write(b"^C").unwrap();
        assert_eq!(emulator.text(), "a  b\nc^C\n");
    }
}
