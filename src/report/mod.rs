//! What people and machines see of a run: events, log lines, bars, the report file, the termination message.
//!
//! Whoever does the work says what happens, as an [`Event`] to an [`Observer`]; he knows nothing of who listens:
//!
//! ```text
//! fetch, store, job ── Event ──→ Fanout ─┬→ Recorder ─→ Report ─→ report file, termination message, summary
//!                                        ├→ Journal  ─→ a log line for each thing worth one
//!                                        └→ Bars, or Lines every few seconds
//! ```
//!
//! Strings come without secrets; they are only made harmless for a terminal here.

mod event;
mod printable;
mod size;

pub use event::{Event, Fanout, ImageSource, ImageState, Observer, Step};
pub use printable::Printable;
pub use size::{Size, Span};

/// `apiVersion` of every document that this program writes.
pub const API_VERSION: &str = "spoke-precache/v1";
