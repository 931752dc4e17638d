//! The edge of the process: arguments, log, runtime, signals, and the number it leaves with.
//!
//! # Design
//!
//! The job runs on the main thread. A stop, by signal or deadline, reaches it through [`Cancel`], and it ends by itself
//! within milliseconds unless it sits in a call that lasts: a log that nobody reads, a disk that hangs, the removal of a
//! large tree. Whoever sends SIGTERM is to see us gone within a second all the same, with the report written, so there
//! are two deadlines. After [`GRACE`] the job is dropped where it waits; a little later another thread reports and leaves
//! ([`exit_handler`]), whatever the main thread does. What is cut off is safe: the store's protocol stands a kill at any instant.
//!
//! The cluster's API is asked before the job begins, for `--cluster-patience` and a few seconds at most, and is told last
//! of all, when the report is written, for [`FAREWELL`] at most, and less after a stop.

mod exit_handler;

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use jiff::Timestamp;
use tokio::runtime::Runtime;
use tracing_subscriber::Layer as _;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use exit_handler::{ExitHandler, GRACE, leave_after_panics, leave_if_main_hangs, print};
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::catalog::PackageRequest;
use spoke_precache::cli::{Cli, Command, Flags, LogFormat, PriorityFlags, RunFlags, SpecFlags, SpecForm};
use spoke_precache::cluster::{Api, ClusterInfo, ClusterReporter};
use spoke_precache::entrypoint::{Entrypoint, NOT_FOUND};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::{self, JobConfig, JobError, Mode, Outcome};
use spoke_precache::pinning::{self, PinOutcome, PinTarget};
use spoke_precache::priority::{IoPriority, Niceness};
use spoke_precache::report::{
    Console, Event, EventLog, Fanout, Observer, Printable, TalmFormat, TalmLog, TimeLeft,
};
use spoke_precache::settings::{self, OutputSettings};
use spoke_precache::signals::BlockedSignals;
use spoke_precache::spec::Excludes;
use spoke_precache::store::await_removal;

/// How long the cluster may take to hear how a run went that ended by itself.
const FAREWELL: Duration = Duration::from_secs(2);

/// The same after a stop: what the job leaves of the time before the other thread ends the process.
const HASTY_FAREWELL: Duration = Duration::from_millis(300);

/// How long staged layers may take to be removed. After a stop the other thread ends the process before.
const REMOVAL: Duration = Duration::from_millis(500);

/// Threads for sockets; hashing and unpacking have others.
const RUNTIME_THREADS: usize = 2;

fn main() -> ExitCode {
    // Before anything else: to process 1 a signal that nobody waits for is lost.
    let held = BlockedSignals::block();
    // Modes in an image are the image's; a mask would only make each of them two calls.
    rustix::process::umask(rustix::fs::Mode::empty());
    let applet = match Entrypoint::of(env::args_os()) {
        Ok(applet) => applet,
        Err(no_shell) => {
            drop(held);
            // Nobody may be there to read it.
            let _ = writeln!(io::stderr(), "{no_shell}");
            return NOT_FOUND.into();
        }
    };
    let mut cli = match Cli::try_parse_from(applet.args()) {
        Ok(cli) => cli,
        Err(error) => {
            drop(held);
            error.exit()
        }
    };
    applet.fill_in(&mut cli);
    let (mode, RunFlags { output, flags }) = match &cli.command {
        Command::Run(flags) => (Mode::Run, flags),
        Command::Plan(flags) => (Mode::Plan, flags),
        Command::Verify(verify) if verify.repair => (Mode::Repair, &verify.run),
        Command::Verify(verify) => (Mode::Verify, &verify.run),
        Command::Spec(flags) => {
            drop(held);
            return print_spec(flags).code().into();
        }
    };
    let display = OutputSettings::resolve(flags);
    let console = Console::stderr(display.progress);
    start_log(&display, &console);
    lower_priority(&flags.priority);
    let edge = Arc::new(ExitHandler::new(mode, *output, display));
    leave_after_panics(&edge);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(RUNTIME_THREADS)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot start the threads that this program needs: {error}");
            return edge.leave(Ending::Failed(Failure::Incomplete), None).into();
        }
    };
    let cancel = Cancel::default();
    if let Err(error) = held.watch(&cancel) {
        tracing::warn!("no signal will end the run in order: {error}");
    }
    leave_if_main_hangs(&edge, &cancel);
    let (ending, outcome) = run(flags, &edge, &console, &runtime, &cancel);
    let code = edge.leave(ending, outcome.as_ref());
    if let Some(herald) = edge.herald.get() {
        let patience = match cancel.reason() {
            None => FAREWELL,
            Some(_) => HASTY_FAREWELL,
        };
        runtime.block_on(herald.finish(&edge.recorder.report(code), patience));
    }
    // What is staged is removed by the threads that staged it. Others may be in calls that last; they are not waited for.
    await_removal(REMOVAL);
    std::process::exit(code.into())
}

/// Resolves the settings and does the job.
fn run(
    flags: &Flags,
    edge: &ExitHandler,
    console: &Console,
    runtime: &Runtime,
    cancel: &Cancel,
) -> (Ending, Option<Outcome>) {
    let mut observers: Vec<Arc<dyn Observer>> = vec![edge.recorder.clone(), Arc::new(EventLog::default())];
    if edge.display.log_format == LogFormat::Talm {
        observers.push(Arc::new(TalmLog::default()));
    }
    match console.progress() {
        Ok(progress) => observers.extend(progress),
        Err(error) => tracing::warn!("no progress will be shown: {error}"),
    }
    let api = reach_cluster(flags, edge.mode);
    let facts = runtime.block_on(learn(api.as_deref(), flags, cancel));
    if let Some(api) = &api
        && matches!(edge.mode, Mode::Run | Mode::Repair)
    {
        let _entered = runtime.enter();
        let herald = Arc::new(ClusterReporter::start(Arc::clone(api), facts.owner.clone()));
        observers.push(herald.clone());
        // Nobody has set it before.
        let _ = edge.herald.set(herald);
    }
    let observer: Arc<dyn Observer> = Arc::new(Fanout(observers));
    let order = match settings::job_config(flags, &facts) {
        Ok(order) => order,
        Err(error) => {
            let failure = error.failure();
            observer.observe(Event::StepEnded {
                step: error.step(),
                ok: false,
                reason: failure.reason(),
                message: error.to_string(),
            });
            return (Ending::Failed(failure), None);
        }
    };
    if let Some(end) = order.known_end {
        // Nobody has set it before.
        let _ = edge.job_end.set(end);
    }
    let limit = edge.limit.get_or_init(|| order.registries.limit.clone());
    if let Some(report) = limit.report(Timestamp::now()) {
        let limit = limit.clone();
        observer.observe(Event::RateLimited {
            limit: report,
            rest: TimeLeft::new(move |bytes, rate| limit.remaining_time(bytes, rate, Timestamp::now())),
        });
    }
    let (outcome, ending) = match runtime.block_on(until_stopped(&order, edge.mode, &observer, cancel)) {
        Ok(done) => done,
        Err(error) => return (error.ending(), None),
    };
    let target = flags.cluster.pin.as_ref();
    let mut kept = PinOutcome {
        is_pinned: target == Some(&PinTarget::Api),
        warnings: Vec::new(),
    };
    if ending == Ending::Complete && matches!(edge.mode, Mode::Run | Mode::Repair) {
        let keeping = pinning::pin_images(&order, &outcome, target, api.as_deref(), cancel);
        kept = runtime.block_on(async {
            tokio::select! {
                kept = keeping => kept,
                _ = cancel.stopped() => PinOutcome {
                    is_pinned: false,
                    warnings: vec!["told to stop before the images were pinned".to_owned()],
                },
            }
        });
    }
    let mut warnings = kept.warnings;
    if edge.mode != Mode::Verify {
        let images = outcome.plan.images.iter();
        let images: Vec<_> = images.map(|image| image.reference.clone()).collect();
        warnings.extend(facts.pull_verification.warning(&images));
        let os_images = outcome.os_images.as_ref();
        warnings.extend(os_images.and_then(|images| images.note(kept.is_pinned)));
    }
    for message in warnings {
        observer.observe(Event::Warned { message });
    }
    (ending, Some(outcome))
}

/// The way to the cluster's API, if there is one; `verify` has no need of it.
fn reach_cluster(flags: &Flags, mode: Mode) -> Option<Arc<Api>> {
    let account = settings::service_account(flags).filter(|_| mode != Mode::Verify)?;
    match Api::new(account) {
        Ok(api) => Some(Arc::new(api)),
        Err(error) => {
            tracing::warn!("going on without the cluster's API: {error}");
            None
        }
    }
}

/// What the cluster knows, as far as it says so in time.
async fn learn(api: Option<&Api>, flags: &Flags, cancel: &Cancel) -> ClusterInfo {
    let Some(api) = api else {
        return ClusterInfo::default();
    };
    let with_kubelet = flags.bounds.image_gc_high_threshold.is_none();
    tokio::select! {
        facts = ClusterInfo::query(api, with_kubelet, settings::cluster_patience(flags)) => facts,
        // The job is told as well.
        _ = cancel.stopped() => ClusterInfo::default(),
    }
}

/// The job, or as much of it as fits between the start and a signal or the deadline.
async fn until_stopped(
    order: &JobConfig,
    mode: Mode,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<(Outcome, Ending), JobError> {
    if let Some(deadline) = order.deadline {
        let stopper = cancel.clone();
        // Not a task: see `leave_if_main_hangs`.
        let waiting = thread::Builder::new().spawn(move || {
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
            stopper.stop(StopReason::Deadline);
        });
        if let Err(error) = waiting {
            tracing::warn!("the deadline will not end the run: {error}");
        }
    }
    let grace_is_over = async {
        let stopped = cancel.stopped().await;
        tokio::time::sleep(GRACE).await;
        stopped
    };
    tokio::select! {
        result = job::run(order, mode, observer, cancel) => {
            let outcome = result?;
            let ending = outcome.ending(cancel);
            Ok((outcome, ending))
        }
        stopped = grace_is_over => Err(stopped.into()),
    }
}

/// Lowers the process, before it has a second thread. Who may not be nice is not kept from his work.
fn lower_priority(priority: &PriorityFlags) {
    if let Some(Err(error)) = priority.nice.map(Niceness::apply) {
        tracing::warn!("`--nice` has no effect: {error}");
    }
    if let Some(Err(error)) = priority.ionice.map(IoPriority::check) {
        tracing::warn!("`--ionice` has no effect: {error}");
    }
}

fn start_log(display: &OutputSettings, console: &Console) {
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
        LogFormat::Talm => registry
            .with(lines.event_format(TalmFormat).with_filter(filter))
            .init(),
    }
}

/// Prints the version spec. No runtime and no handlers of signals: there is nothing to undo.
fn print_spec(SpecFlags { output, flags }: &SpecFlags) -> Ending {
    let display = OutputSettings::resolve(flags);
    start_log(&display, &Console::stderr(display.progress));
    let refused = |message: String, failure: Failure| {
        for line in message.lines() {
            tracing::error!("{}", Printable(line));
        }
        Ending::Failed(failure)
    };
    let (spec, warnings) = match settings::version_spec(flags) {
        Ok(found) => found,
        Err(error) => return refused(error.to_string(), error.failure()),
    };
    for warning in warnings {
        tracing::warn!("{}", Printable(&warning));
    }
    // Whoever writes a spec wants to hear of a bad line now.
    let packages = spec.packages_and_channels.iter().map(String::as_str);
    let checked = Excludes::new(&spec.exclude_patterns)
        .map(drop)
        .map_err(JobError::from);
    let checked = checked.and_then(|()| Ok(PackageRequest::of_lines(packages).map(drop)?));
    if let Err(error) = checked {
        return refused(error.to_string(), error.failure());
    }
    let text = match output {
        SpecForm::Text => spec.to_text(),
        SpecForm::Json => spec.to_json(),
        SpecForm::Yaml => spec.to_yaml(),
    };
    match print(&text) {
        Ok(()) => Ending::Complete,
        Err(error) => refused(error.to_string(), Failure::Incomplete),
    }
}
