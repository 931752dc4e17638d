//! Ends the process: writes the report and the termination message, prints the result, and exits with the code that
//! `exit_code` chooses.
//!
//! # Invariant
//!
//! One thread ends the process, the first that wants to: the main thread, or another one if the main thread hangs or
//! panics. Each step of that may hang too, for example on a pipe that is not read, so only the main thread does it without a
//! time limit.

use std::io::{self, Write as _};
use std::panic;
use std::path::Path;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use jiff::Timestamp;

use spoke_precache::cancel::{Cancel, Stopped};
use spoke_precache::cli::OutputForm;
use spoke_precache::cluster::ClusterReporter;
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::{Mode, Outcome};
use spoke_precache::plan::{PlanDocument, UpgradeOutlook};
use spoke_precache::registry::LimitSettings;
use spoke_precache::report::{Console, Event, Observer as _, Printable, Recorder, Report};
use spoke_precache::run_history::RunRecord;
use spoke_precache::settings::OutputSettings;

/// Kubernetes shows the end of this file in the pod's status.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// How long the job may take to end by itself after a stop.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// How much longer the main thread may take to write the report and exit; then another thread does both.
const REPORT_GRACE: Duration = Duration::from_millis(150);

/// How long that other thread may take; then the process exits without a report.
const REPORT_TIMEOUT: Duration = Duration::from_millis(200);

/// What is needed to report how a run ended.
pub(crate) struct ExitHandler {
    pub(crate) mode: Mode,
    /// Form of standard output.
    output: OutputForm,
    pub(crate) display: OutputSettings,
    pub(crate) console: Console,
    pub(crate) recorder: Arc<Recorder>,
    /// The rate limit, once it is known.
    pub(crate) limit: OnceLock<LimitSettings>,
    /// The Job's deadline, once it is known.
    pub(crate) job_end: OnceLock<Instant>,
    /// When the upgrade begins, once that is known to `plan`.
    pub(crate) upgrade: OnceLock<Timestamp>,
    /// Reports to the cluster, if it is reachable.
    pub(crate) cluster_reporter: OnceLock<Arc<ClusterReporter>>,
    /// Records the run in the history, if it pulls and its spool is known.
    pub(crate) record: OnceLock<RunRecord>,
    /// How the run ended, once that is certain.
    ending: OnceLock<Ending>,
    /// The exit code, once everything is reported.
    code: OnceLock<u8>,
}

impl ExitHandler {
    pub(crate) fn new(mode: Mode, output: OutputForm, display: OutputSettings, console: Console) -> Self {
        Self {
            mode,
            output,
            display,
            console,
            recorder: Arc::new(Recorder::new(Timestamp::now)),
            limit: OnceLock::new(),
            job_end: OnceLock::new(),
            upgrade: OnceLock::new(),
            cluster_reporter: OnceLock::new(),
            record: OnceLock::new(),
            ending: OnceLock::new(),
            code: OnceLock::new(),
        }
    }

    /// Reports how the run ended, and returns the exit code. A second caller waits for the end of the process, which the
    /// first caller is about to cause.
    pub(crate) fn finish(&self, ending: Ending, outcome: Option<&Outcome>) -> u8 {
        if self.ending.set(ending).is_err() {
            loop {
                thread::park();
            }
        }
        let code = match (self.report(ending, outcome), ending) {
            (Ok(()), ending) => ending.code(),
            (Err(error), Ending::Complete) => {
                log_error(&format!(
                    "every requested image is in the store, but the result cannot be reported: {error}"
                ));
                let of_disk = error.downcast_ref().and_then(Failure::of_report);
                of_disk.unwrap_or(Failure::Incomplete).code()
            }
            (Err(error), ending) => {
                log_error(&error.to_string());
                ending.code()
            }
        };
        *self.code.get_or_init(|| code)
    }

    /// Exits in place of the main thread, within [`REPORT_TIMEOUT`].
    fn exit_for_main(self: Arc<Self>, ending: Ending) -> ! {
        let (done, is_done) = mpsc::channel();
        let reporter = Arc::clone(&self);
        // Reporting may hang as well, so it has a thread of its own.
        let spawned = thread::Builder::new().spawn(move || {
            reporter.finish(ending, None);
            // The receiver no longer waits if this took too long.
            let _ = done.send(());
        });
        match spawned {
            Ok(_) => drop(is_done.recv_timeout(REPORT_TIMEOUT)),
            // Too many threads may be the reason for the panic.
            Err(_) if self.ending.get().is_none() => drop(self.finish(ending, None)),
            Err(_) => {}
        }
        let known = || match (self.ending.get(), ending) {
            // The ending that was about to be reported counts, unless reporting it has just panicked.
            (Some(known), Ending::Stopped(_)) => known.code(),
            (_, ending) => ending.code(),
        };
        std::process::exit(self.code.get().copied().unwrap_or_else(known).into())
    }

    /// Writes the report, the termination message and the history, then prints the plan or the summary. Printing is last,
    /// because standard output may be a pipe that is not read.
    fn report(&self, ending: Ending, outcome: Option<&Outcome>) -> anyhow::Result<()> {
        let end = self.job_end.get();
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if let Some((phase, why)) = ending.stop_cause(left) {
            self.recorder.observe(Event::Stopped { phase, why });
        }
        let report = self.recorder.report(ending.code());
        let meaning = match (self.mode, ending) {
            (Mode::Plan, Ending::Complete) => "the plan is complete; `run` pulls what is missing".to_owned(),
            _ => ending.meaning(left),
        };
        let written = self.display.report.as_ref().map(|path| report.write(path));
        report
            .write_termination_message(&meaning, Path::new(TERMINATION_LOG))
            .unwrap_or_else(|error| {
                tracing::warn!("cannot write `{TERMINATION_LOG}`: {error}");
                false
            });
        if let Some(record) = self.record.get() {
            let resolved = outcome.map(Outcome::resolved_ids).unwrap_or_default();
            record.end(&report, &resolved, matches!(ending, Ending::Stopped(_)));
        }
        let text = self.text(&report, &meaning, outcome)?;
        self.console.end_progress();
        let printed = print(&text);
        written.transpose()?;
        printed
    }

    /// Whether the plan can be pulled before the upgrade, if the input says when that begins.
    fn upgrade_outlook(&self, outcome: &Outcome) -> Option<UpgradeOutlook> {
        let limit = self.limit.get().cloned().unwrap_or_default();
        let (bytes, at) = (outcome.plan.totals.bytes_to_fetch, *self.upgrade.get()?);
        Some(UpgradeOutlook::new(bytes, at, &limit, Timestamp::now()))
    }

    fn text(&self, report: &Report, meaning: &str, outcome: Option<&Outcome>) -> anyhow::Result<String> {
        Ok(match (self.mode, outcome, self.output) {
            (Mode::Plan, Some(outcome), OutputForm::Text) => {
                let space = outcome
                    .space_check
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let limit = self.limit.get().cloned().unwrap_or_default();
                let now = Timestamp::now();
                let manifests = outcome.manifests.as_ref();
                let table = outcome
                    .plan
                    .table(&outcome.operators, manifests, &space, &limit, now);
                let unused = outcome.only_used.as_ref().map(|it| it.line() + "\n");
                let upgrade = self.upgrade_outlook(outcome).map(|it| format!("{it}\n"));
                table + &upgrade.unwrap_or_default() + &unused.unwrap_or_default() + &report.warned()
            }
            (Mode::Plan, Some(outcome), OutputForm::Json) => {
                serde_json::to_string_pretty(&PlanDocument::new(
                    &outcome.plan,
                    &outcome.operators,
                    outcome.manifests.as_ref(),
                    outcome.space_check.as_ref(),
                    outcome.only_used.as_ref(),
                    self.limit.get().and_then(|limit| limit.report(Timestamp::now())),
                    self.upgrade_outlook(outcome),
                ))?
            }
            (_, _, OutputForm::Text) => report.summary(meaning),
            (_, _, OutputForm::Json) => report.json(),
        })
    }
}

/// Exits in place of the main thread if that has not exited in time. A thread waits for the stop and not a task: a log that
/// is not read, for example, may block the main thread and every thread of the runtime.
pub(crate) fn exit_if_main_hangs(exit: &Arc<ExitHandler>, cancel: &Cancel) {
    let (exit, cancel) = (Arc::clone(exit), cancel.clone());
    let watchdog = thread::Builder::new().name("watchdog".to_owned()).spawn(move || {
        let Stopped(reason) = futures::executor::block_on(cancel.stopped());
        thread::sleep(GRACE + REPORT_GRACE);
        exit.exit_for_main(Ending::Stopped(reason));
    });
    if let Err(error) = watchdog {
        tracing::warn!("a stop may take longer than a second: {error}");
    }
}

/// From now on a panic of the main thread ends the process, after the usual message. Unwinding might wait for ever: for
/// threads of the runtime, or for a lock that the panicking call holds.
pub(crate) fn exit_after_panics(exit: &Arc<ExitHandler>) {
    let (exit, main, print_panic) = (Arc::clone(exit), thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        print_panic(panic);
        if thread::current().id() == main {
            Arc::clone(&exit).exit_for_main(Ending::Failed(Failure::Incomplete));
        }
    }));
}

fn log_error(message: &str) {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        // The reader, such as `head`, needs no more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| anyhow!("cannot write to standard output: {error}")),
    }
}
