//! Starts the process: arguments, log, priority, runtime, run, exit code.
//!
//! # Design
//!
//! The run is on the main thread. A signal or a deadline stops it through [`Cancel`], and it then ends within
//! milliseconds, except in a call that takes long: a log that is not read, a disk that hangs, the removal of a large
//! directory. The process must still end within a second of a SIGTERM, with the report written. So there are two time limits:
//! after [`exit_handler::GRACE`] the run is dropped where it waits; a little later another thread writes the report and
//! ends the process ([`ExitHandler`]), whatever the main thread does. An interrupted write is safe: the store's protocol
//! survives a kill at any instant.
//!
//! The cluster's API is asked before the run, for `--cluster-patience` and a few seconds at most. It is notified last, after
//! the report is written, for [`NOTIFY_TIMEOUT`] at most, and less after a stop.

mod delta_command;
mod exit_handler;
mod export_command;
mod logging;
mod session;
mod spec_command;
mod standalone;
mod status_command;

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser as _;

use exit_handler::{ExitHandler, exit_after_panics, exit_if_main_hangs};
use logging::start_log;
use session::Session;
use spoke_precache::allocator;
use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{Cli, Command, PriorityFlags, RunFlags};
use spoke_precache::entrypoint::{Entrypoint, NOT_FOUND};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::Mode;
use spoke_precache::open_files;
use spoke_precache::priority::{IoPriority, Niceness};
use spoke_precache::report::Console;
use spoke_precache::settings::OutputSettings;
use spoke_precache::signals::BlockedSignals;
use spoke_precache::store::await_removal;

/// How long the notification of the cluster's API may take after a run that ended by itself.
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(2);

/// The same after a stop: the time that remains until the other thread ends the process.
const NOTIFY_TIMEOUT_AFTER_STOP: Duration = Duration::from_millis(300);

/// How long the removal of staged layers may take. After a stop, the other thread ends the process earlier.
const REMOVAL: Duration = Duration::from_millis(500);

/// Threads for sockets; hashing and unpacking have others.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    // First of all, because process 1 loses signals that are neither blocked nor handled.
    let signals = BlockedSignals::block();
    // The modes of files in images are used as they are; a umask would only turn each file into two system calls.
    rustix::process::umask(rustix::fs::Mode::empty());
    let entrypoint = match Entrypoint::of(env::args_os()) {
        Ok(entrypoint) => entrypoint,
        Err(no_shell) => {
            drop(signals);
            // Standard error may be closed.
            let _ = writeln!(io::stderr(), "{no_shell}");
            return NOT_FOUND.into();
        }
    };
    let mut cli = match Cli::try_parse_from(entrypoint.args()) {
        Ok(cli) => cli,
        Err(error) => {
            drop(signals);
            error.exit()
        }
    };
    entrypoint.apply_defaults(&mut cli);
    let (mode, RunFlags { output, flags }) = match &cli.command {
        Command::Run(flags) => (Mode::Run, flags),
        Command::Plan(flags) => (Mode::Plan, flags),
        Command::Verify(verify) if verify.repair => (Mode::Repair, &verify.run),
        Command::Verify(verify) => (Mode::Verify, &verify.run),
        Command::Spec(flags) => {
            let ending = spec_command::run(flags, signals);
            // A thread that waits for signals is not awaited.
            std::process::exit(ending.code().into())
        }
        Command::Status(flags) => {
            drop(signals);
            return status_command::run(flags).code().into();
        }
        Command::Delta(flags) => {
            let ending = delta_command::run(flags, signals);
            // Threads at work are not awaited.
            std::process::exit(ending.code().into())
        }
        Command::Export(flags) => {
            let ending = export_command::run(flags, signals);
            // Threads at work are not awaited.
            std::process::exit(ending.code().into())
        }
    };
    let display = OutputSettings::resolve(&flags.output);
    let console = Console::stderr(display.progress);
    start_log(&display, &console);
    lower_priority(&flags.priority);
    open_files::raise_limit();
    allocator::return_large_buffers();
    let exit = Arc::new(ExitHandler::new(mode, *output, display, console));
    exit_after_panics(&exit);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot start the threads for the network: {error}");
            return exit.finish(Ending::Failed(Failure::Incomplete), None).into();
        }
    };
    let cancel = Cancel::default();
    if let Err(error) = signals.watch(&cancel) {
        tracing::warn!("signals will end the run without a report: {error}");
    }
    exit_if_main_hangs(&exit, &cancel);
    let for_upgrade = matches!(&cli.command, Command::Verify(verify) if verify.for_upgrade);
    let (ending, outcome) = Session::new(flags, for_upgrade, &exit, &runtime, &cancel).run();
    let code = exit.finish(ending, outcome.as_ref());
    if let Some(reporter) = exit.cluster_reporter.get() {
        let timeout = match cancel.reason() {
            None => NOTIFY_TIMEOUT,
            Some(_) => NOTIFY_TIMEOUT_AFTER_STOP,
        };
        runtime.block_on(reporter.finish(&exit.recorder.report(code), timeout));
    }
    // Staged layers are removed by the threads that staged them. Other threads may hang and are not awaited.
    await_removal(REMOVAL);
    std::process::exit(code.into())
}

/// Lowers the priority of the process, before it has a second thread. A failure does not stop the run.
fn lower_priority(priority: &PriorityFlags) {
    if let Some(Err(error)) = priority.nice.map(Niceness::apply) {
        tracing::warn!("`--nice` has no effect: {error}");
    }
    if let Some(Err(error)) = priority.ionice.map(IoPriority::check) {
        tracing::warn!("`--ionice` has no effect: {error}");
    }
}
