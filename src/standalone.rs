//! The parts of a command that has its own report, such as `delta create` and `export`: its log, its end by a deadline or a
//! signal, and what it prints.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::runtime::Runtime;

use spoke_precache::cancel::{Cancel, StopReason, Stopped};
use spoke_precache::cli::{LogFormat, Output, OutputForm};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::open_files;
use spoke_precache::priority::Niceness;
use spoke_precache::registry::LimitSettings;
use spoke_precache::report::{
    Console, Event, EventLog, Fanout, ImageNames, Observer, OutputFile, Printable, TimeLeft,
};
use spoke_precache::settings::OutputSettings;
use spoke_precache::signals::BlockedSignals;

use crate::exit_handler::{GRACE, print};
use crate::logging::start_log;

/// A command that runs.
pub(crate) struct Standalone<'f> {
    log: &'f Output,
    form: OutputForm,
    display: OutputSettings,
    console: Console,
}

impl<'f> Standalone<'f> {
    /// Starts the log, and lowers the priority.
    pub(crate) fn start(log: &'f Output, form: OutputForm, nice: Option<Niceness>) -> Self {
        // Nothing is unpacked, so the umask changes no file of an image.
        rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
        let display = OutputSettings::resolve(log);
        let console = Console::stderr(display.progress);
        start_log(&display, &console);
        // Before the process has a second thread, which inherits it.
        if let Some(Err(error)) = nice.map(Niceness::apply) {
            tracing::warn!("`--nice` has no effect: {error}");
        }
        open_files::raise_limit();
        Self {
            log,
            form,
            display,
            console,
        }
    }

    /// Runs `work` until it ends, the deadline passes or a signal arrives. `work` gets the observer of its events.
    pub(crate) fn run<T, E: From<Stopped>, F: Future<Output = Result<T, E>>>(
        &self,
        signals: BlockedSignals,
        deadline: Option<Duration>,
        limit: &LimitSettings,
        cancel: &Cancel,
        work: impl FnOnce(Arc<dyn Observer>) -> F,
    ) -> Result<Result<T, E>, Ending> {
        let runtime = Runtime::new().map_err(|error| {
            let message = format!("cannot start the threads for the network: {error}");
            failed(&message, Ending::Failed(Failure::Incomplete))
        })?;
        if let Err(error) = signals.watch(cancel) {
            tracing::warn!("signals will end the command without cleaning up: {error}");
        }
        let result = runtime.block_on(async {
            if let Some(deadline) = deadline.and_then(|after| Instant::now().checked_add(after))
                && let Err(error) = cancel.stop_at(deadline, StopReason::Deadline)
            {
                tracing::warn!("the deadline will not end the command: {error}");
            }
            let observer = self.observer();
            if let Some(report) = limit.report(Timestamp::now()) {
                let limit = limit.clone();
                observer.observe(Event::RateLimited {
                    limit: report,
                    rest: TimeLeft::new(move |bytes, rate| {
                        limit.remaining_time(bytes, rate, Timestamp::now())
                    }),
                });
            }
            let grace_is_over = async {
                let stopped = cancel.stopped().await;
                tokio::time::sleep(GRACE).await;
                stopped
            };
            tokio::select! {
                result = work(observer) => result,
                stopped = grace_is_over => Err(stopped.into()),
            }
        });
        // A thread at work may take a while to notice a stop.
        runtime.shutdown_background();
        Ok(result)
    }

    fn observer(&self) -> Arc<dyn Observer> {
        let names = match self.display.log_format {
            LogFormat::Text | LogFormat::Talm => ImageNames::Short,
            LogFormat::Json => ImageNames::Field,
        };
        let mut observers: Vec<Arc<dyn Observer>> = vec![Arc::new(EventLog::new(names))];
        match self.console.progress() {
            Ok(progress) => observers.extend(progress),
            Err(error) => tracing::warn!("cannot show progress: {error}"),
        }
        Arc::new(Fanout(observers))
    }

    /// Writes the report, and prints it.
    pub(crate) fn finish(&self, text: &str, json: &str, ending: Ending) -> Ending {
        self.console.end_progress();
        let path = self.log.report.as_deref();
        let written = path.map(|path| OutputFile::at(path, "report").write(json));
        let printed = match self.form {
            OutputForm::Text => print(text),
            OutputForm::Json => print(json),
        };
        if let Err(error) = printed {
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
}

/// Logs an error, and returns the ending.
pub(crate) fn failed(message: &str, ending: Ending) -> Ending {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
    ending
}
