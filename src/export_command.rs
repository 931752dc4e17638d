//! Runs the command `export`. It has its own report and chooses its exit code here.

use spoke_precache::cancel::Cancel;
use spoke_precache::cli::ExportFlags;
use spoke_precache::exit_code::Ending;
use spoke_precache::export::{self, ExportError};
use spoke_precache::registry::Kind;
use spoke_precache::settings;
use spoke_precache::signals::BlockedSignals;

use crate::standalone::{Standalone, failed};

/// Runs the command.
pub(crate) fn run(flags: &ExportFlags, signals: BlockedSignals) -> Ending {
    let command = Standalone::start(&flags.log, flags.output_format, flags.nice);
    let config = match settings::export_config(flags) {
        Ok(config) => config,
        Err(error) => return failed(&error.to_string(), Ending::Failed(error.failure())),
    };
    let (deadline, limit, cancel) = (
        config.deadline,
        config.registries.limit.clone(),
        Cancel::default(),
    );
    let work = |observer| {
        let cancel = &cancel;
        async move { export::run(config, &observer, cancel).await }
    };
    match command.run(signals, deadline, &limit, &cancel, work) {
        Ok(Ok(report)) => {
            let ending = Ending::of(report.failures.iter().copied());
            command.finish(&report.text(), &report.json(), ending)
        }
        Ok(Err(error)) => failed(&error.to_string(), ending_of(&error, &cancel)),
        Err(ending) => ending,
    }
}

fn ending_of(error: &ExportError, cancel: &Cancel) -> Ending {
    match cancel.reason() {
        Some(reason) if error.kind() == Kind::Stopped => Ending::Stopped(reason),
        _ => Ending::Failed(error.failure()),
    }
}
