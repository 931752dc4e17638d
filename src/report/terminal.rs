//! What the bars are drawn on: escape sequences on standard error.
//!
//! indicatif can draw on terminals by itself, but not on a stream that is only said to be one (`--progress always`),
//! and it panics in the middle of a log line when the terminal has gone. This one
//! never fails, and it ends each row itself instead of trusting that the terminal wraps at the width it was told.

use std::fmt;
use std::io;
use std::sync::{Mutex, PoisonError};

use indicatif::TermLike;

use super::console::Out;

/// Rows and columns where nobody says.
const SIZE: (u16, u16) = (24, 100);

/// Draws with the sequences that every terminal since the VT100 knows.
pub(super) struct Terminal {
    out: Out,
    /// Rows and columns now.
    size: fn() -> (u16, u16),
    /// Where the next character goes. At the width, it goes to the next row.
    column: Mutex<usize>,
}

impl Terminal {
    /// Redraws per second; indicatif's own choice for terminals.
    pub(super) const REFRESH: u8 = 20;

    pub(super) fn new(out: Out) -> Self {
        Self {
            out,
            size: size_of_stderr,
            column: Mutex::new(0),
        }
    }

    fn write(&self, text: &str) -> io::Result<()> {
        let width = usize::from(self.width());
        let mut column = self.column.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wrapped = String::with_capacity(text.len());
        for character in text.chars() {
            if *column >= width {
                wrapped.push_str("\r\n");
                *column = 0;
            }
            wrapped.push(character);
            // Bars are ASCII.
            *column += 1;
        }
        self.control(&wrapped)
    }

    /// A terminal that has gone or a log on a full disk must not end the run; there is nobody to tell either.
    fn control(&self, sequence: &str) -> io::Result<()> {
        let _ = self.out.write(sequence.as_bytes());
        Ok(())
    }

    fn move_cursor(&self, by: usize, direction: char) -> io::Result<()> {
        match by {
            // To a terminal, 0 means 1.
            0 => Ok(()),
            by => self.control(&format!("\x1b[{by}{direction}")),
        }
    }
}

fn size_of_stderr() -> (u16, u16) {
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
        *self.column.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.control("\r\n")
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.write(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        *self.column.lock().unwrap_or_else(PoisonError::into_inner) = 0;
        self.control("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let _ = self.out.flush();
        Ok(())
    }
}

#[cfg(test)]
impl Terminal {
    /// 24 rows of 100 columns, whatever the tests run on.
    pub(super) fn fixed(out: Out) -> Self {
        Self {
            out,
            size: || SIZE,
            column: Mutex::new(0),
        }
    }
}
