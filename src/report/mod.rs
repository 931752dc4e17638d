//! What people and machines see of a run: events, log lines, bars, the report file, the termination message.
//!
//! Whoever does the work says what happens, as an [`Event`] to an [`Observer`]; he knows nothing of who listens:
//!
//! ```text
//! fetch, store, job ── Event ──→ Fanout ─┬→ Recorder ─→ Report ─→ report file, termination message, summary
//!                                        ├→ Journal  ─→ a log line for each event that is worth one
//!                                        ├→ TalmLog  ─→ with `--log-format talm`, lines of TALM's scripts besides
//!                                        ├→ Bars, or Lines every few seconds       (Console decides, and joins them)
//!                                        └→ cluster: the Job's annotations, Kubernetes' events
//! ```
//!
//! Strings come without secrets; they are only made harmless for a terminal here.

mod bars;
mod conditions;
mod console;
mod document;
mod event;
mod file;
mod forecast;
mod journal;
mod lines;
mod operator;
mod printable;
mod progress;
mod rate;
mod recorder;
mod rest_time;
mod screen;
mod size;
mod summary;
mod talm;
mod termination;
mod time;
mod waits;

#[cfg(test)]
mod emulator;
#[cfg(test)]
mod tests;

pub use bars::Bars;
pub use conditions::{Condition, Status};
pub use console::{Console, LogLine, LogWriter, ProgressMode};
pub use document::{ImageReport, LimitReport, Phase, Report, Totals};
pub use event::{Event, Fanout, ImageSource, ImageState, Observer, Operation, Step};
pub use file::{WholeFile, WriteError, clear_place};
pub use journal::Journal;
pub use lines::Lines;
pub use operator::{OperatorReport, OperatorState};
pub use printable::Printable;
pub use progress::{Progress, Snapshot};
pub use recorder::Recorder;
pub use rest_time::RestTime;
pub use size::{Count, Size, Span};
pub use talm::{TalmFormat, TalmLog};
pub use time::Time;

/// `apiVersion` of every document that this program writes.
pub const API_VERSION: &str = "spoke-precache/v1";
