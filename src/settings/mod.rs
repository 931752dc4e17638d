//! Flags, environment and host files, resolved to what a run works with.
//!
//! The only reader of the environment. What a flag leaves open is found under the host root where CRI-O finds it;
//! a path that is given is taken as it is, for whoever gives one sees the file system that we see.

mod cluster_settings;
mod crio_conf;
mod host_root;
mod missing_paths;
mod proxy_env;
mod short_names;
mod time_zone;
mod version_spec;

use std::env;
use std::io;
use std::num::{NonZeroU16, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use jiff::SignedDuration;

use crate::cli::{Bounds, Flags, HostPaths, LogFormat};
use crate::cluster::ClusterInfo;
use crate::exit_code::Failure;
use crate::job::JobConfig;
use crate::oci::Platform;
use crate::registry::{ProxyError, RegistriesConfError, RegistrySettings, ShortNameError};
use crate::report::{ProgressMode, Step, WriteError, remove_old_report};
use crate::spec::{DocumentError, SpecError, VersionSpec};
use crate::store::{StorageConfError, StoreError, require_root};

pub use cluster_settings::{account, cluster_patience};
use crio_conf::CrioConf;
use host_root::HostRoot;

/// The graph root if storage.conf names none.
const GRAPH_ROOT: &str = "var/lib/containers/storage";

/// The spool's directory, beside the graph root: inside, the runtime might wipe it.
const SPOOL: &str = "spoke-precache";

/// Blobs at the same time. TALM pulls 10 images at a time; registries serve a handful of connections without complaint.
const MAX_DOWNLOADS: NonZeroU16 = NonZeroU16::new(8).expect("8 is not 0");

/// How long nothing at all may move before a run without a deadline gives up: longer than a switch or a registry takes
/// to reboot.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30 * 60);

/// What the process's edge needs to know before anything can fail.
#[derive(Clone, Debug)]
pub struct Display {
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// Form of the log.
    pub log_format: LogFormat,
    /// Its level.
    pub log_level: tracing::Level,
    /// Bars, lines or neither.
    pub progress: ProgressMode,
}

/// Why the settings cannot be had: arguments, version spec or a file of the host.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Who runs it cannot write a store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The version spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// There is no version spec where one is expected.
    #[error("there is no version spec in `{}`: {why}\nhint: mount the ConfigMap there, name another directory or a file with `--config`, or give images with `--platform-image` and `--image`", path.display())]
    NoSpec {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A file that should be a version spec.
    #[error("cannot use `{}`: {source}", path.display())]
    Document {
        /// The file, `-` for standard input.
        path: PathBuf,
        /// What is wrong with it.
        source: DocumentError,
    },
    /// A file that was named cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file that lies where CRI-O would look for it cannot be read.
    #[error("cannot read the host's `{}`: {source}", path.display())]
    HostFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A name without a registry, and the node cannot say which one is meant.
    #[error(transparent)]
    ShortName(#[from] ShortNameError),
    /// registries.conf makes no sense.
    #[error(transparent)]
    RegistriesConf(#[from] RegistriesConfError),
    /// There is no place for the report, or for the pins.
    #[error(transparent)]
    Report(#[from] WriteError),
    /// A directory that was named, or that follows from one, is not there.
    #[error("there is no {what} `{}`\nhint: see whether the path is right; `--create` begins a new one there", path.display())]
    Missing {
        /// What it should be.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
    },
    /// storage.conf makes no sense.
    #[error("cannot use `{}`: {source}", path.display())]
    StorageConf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: StorageConfError,
    },
    /// A drop-in to storage.conf changes where or how images are stored.
    #[error("`{}` changes where or how images are stored, and older versions of containers/storage do not read it\nhint: give the whole of the settings in one file with `--storage-conf`", path.display())]
    StorageDropIn {
        /// The file.
        path: PathBuf,
    },
    /// A file of CRI-O's configuration cannot be read.
    #[error("cannot read CRI-O's `{}`: {source}", path.display())]
    CrioFile {
        /// The file or directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file of CRI-O's configuration makes no sense; CRI-O itself would not start.
    #[error("cannot use CRI-O's `{}`: {source}", path.display())]
    CrioConf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: toml::de::Error,
    },
    /// A proxy's URL is none that can be used.
    #[error("cannot use the proxy that `{name}`{} names: {source}", of_file(.file))]
    Proxy {
        /// The variable. Its value may hold a password.
        name: &'static str,
        /// The node's file that sets it; the environment, if there is none.
        file: Option<PathBuf>,
        /// What is wrong with it.
        source: ProxyError,
    },
    /// A number in the environment is none.
    #[error("the environment variable `{name}` must be {expected}: `{value}`")]
    Environment {
        /// The variable.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What it should hold.
        expected: &'static str,
    },
}

fn of_file(file: &Option<PathBuf>) -> String {
    file.as_ref()
        .map(|path| format!(" in `{}`", path.display()))
        .unwrap_or_default()
}

impl SettingsError {
    /// What it means for the exit code.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Store(_)
            | Self::StorageConf { .. }
            | Self::StorageDropIn { .. }
            | Self::CrioFile { .. }
            | Self::CrioConf { .. }
            | Self::HostFile { .. }
            | Self::RegistriesConf(_) => Failure::Store,
            Self::Spec(_)
            | Self::NoSpec { .. }
            | Self::Document { .. }
            | Self::Unreadable { .. }
            | Self::ShortName(_)
            | Self::Proxy { .. }
            | Self::Missing { .. }
            | Self::Environment { .. } => Failure::Usage,
            Self::Report(error) => Failure::of_report(error).unwrap_or(Failure::Usage),
        }
    }

    /// The step that cannot be done.
    pub fn step(&self) -> Step {
        match self {
            Self::Store(_)
            | Self::StorageConf { .. }
            | Self::StorageDropIn { .. }
            | Self::Missing { .. }
            | Self::CrioFile { .. }
            | Self::CrioConf { .. } => Step::Store,
            // registries.conf, its drop-ins, certificate authorities and proxies: how images are asked for.
            Self::HostFile { .. } | Self::RegistriesConf(_) | Self::Proxy { .. } => Step::Resolve,
            Self::Spec(_)
            | Self::NoSpec { .. }
            | Self::Document { .. }
            | Self::Unreadable { .. }
            | Self::ShortName(_)
            | Self::Report(_)
            | Self::Environment { .. } => Step::Spec,
        }
    }
}

impl Display {
    /// What the flags say, and the environment where they say nothing. A variable that makes no sense is passed over
    /// here, so that there is a log to complain in: [`order`] does.
    pub fn resolve(flags: &Flags) -> Self {
        let output = &flags.output;
        let talm_log_level = || talm_log_level().ok().flatten();
        Self {
            report: output.report.clone(),
            log_format: output.log_format.unwrap_or_default(),
            log_level: output
                .log_level
                .or_else(talm_log_level)
                .unwrap_or(tracing::Level::INFO),
            progress: output.progress,
        }
    }
}

/// The version spec alone, and warnings of what is odd about it. Reads nothing but what the flags of the version spec
/// name.
pub fn version_spec(flags: &Flags) -> Result<(VersionSpec, Vec<String>), SettingsError> {
    talm_log_level()?;
    version_spec::version_spec(&flags.what)
}

/// What to do. Reads whatever the flags name or leave to be found; what `cluster` knows fills what these leave open.
pub fn order(flags: &Flags, cluster: &ClusterInfo) -> Result<JobConfig, SettingsError> {
    require_root()?;
    talm_log_level()?;
    if let Some(path) = &flags.output.report {
        remove_old_report(path)?;
    }
    if let Some(target) = &flags.cluster.pin {
        target.check_writable()?;
    }
    let host = HostRoot::find(&flags.host);
    let (mut spec, mut warnings) = version_spec::version_spec(&flags.what)?;
    let (storage_conf, crio) = host.storage(&flags.host)?;
    warnings.extend(insecure_registries(&crio));
    warnings.extend(cluster.warnings.iter().cloned());
    let graph_root = match (&flags.host.graph_root, &storage_conf.graph_root) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => host.join(path),
        (None, None) => host.join(GRAPH_ROOT),
    };
    missing_paths::check(&flags.host, &host, &graph_root)?;
    let registries = host.registries(&flags.host, authfile(&flags.host, &host), &crio)?;
    short_names::complete(&mut spec, &registries.registries_conf, &host)?;
    let spool = flags.host.spool.clone();
    let known_end = cluster_settings::end(cluster);
    let deadline = flags.bounds.deadline.map(SignedDuration::unsigned_abs);
    let give_up_after = flags.bounds.give_up_after.map(SignedDuration::unsigned_abs);
    let is_ended =
        deadline.is_some() || flags.bounds.is_ended || cluster_settings::may_be_ended(flags, cluster);
    Ok(JobConfig {
        spec,
        warnings,
        platform: flags.what.platform.clone().unwrap_or_else(Platform::of_this_node),
        spool: spool.unwrap_or_else(|| graph_root.parent().unwrap_or(Path::new("/")).join(SPOOL)),
        graph_root,
        host_state: host.state(&storage_conf),
        storage_conf,
        registries: RegistrySettings {
            // With a deadline, that is when to stop; a link that is down for an hour may come back. A Job of which the API
            // has not told us in time may have one too, and to give up before it would be an error to the hub.
            give_up_after: give_up_after.or((!is_ended).then_some(GIVE_UP_AFTER)),
            proxies: proxy_env::proxies(&host, cluster.proxy.as_ref())?,
            cluster_authorities: cluster_settings::authorities(cluster),
            node_dns_files: host.dns_files(),
            limit: host.limit(flags.bounds.limit_rate.clone().unwrap_or_default()),
            ..registries
        },
        deadline: deadline.and_then(|after| Instant::now().checked_add(after)),
        known_end,
        max_downloads: max_downloads(&flags.bounds)?,
        max_unpacks: flags
            .bounds
            .max_unpacks
            .map_or_else(usable_cpus, NonZeroUsize::from),
        disk_priority: flags.priority.ionice.unwrap_or_default(),
        image_gc_high_threshold: flags
            .bounds
            .image_gc_high_threshold
            .or_else(|| cluster_settings::threshold(cluster))
            .unwrap_or_default(),
    })
}

/// Up to CRI-O 1.34 that list has an effect, from 1.35 it has none; which one this node has is not seen from here, and a
/// registry that was meant to be reached with TLS again must not be reached without.
fn insecure_registries(crio: &CrioConf) -> Option<String> {
    (!crio.insecure_registries.is_empty()).then(|| {
        format!(
            "crio.conf's `insecure_registries` has no effect here: `{}`\nhint: every version of CRI-O reads `insecure = true` in registries.conf",
            crio.insecure_registries.join("`, `")
        )
    })
}

/// The pull secret that was named. TALM's scripts run with the host as their root: its variable is a host path.
fn authfile(paths: &HostPaths, host: &HostRoot) -> Option<PathBuf> {
    let talms = || env::var_os("pull_secret_path").filter(|path| !path.is_empty());
    paths
        .authfile
        .clone()
        .or_else(|| talms().map(|path| host.join(Path::new(&path))))
}

fn max_downloads(bounds: &Bounds) -> Result<NonZeroUsize, SettingsError> {
    let chosen = match bounds.max_downloads {
        Some(chosen) => Some(chosen),
        None => variable("MAX_PULL_THREADS", "a number from 1 to 65535", |text| {
            text.parse().ok()
        })?,
    };
    Ok(chosen.unwrap_or(MAX_DOWNLOADS).into())
}

/// TALM's levels; to its scripts everything above 2 is 2.
fn talm_log_level() -> Result<Option<tracing::Level>, SettingsError> {
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

/// A variable that is set and not empty, parsed.
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

/// Of the CPUs, those that this process may use: under OpenShift's workload partitioning the two or four reserved ones.
/// The standard library asks `sched_getaffinity` and the cgroup's quota.
fn usable_cpus() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}
