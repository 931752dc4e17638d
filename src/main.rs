//! The edge of the process: arguments, log, runtime, signals, and the number it leaves with.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;
use jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::cli::{Cli, Command, Flags, LogFormat, OutputForm, ProgressForm};
use spoke_precache::exit::{Ending, Failure};
use spoke_precache::job::{self, JobError, Mode, Outcome};
use spoke_precache::plan::Document;
use spoke_precache::report::{
    Console, Event, Fanout, Journal, Observer, ProgressMode, Recorder, Report, Step,
};
use spoke_precache::settings::{Display, Settings};

/// Kubernetes shows the end of this file in the pod's status.
const TERMINATION_LOG: &str = "/dev/termination-log";

/// How long a run that was told to stop may take to end by itself; whoever sends SIGTERM is to see us gone within a
/// second. What is cut off is safe: the store's protocol stands a kill at any instant.
const GRACE: Duration = Duration::from_millis(700);

/// Threads for sockets; hashing and unpacking have others.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    // Modes in an image are the image's; a mask would only make each of them two calls.
    rustix::process::umask(rustix::fs::Mode::empty());
    let cli = Cli::parse();
    let (mode, flags) = match &cli.command {
        Command::Run(flags) => (Mode::Run, flags),
        Command::Plan(flags) => (Mode::Plan, flags),
        Command::Verify(flags) => (Mode::Verify, flags),
    };
    let display = match Display::resolve(flags) {
        Ok(display) => display,
        Err(error) => {
            // There is no log yet.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            return ExitCode::from(Failure::Usage.code());
        }
    };
    let console = Console::stderr(match display.progress {
        ProgressForm::Auto => ProgressMode::Auto,
        ProgressForm::Always => ProgressMode::Always,
        ProgressForm::Never => ProgressMode::Never,
    });
    start_log(&display, &console);
    let recorder = Arc::new(Recorder::new(Timestamp::now));
    let (ending, outcome) = run(flags, mode, &recorder, &console);
    let report = recorder.report(ending.code());
    let said = say(&report, &display, ending, mode, outcome.as_ref());
    let code = match (said, ending) {
        (Err(error), Ending::Complete) => {
            tracing::error!("the images are in the store, but nobody can be told so: {error}");
            Failure::Incomplete.code()
        }
        (Err(error), ending) => {
            tracing::error!("{error}");
            ending.code()
        }
        (Ok(()), ending) => ending.code(),
    };
    // Threads may still be in calls that last, such as the removal of a staged tree; they are not waited for.
    std::process::exit(code.into())
}

/// Resolves the settings and does the job.
fn run(flags: &Flags, mode: Mode, recorder: &Arc<Recorder>, console: &Console) -> (Ending, Option<Outcome>) {
    let mut observers: Vec<Arc<dyn Observer>> = vec![recorder.clone(), Arc::new(Journal::default())];
    match console.progress() {
        Ok(progress) => observers.extend(progress),
        Err(error) => tracing::warn!("no progress will be shown: {error}"),
    }
    let observer: Arc<dyn Observer> = Arc::new(Fanout(observers));
    let settings = match Settings::resolve(flags) {
        Ok(settings) => settings,
        Err(error) => {
            let failure = error.failure();
            observer.observe(Event::StepEnded {
                step: Step::Spec,
                ok: false,
                reason: failure.reason(),
                message: error.to_string(),
            });
            return (Ending::Failed(failure), None);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot start the threads that this program needs: {error}");
            return (Ending::Failed(Failure::Incomplete), None);
        }
    };
    let result = runtime.block_on(until_stopped(&settings, mode, &observer));
    runtime.shutdown_background();
    match result {
        Ok((outcome, ending)) => (ending, Some(outcome)),
        Err(error) => (error.ending(), None),
    }
}

/// The job, or as much of it as fits between the start and a signal or the deadline.
async fn until_stopped(
    settings: &Settings,
    mode: Mode,
    observer: &Arc<dyn Observer>,
) -> Result<(Outcome, Ending), JobError> {
    let cancel = Cancel::default();
    watch_signals(&cancel);
    if let Some(deadline) = settings.deadline {
        let cancel = cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(deadline).await;
            cancel.stop(StopReason::Deadline);
        });
    }
    let grace_is_over = async {
        let stopped = cancel.stopped().await;
        tokio::time::sleep(GRACE).await;
        stopped
    };
    tokio::select! {
        result = job::run(&settings.order, mode, observer, &cancel) => {
            let outcome = result?;
            let ending = outcome.ending(&cancel);
            Ok((outcome, ending))
        }
        stopped = grace_is_over => Err(stopped.into()),
    }
}

/// SIGTERM and SIGINT stop the run; as process 1 they would otherwise be ignored. A second one changes nothing: the
/// first is obeyed within a second.
fn watch_signals(cancel: &Cancel) {
    for kind in [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
    ] {
        let cancel = cancel.clone();
        match signal(kind) {
            Ok(mut signals) => {
                tokio::spawn(async move {
                    if signals.recv().await.is_some() {
                        cancel.stop(StopReason::Signal(kind.as_raw_value()));
                    }
                });
            }
            Err(error) => tracing::warn!(
                "signal {} will not end the run in order: {error}",
                kind.as_raw_value()
            ),
        }
    }
}

fn start_log(display: &Display, console: &Console) {
    // Of other crates' events only what is wrong, for they might repeat a URL or a header.
    let filter = Targets::new()
        .with_default(tracing::Level::WARN.min(display.log_level))
        .with_target(env!("CARGO_CRATE_NAME"), display.log_level);
    let lines = tracing_subscriber::fmt::layer().with_writer(console.log_writer());
    let registry = tracing_subscriber::registry();
    match display.log_format {
        LogFormat::Text => registry
            .with(
                lines
                    .with_target(false)
                    .with_ansi(console.is_terminal())
                    .with_filter(filter),
            )
            .init(),
        LogFormat::Json => registry.with(lines.json().with_filter(filter)).init(),
    }
}

/// Writes the report and the termination message, and prints the plan or the verdict.
fn say(
    report: &Report,
    display: &Display,
    ending: Ending,
    mode: Mode,
    outcome: Option<&Outcome>,
) -> anyhow::Result<()> {
    let meaning = ending.meaning();
    report
        .write_termination_message(&meaning, Path::new(TERMINATION_LOG))
        .unwrap_or_else(|error| {
            tracing::warn!("cannot write `{TERMINATION_LOG}`: {error}");
            false
        });
    let text = match (mode, outcome, display.output) {
        (Mode::Plan, Some(outcome), OutputForm::Text) => {
            let space = outcome
                .verdict
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            outcome.plan.table(&space)
        }
        (Mode::Plan, Some(outcome), OutputForm::Json) => {
            serde_json::to_string_pretty(&Document::new(&outcome.plan, outcome.verdict.as_ref()))?
        }
        (_, _, OutputForm::Text) => report.summary(&meaning),
        (_, _, OutputForm::Json) => report.json(),
    };
    let printed = writeln!(std::io::stdout(), "{}", text.trim_end());
    if let Some(path) = &display.report {
        report.write(path)?;
    }
    Ok(printed?)
}
