//! The last word of the process: report, termination message, standard output, and the number to leave with.
//!
//! # Invariant
//!
//! One thread leaves, the first that wants to: the main thread, or another in its place when that hangs or panics. What
//! lies on the way of leaving may hang too, such as a pipe that nobody reads, so only the main thread does without a bound.

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
use spoke_precache::plan::PlanDocument;
use spoke_precache::registry::LimitSettings;
use spoke_precache::report::{Event, Observer as _, Recorder, Report};
use spoke_precache::settings::OutputSettings;

/// Kubernetes shows the end of this file in the pod's status.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// How long the job may take to end by itself once it was told to stop.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// How much longer the main thread may take to report and leave; then another one does.
const LAST_GRACE: Duration = Duration::from_millis(150);

/// How long that other thread may take; then the process ends without a word.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What it takes to say how a run ended.
pub(crate) struct ExitHandler {
    pub(crate) mode: Mode,
    /// Form of standard output.
    output: OutputForm,
    pub(crate) display: OutputSettings,
    pub(crate) recorder: Arc<Recorder>,
    /// How much may come in a second, once that is known.
    pub(crate) limit: OnceLock<LimitSettings>,
    /// When the Job's deadline ends the run, once that is known.
    pub(crate) job_end: OnceLock<Instant>,
    /// Who tells the cluster.
    pub(crate) herald: OnceLock<Arc<ClusterReporter>>,
    /// How the run ended, once that is settled.
    ending: OnceLock<Ending>,
    /// The number to leave with, once all is said.
    code: OnceLock<u8>,
}

impl ExitHandler {
    pub(crate) fn new(mode: Mode, output: OutputForm, display: OutputSettings) -> Self {
        Self {
            mode,
            output,
            display,
            recorder: Arc::new(Recorder::new(Timestamp::now)),
            limit: OnceLock::new(),
            job_end: OnceLock::new(),
            herald: OnceLock::new(),
            ending: OnceLock::new(),
            code: OnceLock::new(),
        }
    }

    /// Says how the run ended, and gives the number to leave with. A second caller waits for the end of the process,
    /// which the first is about to bring about.
    pub(crate) fn leave(&self, ending: Ending, outcome: Option<&Outcome>) -> u8 {
        if self.ending.set(ending).is_err() {
            loop {
                thread::park();
            }
        }
        let code = match (self.say(ending, outcome), ending) {
            (Err(error), Ending::Complete) => {
                tracing::error!("all was done, but nobody can be told so: {error}");
                let of_disk = error.downcast_ref().and_then(Failure::of_report);
                of_disk.unwrap_or(Failure::Incomplete).code()
            }
            (Err(error), ending) => {
                tracing::error!("{error}");
                ending.code()
            }
            (Ok(()), ending) => ending.code(),
        };
        *self.code.get_or_init(|| code)
    }

    /// Leaves in the main thread's place, within [`LAST_WORDS`].
    fn leave_for_main(self: Arc<Self>, ending: Ending) -> ! {
        let (said, is_said) = mpsc::channel();
        let speaker = Arc::clone(&self);
        // This may hang as well, and nothing may depend on it.
        let spoken = thread::Builder::new().spawn(move || {
            speaker.leave(ending, None);
            // Nobody listens any more if it took too long.
            let _ = said.send(());
        });
        match spoken {
            Ok(_) => drop(is_said.recv_timeout(LAST_WORDS)),
            // There may be too many threads, and that may be why we are here.
            Err(_) if self.ending.get().is_none() => drop(self.leave(ending, None)),
            Err(_) => {}
        }
        let settled = || match (self.ending.get(), ending) {
            // What was about to be said holds, unless saying it has just panicked.
            (Some(settled), Ending::Stopped(_)) => settled.code(),
            (_, ending) => ending.code(),
        };
        std::process::exit(self.code.get().copied().unwrap_or_else(settled).into())
    }

    /// Writes the report and the termination message, and prints the plan or the verdict; that last, for it may go into
    /// a pipe that nobody reads.
    fn say(&self, ending: Ending, outcome: Option<&Outcome>) -> anyhow::Result<()> {
        let end = self.job_end.get();
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if let Some((phase, why)) = ending.cut(left) {
            self.recorder.observe(Event::Stopped { phase, why });
        }
        let report = self.recorder.report(ending.code());
        let meaning = ending.meaning(left);
        let written = self.display.report.as_ref().map(|path| report.write(path));
        report
            .write_termination_message(&meaning, Path::new(TERMINATION_LOG))
            .unwrap_or_else(|error| {
                tracing::warn!("cannot write `{TERMINATION_LOG}`: {error}");
                false
            });
        let text = self.text(&report, &meaning, outcome)?;
        let printed = print(&text);
        written.transpose()?;
        printed
    }

    fn text(&self, report: &Report, meaning: &str, outcome: Option<&Outcome>) -> anyhow::Result<String> {
        Ok(match (self.mode, outcome, self.output) {
            (Mode::Plan, Some(outcome), OutputForm::Text) => {
                let space = outcome
                    .verdict
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let limit = self.limit.get().cloned().unwrap_or_default();
                let now = Timestamp::now();
                let table = outcome.plan.table(&outcome.operators, &space, &limit, now);
                table + &report.warned()
            }
            (Mode::Plan, Some(outcome), OutputForm::Json) => {
                serde_json::to_string_pretty(&PlanDocument::new(
                    &outcome.plan,
                    &outcome.operators,
                    outcome.verdict.as_ref(),
                    self.limit.get().and_then(|limit| limit.report(Timestamp::now())),
                ))?
            }
            (_, _, OutputForm::Text) => report.summary(meaning),
            (_, _, OutputForm::Json) => report.json(),
        })
    }
}

/// Leaves in the main thread's place if that has not left in time; if it has, nobody is here to do anything. No task waits
/// for the stop: what holds up the main thread, such as a log that nobody reads, may hold up all of the runtime's.
pub(crate) fn leave_if_main_hangs(edge: &Arc<ExitHandler>, cancel: &Cancel) {
    let (edge, cancel) = (Arc::clone(edge), cancel.clone());
    let watchman = thread::Builder::new().name("watchman".to_owned()).spawn(move || {
        let Stopped(reason) = futures::executor::block_on(cancel.stopped());
        thread::sleep(GRACE + LAST_GRACE);
        edge.leave_for_main(Ending::Stopped(reason));
    });
    if let Err(error) = watchman {
        tracing::warn!("to stop may take long: {error}");
    }
}

/// From now on a panic of the main thread, which is said as always, ends the process. Unwinding might wait for ever: for
/// threads of the runtime, or for a lock that the panicking call holds.
pub(crate) fn leave_after_panics(edge: &Arc<ExitHandler>) {
    let (edge, main, say) = (Arc::clone(edge), thread::current().id(), panic::take_hook());
    panic::set_hook(Box::new(move |panic| {
        say(panic);
        if thread::current().id() == main {
            Arc::clone(&edge).leave_for_main(Ending::Failed(Failure::Incomplete));
        }
    }));
}

/// Prints to standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{}", text.trim_end()) {
        // Whoever was reading has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| anyhow!("cannot write to standard output: {error}")),
    }
}
