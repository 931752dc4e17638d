//! Prints the status for people.

use std::fmt::Write as _;

use super::{CacheStatus, RequestStatus};
use crate::report::{Count, Printable};

impl CacheStatus {
    /// The table of runs, then what is missing now.
    pub fn to_text(&self) -> String {
        let file = self.history_file.display().to_string();
        if self.history.history.is_empty() {
            return format!("no run is recorded in `{}`\n", Printable(&file));
        }
        let mut text = self.history.table() + "\n";
        match &self.request {
            None => text += "Which images were requested is unknown: no recorded run has listed them.\n",
            Some(request) => request.print(&mut text),
        }
        text
    }
}

impl RequestStatus {
    fn print(&self, text: &mut String) {
        let images = Count(self.wanted, "image");
        // Writing to a String cannot fail.
        let _ = match (self.is_known, self.missing.is_empty()) {
            (true, true) => writeln!(text, "All {images} of the last version spec are in the store."),
            (true, false) => writeln!(
                text,
                "{} of {images} of the last version spec are in the store, {} missing:",
                self.present,
                self.missing.len()
            ),
            (false, _) => writeln!(
                text,
                "{} of the {images} that the last run knew are in the store. It requests more: the run ended before it \
                 had read the release and every operator catalog.",
                self.present
            ),
        };
        for image in &self.missing {
            let (name, reason) = (Printable(&image.name), Printable(&image.reason));
            let _ = writeln!(text, "  {name}\n    {reason}");
        }
    }
}
