//! Prints the last runs and what is missing now: the command `status`. It reads the store and the history, changes nothing,
//! and needs no runtime and no signal handling.

use spoke_precache::cache_status::CacheStatus;
use spoke_precache::cli::{OutputForm, RunFlags};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::JobError;
use spoke_precache::report::{Console, Printable};
use spoke_precache::run_history::{HistoryError, HistoryFile, RunHistory};
use spoke_precache::settings::{OutputSettings, StoreSettings};
use spoke_precache::store::{Store, StoreError};

use crate::exit_handler::print;
use crate::logging::start_log;

/// Runs the command.
pub(crate) fn run(RunFlags { output, flags }: &RunFlags) -> Ending {
    let display = OutputSettings::resolve(&flags.output);
    start_log(&display, &Console::stderr(display.progress));
    let settings = match StoreSettings::resolve(flags) {
        Ok(settings) => settings,
        Err(error) => return failed(&error.to_string(), error.failure()),
    };
    let file = HistoryFile::in_directory(&settings.spool);
    let history = match file.read() {
        Ok(history) => history,
        Err(error @ HistoryError::Damaged { .. }) => {
            tracing::warn!("no run is known: {}", Printable(&error.to_string()));
            RunHistory::default()
        }
        Err(error) => return failed(&error.to_string(), Failure::Store),
    };
    let status = match status(&settings, history, &file) {
        Ok(status) => status,
        Err(error) => return failed(&error.to_string(), JobError::from(error).failure()),
    };
    let text = match output {
        OutputForm::Text => status.to_text(),
        OutputForm::Json => status.to_json(),
    };
    match print(&text) {
        Ok(()) => Ending::of((!status.is_complete).then_some(Failure::Incomplete)),
        Err(error) => failed(&error.to_string(), Failure::Incomplete),
    }
}

fn status(
    settings: &StoreSettings,
    history: RunHistory,
    file: &HistoryFile,
) -> Result<CacheStatus, StoreError> {
    let store = Store::open(&settings.graph_root, &settings.storage_conf)?;
    let inventory = store.inventory()?;
    CacheStatus::of(history, file.path(), &inventory, &settings.platform)
}

fn failed(message: &str, failure: Failure) -> Ending {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
    Ending::Failed(failure)
}
