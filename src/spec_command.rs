//! Prints the version spec: the command `spec`. It needs a runtime and signal handling only while it asks the cluster's API.

use spoke_precache::cancel::{Cancel, Stopped};
use spoke_precache::catalog::PackageRequest;
use spoke_precache::cli::{Flags, SpecFlags, SpecForm};
use spoke_precache::cluster::{Api, ClusterError, UpgradeObjects};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::JobError;
use spoke_precache::report::{Console, Printable};
use spoke_precache::settings::{self, OutputSettings, ResolvedSpec};
use spoke_precache::signals::BlockedSignals;
use spoke_precache::spec::Excludes;

use crate::exit_handler::print;
use crate::logging::start_log;

/// Runs the command.
pub(crate) fn run(SpecFlags { output, flags }: &SpecFlags, signals: BlockedSignals) -> Ending {
    let display = OutputSettings::resolve(&flags.output);
    start_log(&display, &Console::stderr(display.progress));
    let upgrade = match flags.what.release.from_cluster {
        true => ask_cluster(flags, signals),
        false => {
            drop(signals);
            Ok(None)
        }
    };
    let resolved = match upgrade {
        Ok(upgrade) => settings::version_spec(flags, upgrade.as_ref()),
        Err(Stopped(reason)) => return Ending::Stopped(reason),
    };
    let ResolvedSpec {
        spec,
        warnings,
        nothing_requested,
        ..
    } = match resolved {
        Ok(found) => found,
        Err(error) => return failed(&error.to_string(), error.failure()),
    };
    for line in warnings.iter().flat_map(|warning| warning.lines()) {
        tracing::warn!("{}", Printable(line));
    }
    if let Some(why) = nothing_requested {
        tracing::info!("there is nothing to do: {}", Printable(&why));
    }
    // The author of a version spec wants to know about a wrong line now.
    let packages = spec.packages_and_channels.iter().map(String::as_str);
    let checked = Excludes::new(&spec.exclude_patterns)
        .map(drop)
        .map_err(JobError::from);
    let checked = checked.and_then(|()| Ok(PackageRequest::of_lines(packages).map(drop)?));
    if let Err(error) = checked {
        return failed(&error.to_string(), error.failure());
    }
    let text = match output {
        SpecForm::Text => spec.to_text(),
        SpecForm::Json => spec.to_json(),
        SpecForm::Yaml => spec.to_yaml(),
    };
    match print(&text) {
        Ok(()) => Ending::Complete,
        Err(error) => failed(&error.to_string(), Failure::Incomplete),
    }
}

/// What the API returns about the requested release; none without an API.
fn ask_cluster(
    flags: &Flags,
    signals: BlockedSignals,
) -> Result<Option<Result<UpgradeObjects, ClusterError>>, Stopped> {
    let Some(account) = settings::service_account(flags) else {
        return Ok(None);
    };
    let cancel = Cancel::default();
    if let Err(error) = signals.watch(&cancel) {
        tracing::warn!("signals have their default effect: {error}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!("cannot start the runtime for the network: {error}");
            return Ok(None);
        }
    };
    runtime.block_on(async {
        let asked = async {
            let api = Api::new(account)?;
            UpgradeObjects::query(&api, settings::cluster_patience(flags)).await
        };
        tokio::select! {
            asked = asked => Ok(Some(asked)),
            stopped = cancel.stopped() => Err(stopped),
        }
    })
}

fn failed(message: &str, failure: Failure) -> Ending {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
    Ending::Failed(failure)
}
