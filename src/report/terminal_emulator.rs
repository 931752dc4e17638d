//! Emulates a terminal for tests: applies the escape sequences of [`super::terminal::Terminal`] and returns the visible text.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A screen without a bottom or a right edge.
#[derive(Clone, Default)]
pub(super) struct Emulator(Arc<Mutex<Cells>>);

#[derive(Default)]
struct Cells {
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    sequence: Option<String>,
}

impl Emulator {
    pub(super) fn text(&self) -> String {
        let cells = self.0.lock().expect("no test panics while it writes");
        let rows = cells
            .rows
            .iter()
            .map(|row| row.iter().collect::<String>().trim_end().to_owned());
        let mut text = rows.collect::<Vec<_>>().join("\n");
        text.truncate(text.trim_end().len());
        text + "\n"
    }
}

impl Write for Emulator {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut cells = self.0.lock().expect("no test panics while it writes");
        for character in String::from_utf8_lossy(bytes).chars() {
            cells.take(character);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Cells {
    fn take(&mut self, character: char) {
        if let Some(mut sequence) = self.sequence.take() {
            match character {
                'A'..='D' | 'K' => self.apply(sequence.trim_start_matches('['), character),
                _ => {
                    sequence.push(character);
                    self.sequence = Some(sequence);
                }
            }
            return;
        }
        match character {
            '\x1b' => self.sequence = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => (self.row, self.column) = (self.row + 1, 0),
            _ => {
                while self.rows.len() <= self.row {
                    self.rows.push(Vec::new());
                }
                let row = &mut self.rows[self.row];
                while row.len() <= self.column {
                    row.push(' ');
                }
                row[self.column] = character;
                self.column += 1;
            }
        }
    }

    fn apply(&mut self, number: &str, command: char) {
        let by: usize = number.parse().expect("`Terminal` writes numbers");
        match command {
            'A' => self.row = self.row.saturating_sub(by),
            'B' => self.row += by,
            'C' => self.column += by,
            'D' => self.column = self.column.saturating_sub(by),
            _ => {
                if let Some(row) = self.rows.get_mut(self.row) {
                    row.clear();
                }
            }
        }
    }
}
