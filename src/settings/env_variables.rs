//! Reads the environment variables of TALM's Job and those for colours, and the number of usable CPUs.

use std::env;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::thread;

use super::SettingsError;
use super::host_root::HostRoot;
use crate::cli::RegistryPaths;

/// Blobs that are downloaded at the same time. TALM pulls 10 images at a time; registries accept about ten connections of
/// one client.
const MAX_DOWNLOADS: NonZeroU16 = NonZeroU16::new(8).expect("8 is not 0");

/// The pull secret from the flag or TALM's variable. The variable is a path on the host, because TALM's scripts run with the
/// host's root as theirs.
pub(super) fn authfile(paths: &RegistryPaths, host: &HostRoot) -> Option<PathBuf> {
    let variable = || env::var_os("pull_secret_path").filter(|path| !path.is_empty());
    paths
        .authfile
        .clone()
        .or_else(|| variable().map(|path| host.join(Path::new(&path))))
}

pub(super) fn max_downloads(chosen: Option<NonZeroU16>) -> Result<NonZeroUsize, SettingsError> {
    let chosen = match chosen {
        Some(chosen) => Some(chosen),
        None => variable("MAX_PULL_THREADS", "a number from 1 to 65535", |text| {
            text.parse().ok()
        })?,
    };
    Ok(chosen.unwrap_or(MAX_DOWNLOADS).into())
}

/// Whether the log has colours, by `NO_COLOR` (no-color.org) and `CLICOLOR_FORCE` (bixense.com/clicolors).
pub(super) fn colours() -> Option<bool> {
    let value = |name| env::var_os(name).filter(|value| !value.is_empty());
    match (value("NO_COLOR"), value("CLICOLOR_FORCE")) {
        (Some(_), _) => Some(false),
        (None, Some(forced)) if forced != "0" => Some(true),
        (None, _) => None,
    }
}

/// TALM's log level. Its scripts treat every value above 2 as 2.
pub(super) fn talm_log_level() -> Result<Option<tracing::Level>, SettingsError> {
    variable(
        "PRE_CACHE_LOG_LEVEL",
        "0 (errors), 1 (info) or 2 (debug)",
        |text| match text.parse::<u8>().ok()? {
            0 => Some(tracing::Level::ERROR),
            1 => Some(tracing::Level::INFO),
            2.. => Some(tracing::Level::DEBUG),
        },
    )
}

/// Parses a variable that is set and not empty.
fn variable<T>(
    name: &'static str,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, SettingsError> {
    let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) else {
        return Ok(None);
    };
    let value = value.to_string_lossy();
    match parse(value.trim()) {
        Some(parsed) => Ok(Some(parsed)),
        None => Err(SettingsError::Environment {
            name,
            value: value.into_owned(),
            expected,
        }),
    }
}

/// The CPUs that this process may use: with OpenShift's workload partitioning, the two or four reserved ones. The standard
/// library reads `sched_getaffinity` and the cgroup's quota.
pub(super) fn usable_cpus() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
