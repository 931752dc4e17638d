//! Prints the history as a table for people.

use std::fmt::Write as _;

use super::{RunEntry, RunHistory, RunPhase};
use crate::report::{Printable, Size, Span};

/// The width of the column with the version.
const VERSION: usize = 16;

impl RunHistory {
    /// A line for each run, with its reason below it, if it has one.
    pub fn table(&self) -> String {
        let header = [
            "STARTED", "PHASE", "VERSION", "IMAGES", "RECEIVED", "TOOK", "EXIT",
        ];
        let mut table = row(&header);
        for entry in &self.history {
            table += &row(&entry.cells());
            if let Some(note) = entry.note() {
                // Writing to a String cannot fail.
                let _ = writeln!(table, "  {note}");
            }
        }
        table
    }
}

fn row(cells: &[impl AsRef<str>; 7]) -> String {
    let [start, phase, version, images, received, took, code] = cells.each_ref().map(AsRef::as_ref);
    format!(
        "{start:<20}  {phase:<9}  {version:<VERSION$}  {images:>9}  {received:>9}  {took:>11}  {code:>4}\n"
    )
}

impl RunEntry {
    fn cells(&self) -> [String; 7] {
        let images = &self.images;
        let took = self
            .complete_time
            .map(|end| Span(end.since(self.start_time)).to_string());
        let version = self.version.as_deref().unwrap_or("-");
        [
            self.start_time.to_string(),
            format!("{:?}", self.phase),
            Printable(version).to_string().chars().take(VERSION).collect(),
            format!(
                "{}/{}",
                images.present.saturating_add(images.pulled),
                images.wanted
            ),
            Size(self.bytes_fetched).to_string(),
            took.unwrap_or_else(|| "-".to_owned()),
            self.exit_code
                .map_or_else(|| "-".to_owned(), |code| code.to_string()),
        ]
    }

    fn note(&self) -> Option<String> {
        match (self.phase, &self.reason) {
            (RunPhase::Pulling, _) => Some("at work, or killed since".to_owned()),
            (_, reason) => reason.as_ref().map(|reason| Printable(reason).to_string()),
        }
    }
}
