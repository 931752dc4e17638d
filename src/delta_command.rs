//! Runs the command `delta create`. It has its own report and chooses its exit code here.

use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{DeltaCommand, DeltaCommands};
use spoke_precache::delta_creation::{self, CreationError};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::registry::Kind;
use spoke_precache::settings;
use spoke_precache::signals::BlockedSignals;

use crate::standalone::{Standalone, failed};

/// Runs the command.
pub(crate) fn run(DeltaCommands { command }: &DeltaCommands, signals: BlockedSignals) -> Ending {
    let DeltaCommand::Create(flags) = command;
    let command = Standalone::start(&flags.log, flags.output_format, flags.nice);
    let config = match settings::creation_config(flags) {
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
        async move { delta_creation::run(config, &observer, cancel).await }
    };
    match command.run(signals, deadline, &limit, &cancel, work) {
        Ok(Ok(report)) => {
            let images = report.indexes.iter().flat_map(|index| &index.images);
            let ending = Ending::of(images.filter_map(|image| image.failure).map(Failure::from));
            command.finish(&report.text(), &report.json(), ending)
        }
        Ok(Err(error)) => failed(&error.to_string(), ending_of(&error, &cancel)),
        Err(ending) => ending,
    }
}

fn ending_of(error: &CreationError, cancel: &Cancel) -> Ending {
    match cancel.reason() {
        Some(reason) if error.kind() == Kind::Stopped => Ending::Stopped(reason),
        _ if error.is_usage() => Ending::Failed(Failure::Usage),
        _ => Ending::Failed(error.kind().into()),
    }
}
