//! Resolves flags, environment and host files to the configuration of a run.
//!
//! Only this module reads the environment. A path without a flag is found below the host root where CRI-O finds it. A path
//! of a flag is used as it is, because the user and this program see the same file system.

mod cluster_settings;
mod creation;
mod crio_conf;
mod env_variables;
mod error;
mod export;
mod host_files;
mod host_root;
mod kubelet_conf;
mod memory;
mod missing_paths;
mod proxy_env;
mod registry_files;
mod signature_policy;
mod spec_short_names;
mod storage_files;
mod store_settings;
mod time_zone;
mod version_spec;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use jiff::SignedDuration;

use crate::cli::{Flags, LogFormat, MediaFlags, Output};
use crate::cluster::{ClusterError, ClusterInfo, UpgradeObjects};
use crate::job::{ClusterView, JobConfig, OnlyUsedConfig, ReleaseSignatureConfig, RunEnd, UpgradeTime};
use crate::media::{MediumPath, found as found_media};
use crate::registry::RegistrySettings;
use crate::release_signature::read_keyring_files;
use crate::report::{ProgressMode, remove_old_report};
use crate::store::require_root;

pub use cluster_settings::{cluster_patience, service_account};
pub use creation::creation_config;
use crio_conf::CrioConf;
use env_variables::{authfile, colours, max_downloads, talm_log_level, usable_cpus};
pub use error::SettingsError;
pub use export::export_config;
use host_root::HostRoot;
pub use kubelet_conf::host_kubelet;
pub use store_settings::StoreSettings;
pub use version_spec::ResolvedSpec;

/// How long a run without a deadline continues without any progress: longer than a switch or a registry takes to reboot.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30 * 60);

/// How a run reports; resolved first, so that every later failure can be reported.
#[derive(Clone, Debug)]
pub struct OutputSettings {
    /// The path of the report.
    pub report: Option<PathBuf>,
    /// The format of the log.
    pub log_format: LogFormat,
    /// Its level.
    pub log_level: tracing::Level,
    /// Bars, lines or neither.
    pub progress: ProgressMode,
    /// Whether the log has colours; if not set, only on a terminal.
    pub colours: Option<bool>,
}

impl OutputSettings {
    /// From the flags, then the environment. An invalid variable is ignored here, because the log is needed to report it;
    /// [`job_config`] reports it.
    pub fn resolve(output: &Output) -> Self {
        let talm_log_level = || talm_log_level().ok().flatten();
        Self {
            report: output.report.clone(),
            log_format: output.log_format.unwrap_or_default(),
            log_level: output
                .log_level
                .or_else(talm_log_level)
                .unwrap_or(tracing::Level::INFO),
            progress: output.progress,
            colours: colours(),
        }
    }
}

/// The version spec. Reads only the files of the version spec's flags; `upgrade` is what the cluster's API returned for
/// `--from-cluster`, if there is an API.
pub fn version_spec(
    flags: &Flags,
    upgrade: Option<&Result<UpgradeObjects, ClusterError>>,
) -> Result<ResolvedSpec, SettingsError> {
    talm_log_level()?;
    let upgrade = match (flags.what.release.from_cluster, upgrade) {
        (false, _) => None,
        (true, None) => return Err(SettingsError::NoServiceAccount),
        (true, Some(Ok(objects))) => Some(objects),
        (true, Some(Err(error))) => {
            return Err(SettingsError::Cluster {
                why: error.to_string(),
                is_refusal: error.is_refusal(),
            });
        }
    };
    version_spec::version_spec(&flags.what, upgrade)
}

/// The configuration of a run, from the flags, the files of the host and, where both leave a value open, the cluster.
pub fn job_config(flags: &Flags, cluster: &ClusterInfo) -> Result<JobConfig, SettingsError> {
    require_root()?;
    if let Some(path) = &flags.output.report {
        remove_old_report(path)?;
    }
    if let Some(target) = &flags.cluster.pin {
        target.check_writable()?;
    }
    let host = HostRoot::find(&flags.host.registries);
    let ResolvedSpec {
        mut spec,
        mut warnings,
        cluster_version,
        nothing_requested,
        upgrade_at,
    } = version_spec(flags, cluster.upgrade.as_ref())?;
    let (storage_conf, crio) = host.storage(&flags.host)?;
    warnings.extend(insecure_registries(&crio));
    warnings.extend(cluster.warnings.iter().cloned());
    let graph_root = store_settings::graph_root(&flags.host, &storage_conf, &host);
    missing_paths::check(&flags.host, &host, &graph_root)?;
    let paths = &flags.host.registries;
    let registries_d = flags.host.registries_d.as_deref();
    let registries = host.registries(paths, registries_d, authfile(paths, &host), &crio)?;
    spec_short_names::complete(&mut spec, &registries.registries_conf, &host)?;
    let (signature_policy, policy_warnings) =
        host.signature_policy(flags.signatures.policy.as_deref(), &crio)?;
    warnings.extend(policy_warnings);
    let deadline = flags.bounds.deadline.map(SignedDuration::unsigned_abs);
    let give_up_after = flags.bounds.give_up_after.map(SignedDuration::unsigned_abs);
    let end = RunEnd {
        deadline: deadline.and_then(|after| Instant::now().checked_add(after)),
        job: cluster_settings::job_end(cluster),
        upgrade: upgrade_at.and_then(UpgradeTime::new),
    };
    let is_ended =
        end.stop().is_some() || flags.bounds.is_ended || cluster_settings::may_be_ended(flags, cluster);
    Ok(JobConfig {
        spec,
        nothing_requested,
        warnings,
        platform: store_settings::platform(flags),
        spool: store_settings::spool(&flags.host, &graph_root),
        graph_root,
        signature_policy,
        release_signature: ReleaseSignatureConfig {
            keys: read_keyring_files(&flags.signatures.release_keys)?,
            stores: flags.signatures.signature_stores.clone(),
            cluster: cluster.release.clone(),
            required: flags.signatures.require_release_signature,
        },
        cluster: ClusterView {
            // Files describe the cluster at another time, and perhaps another cluster.
            version: match (&cluster.release.version, cluster_version) {
                (Err(_), Some(version)) => Ok(version),
                (version, _) => version.clone(),
            },
            filters: cluster.manifest_filters.clone(),
        },
        only_used: OnlyUsedConfig {
            is_requested: flags.what.only_used,
            pod_templates: cluster.pod_templates.clone(),
            is_pinned: flags.cluster.pin.is_some(),
        },
        pins: crio.pins(),
        upgrade: None,
        deltas: (!flags.deltas.no_deltas).then(|| flags.deltas.deltas.clone()),
        host_state: host.state(&storage_conf),
        storage_conf,
        media: media(&flags.media, &host),
        registries: RegistrySettings {
            // A run with a deadline ends there; until then, a link that is down for an hour may recover. A Job that the API
            // did not describe in time may have a deadline too, and giving up earlier would be an error for the hub.
            give_up_after: give_up_after.or((!is_ended).then_some(GIVE_UP_AFTER)),
            proxies: proxy_env::proxies(&host, cluster.proxy.as_ref())?,
            cluster_authorities: cluster_settings::authorities(cluster),
            node_dns_files: host.dns_files(),
            limit: host.limit(flags.bounds.limit_rate.clone().unwrap_or_default()),
            ..registries
        },
        end,
        max_downloads: max_downloads(flags.bounds.max_downloads)?,
        max_unpacks: flags
            .bounds
            .max_unpacks
            .map_or_else(usable_cpus, NonZeroUsize::from),
        disk_priority: flags.priority.ionice.unwrap_or_default(),
        io_budget: flags.priority.io_budget.unwrap_or_default(),
        image_gc_high_threshold: flags
            .bounds
            .image_gc_high_threshold
            .or_else(|| cluster_settings::threshold(cluster))
            .unwrap_or_default(),
    })
}

/// The media of the flags, then those that the host has.
fn media(flags: &MediaFlags, host: &HostRoot) -> Vec<MediumPath> {
    let named = flags.blobs_from.iter().map(MediumPath::named);
    named.chain(found_media(&host.0)).collect()
}

/// The list has an effect up to CRI-O 1.34, and none from 1.35 on. The node's version is unknown here, and a registry that
/// requires TLS again must not be reached without it.
fn insecure_registries(crio: &CrioConf) -> Option<String> {
    (!crio.insecure_registries.is_empty()).then(|| {
        format!(
            "crio.conf's `insecure_registries` has no effect here: `{}`\nhint: set `insecure = true` in registries.conf, which every version of CRI-O reads",
            crio.insecure_registries.join("`, `")
        )
    })
}
