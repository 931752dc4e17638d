//! Resolves the flags of `delta create` to the configuration of a creation.

use std::num::NonZeroUsize;

use jiff::SignedDuration;

use super::crio_conf::CrioConf;
use super::env_variables::{authfile, max_downloads, usable_cpus};
use super::host_root::HostRoot;
use super::memory::usable_memory;
use super::{GIVE_UP_AFTER, SettingsError, proxy_env};
use crate::cli::DeltaCreateFlags;
use crate::delta_creation::{CreationConfig, Target};
use crate::oci::Platform;
use crate::registry::RegistrySettings;
use crate::report::remove_old_report;

/// The configuration of `delta create`, from its flags and the files of the host.
pub fn creation_config(flags: &DeltaCreateFlags) -> Result<CreationConfig, SettingsError> {
    if let Some(path) = &flags.log.report {
        remove_old_report(path)?;
    }
    let host = HostRoot::find(&flags.registries);
    let authfile = authfile(&flags.registries, &host);
    // CRI-O's own settings are those of a node.
    let registries = host.registries(&flags.registries, None, authfile, &CrioConf::default())?;
    let target = match (&flags.push, &flags.output_layout) {
        (Some(repository), _) => Target::Repository(repository.clone()),
        (None, layout) => Target::Layout(layout.clone().unwrap_or_default()),
    };
    Ok(CreationConfig {
        from: flags.from.clone(),
        to: flags.to.clone(),
        images: flags.image_pairs(),
        target,
        platform: flags.platform.clone().unwrap_or_else(Platform::of_this_node),
        registries: RegistrySettings {
            give_up_after: flags.deadline.is_none().then_some(GIVE_UP_AFTER),
            proxies: proxy_env::proxies(&host, None)?,
            node_dns_files: host.dns_files(),
            limit: host.limit(flags.limit_rate.clone().unwrap_or_default()),
            ..registries
        },
        work_dir: flags.work_dir.clone(),
        memory: flags.memory.unwrap_or_else(|| usable_memory() / 2),
        jobs: flags.jobs.map_or_else(usable_cpus, NonZeroUsize::from),
        max_downloads: max_downloads(flags.max_downloads)?,
        deadline: flags.deadline.map(SignedDuration::unsigned_abs),
    })
}
