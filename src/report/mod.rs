//! What people and machines see of a run: events, log lines, bars, the report file, the termination message.
//!
//! Whoever does the work says what happens, as an [`Event`] to an [`Observer`]; he knows nothing of who listens:
//!
//! ```text
//! fetch, store, job ── Event ──→ Fanout ──→ Recorder ─→ Report ─→ report file, termination message, summary
//! ```
//!
//! Strings come without secrets; they are only made harmless for a terminal here.

mod conditions;
mod document;
mod event;
mod file;
mod printable;
mod recorder;
mod size;
mod summary;
mod termination;
mod time;

#[cfg(test)]
mod tests;

pub use conditions::{Condition, Status};
pub use document::{ImageReport, Phase, Report, Totals};
pub use event::{Event, Fanout, ImageSource, ImageState, Observer, Step};
pub use file::ReportError;
pub use printable::Printable;
pub use recorder::Recorder;
pub use size::{Size, Span};
pub use time::Time;

/// `apiVersion` of every document that this program writes.
pub const API_VERSION: &str = "spoke-precache/v1";
