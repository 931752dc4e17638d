//! What people and machines see of a run: events, log lines, bars, the report file, the termination message.
//!
//! Whoever does the work says what happens, as an [`Event`] to an [`Observer`]; he knows nothing of who listens:
//!
//! ```text
//! fetch, store, job ── Event ──→ Fanout ─┬→ Recorder ─→ Report ─→ report file, termination message, summary
//!                                        ├→ EventLog  ─→ a log line for each event that is worth one
//!                                        ├→ TalmLog  ─→ with `--log-format talm`, lines of TALM's scripts besides
//!                                        ├→ ProgressBars, or ProgressLines every few seconds       (Console decides, and joins them)
//!                                        └→ cluster: the Job's annotations, Kubernetes' events
//! ```
//!
//! Strings come without secrets; they are only made harmless for a terminal here.

mod conditions;
mod console;
mod event;
mod event_log;
mod human_format;
mod operator_report;
mod pending_reasons;
mod printable;
mod progress;
mod progress_bars;
mod progress_lines;
mod recorder;
mod report_file;
mod run_report;
mod summary;
mod talm_log;
mod terminal;
mod termination_message;
mod time_estimate;
mod time_left;
mod timestamp;
mod transfer_rate;

#[cfg(test)]
mod terminal_emulator;
#[cfg(test)]
mod tests;

pub use conditions::{Condition, Status};
pub use console::{Console, LogLine, LogWriter, ProgressMode};
pub use event::{Event, Fanout, ImagePhase, Observer, Operation, RequesterKind, Step};
pub use event_log::EventLog;
pub use human_format::{Count, Size, Span};
pub use operator_report::{OperatorReport, OperatorState};
pub use printable::Printable;
pub use progress::{Progress, ProgressSnapshot};
pub use progress_bars::ProgressBars;
pub use progress_lines::ProgressLines;
pub use recorder::Recorder;
pub use report_file::{OutputFile, WriteError, remove_old_report};
pub use run_report::{ImageReport, LimitReport, Phase, Report, Totals};
pub use talm_log::{TalmFormat, TalmLog};
pub use time_left::TimeLeft;
pub use timestamp::Time;

/// `apiVersion` of every document that this program writes.
pub const API_VERSION: &str = "spoke-precache/v1";
