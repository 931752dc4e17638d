//! Reports a run to people and machines: log lines, progress bars, the report file and the termination message.
//!
//! The code that does the work sends an [`Event`] to an [`Observer`] and does not know the receivers:
//!
//! ```text
//! fetch, store, job ── Event ──→ Fanout ─┬→ Recorder ─→ Report ─→ report file, termination message, summary
//!                                        ├→ EventLog ─→ a log line for each event that people should see
//!                                        ├→ TalmLog ──→ with `--log-format talm`, the lines of TALM's scripts too
//!                                        ├→ ProgressBars, or ProgressLines every few seconds     (Console chooses)
//!                                        └→ cluster: the Job's annotations, Kubernetes events
//! ```
//!
//! Strings in events contain no secrets. This module only makes them safe for a terminal.

mod bar_layout;
mod completion_estimate;
mod conditions;
mod console;
mod deadline_report;
mod event;
mod event_log;
mod human_format;
mod image_label;
mod media_report;
mod operator_report;
mod pending_reasons;
mod printable;
mod progress;
mod progress_bars;
mod progress_lines;
mod recorder;
mod remaining_time;
mod report_file;
mod run_report;
mod shared_output;
mod signature_report;
mod summary;
mod talm_log;
mod terminal;
mod termination_message;
mod timestamp;
mod transfer_rate;
mod upgrade_report;

#[cfg(test)]
mod terminal_emulator;
#[cfg(test)]
mod tests;

pub use conditions::{Condition, Status};
pub use console::{Console, LogLine, LogWriter, ProgressMode};
pub use deadline_report::{DeadlineReport, DeadlineSource, Forecast};
pub use event::{Event, Fanout, ImagePhase, Observer, Operation, RequesterKind, Step};
pub use event_log::{EventLog, ImageNames};
pub use human_format::{Count, Size, Span};
pub use image_label::ImageLabel;
pub use media_report::{MediumBytes, MediumReport};
pub use operator_report::{OperatorReport, OperatorState};
pub use printable::Printable;
pub use progress::{Progress, ProgressSnapshot};
pub use progress_bars::ProgressBars;
pub use progress_lines::ProgressLines;
pub use recorder::Recorder;
pub use remaining_time::TimeLeft;
pub use report_file::{OutputFile, WriteError, remove_old_report};
pub use run_report::{ImageReport, LimitReport, Phase, Report, ReportTotals};
pub use signature_report::{SignaturePolicyReport, SignatureReport};
pub use talm_log::{TalmFormat, TalmLog};
pub use timestamp::Time;
pub use upgrade_report::{
    Obstacle, ObstacleKind, OsImageOrigin, OsImageReport, UpgradeDisk, UpgradeImage, UpgradeReport,
    UpgradeState, Verdict,
};

/// The `apiVersion` of every document that this program writes.
pub const API_VERSION: &str = "spoke-precache/v1";
