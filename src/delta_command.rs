//! Runs the command `delta create`. It has its own report and chooses its exit code here.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use tokio::runtime::Runtime;

use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{DeltaCommand, DeltaCommands, DeltaCreateFlags, LogFormat, OutputForm};
use spoke_precache::delta_creation::{self, CreationConfig, CreationError, CreationReport};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::open_files;
use spoke_precache::registry::Kind;
use spoke_precache::report::{
    Console, Event, EventLog, Fanout, ImageNames, Observer, OutputFile, Printable, TimeLeft,
};
use spoke_precache::settings::{self, OutputSettings};
use spoke_precache::signals::BlockedSignals;

use crate::exit_handler::{GRACE, print};
use crate::logging::start_log;

/// Runs the command.
pub(crate) fn run(DeltaCommands { command }: &DeltaCommands, signals: BlockedSignals) -> Ending {
    let DeltaCommand::Create(flags) = command;
    // Nothing is unpacked, so the umask changes no file of an image.
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    let display = OutputSettings::resolve(&flags.log);
    let console = Console::stderr(display.progress);
    start_log(&display, &console);
    // Before the process has a second thread, which inherits it.
    if let Some(Err(error)) = flags.nice.map(|nice| nice.apply()) {
        tracing::warn!("`--nice` has no effect: {error}");
    }
    open_files::raise_limit();
    let config = match settings::creation_config(flags) {
        Ok(config) => config,
        Err(error) => return failed(&error.to_string(), Ending::Failed(error.failure())),
    };
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            let message = format!("cannot start the threads for the network: {error}");
            return failed(&message, Ending::Failed(Failure::Incomplete));
        }
    };
    let cancel = Cancel::default();
    if let Err(error) = signals.watch(&cancel) {
        tracing::warn!("signals will end the command without cleaning up: {error}");
    }
    let ending = match runtime.block_on(create(config, &display, &console, &cancel)) {
        Ok(report) => finish(flags, &console, &report),
        Err(error) => failed(&error.to_string(), ending_of(&error, &cancel)),
    };
    // A thread that compares files may take a while to notice a stop.
    runtime.shutdown_background();
    ending
}

async fn create(
    config: CreationConfig,
    display: &OutputSettings,
    console: &Console,
    cancel: &Cancel,
) -> Result<CreationReport, CreationError> {
    if let Some(deadline) = config
        .deadline
        .and_then(|after| Instant::now().checked_add(after))
        && let Err(error) = cancel.stop_at(deadline)
    {
        tracing::warn!("the deadline will not end the command: {error}");
    }
    let observer = observer(display, console);
    let limit = config.registries.limit.clone();
    if let Some(report) = limit.report(Timestamp::now()) {
        observer.observe(Event::RateLimited {
            limit: report,
            rest: TimeLeft::new(move |bytes, rate| limit.remaining_time(bytes, rate, Timestamp::now())),
        });
    }
    let grace_is_over = async {
        let stopped = cancel.stopped().await;
        tokio::time::sleep(GRACE).await;
        stopped
    };
    tokio::select! {
        result = delta_creation::run(config, &observer, cancel) => result,
        stopped = grace_is_over => Err(stopped.into()),
    }
}

fn observer(display: &OutputSettings, console: &Console) -> Arc<dyn Observer> {
    let names = match display.log_format {
        LogFormat::Text | LogFormat::Talm => ImageNames::Short,
        LogFormat::Json => ImageNames::Field,
    };
    let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::new(EventLog::new(names))];
    match console.progress() {
        Ok(progress) => observers.extend(progress),
        Err(error) => tracing::warn!("cannot show progress: {error}"),
    }
    Arc::new(Fanout(observers))
}

/// Writes the report, and prints it.
fn finish(flags: &DeltaCreateFlags, console: &Console, report: &CreationReport) -> Ending {
    let failures = report.indexes.iter().flat_map(|index| &index.images);
    let ending = Ending::of(failures.filter_map(|image| image.failure).map(Failure::from));
    console.end_progress();
    let json = report.json();
    let written = flags
        .log
        .report
        .as_deref()
        .map(|path| OutputFile::at(path, "report").write(&json));
    let text = match flags.output_format {
        OutputForm::Text => report.text(),
        OutputForm::Json => json,
    };
    if let Err(error) = print(&text) {
        return failed(&error.to_string(), Ending::Failed(Failure::Incomplete));
    }
    let Some(Err(error)) = written else {
        return ending;
    };
    let failure = Failure::of_report(&error).unwrap_or(Failure::Incomplete);
    let unwritten = failed(&error.to_string(), Ending::Failed(failure));
    match ending {
        Ending::Complete => unwritten,
        _ => ending,
    }
}

fn ending_of(error: &CreationError, cancel: &Cancel) -> Ending {
    match cancel.reason() {
        Some(reason) if error.kind() == Kind::Stopped => Ending::Stopped(reason),
        _ if error.is_usage() => Ending::Failed(Failure::Usage),
        _ => Ending::Failed(error.kind().into()),
    }
}

fn failed(message: &str, ending: Ending) -> Ending {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
    ending
}
