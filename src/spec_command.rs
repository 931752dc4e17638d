//! Prints the version spec: the command `spec`. It needs no runtime and no signal handling, because it changes nothing.

use spoke_precache::catalog::PackageRequest;
use spoke_precache::cli::{SpecFlags, SpecForm};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::job::JobError;
use spoke_precache::report::{Console, Printable};
use spoke_precache::settings::{self, OutputSettings};
use spoke_precache::spec::Excludes;

use crate::exit_handler::print;
use crate::logging::start_log;

/// Runs the command.
pub(crate) fn run(SpecFlags { output, flags }: &SpecFlags) -> Ending {
    let display = OutputSettings::resolve(&flags.output);
    start_log(&display, &Console::stderr(display.progress));
    let (spec, warnings) = match settings::version_spec(flags) {
        Ok(found) => found,
        Err(error) => return failed(&error.to_string(), error.failure()),
    };
    for line in warnings.iter().flat_map(|warning| warning.lines()) {
        tracing::warn!("{}", Printable(line));
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

fn failed(message: &str, failure: Failure) -> Ending {
    for line in message.lines() {
        tracing::error!("{}", Printable(line));
    }
    Ending::Failed(failure)
}
