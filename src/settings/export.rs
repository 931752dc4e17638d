//! Resolves the flags of `export` to the configuration of an export.

use jiff::SignedDuration;

use super::crio_conf::CrioConf;
use super::env_variables::{authfile, max_downloads};
use super::host_root::HostRoot;
use super::{GIVE_UP_AFTER, ResolvedSpec, SettingsError, proxy_env, spec_short_names, version_spec};
use crate::cli::{ExportFlags, VersionSpecFlags};
use crate::export::ExportConfig;
use crate::oci::Platform;
use crate::registry::RegistrySettings;
use crate::report::remove_old_report;

/// The platform of the nodes, which is seldom another one, whatever this machine's is.
const PLATFORM: (&str, &str) = ("linux", "amd64");

/// The configuration of `export`, from its flags and the files of the host.
pub fn export_config(flags: &ExportFlags) -> Result<ExportConfig, SettingsError> {
    if let Some(path) = &flags.log.report {
        remove_old_report(path)?;
    }
    let what = VersionSpecFlags {
        images: flags.images.clone(),
        ..VersionSpecFlags::default()
    };
    let ResolvedSpec {
        mut spec,
        warnings,
        nothing_requested,
        ..
    } = version_spec::version_spec(&what, None)?;
    if let Some(why) = nothing_requested {
        return Err(SettingsError::NothingToExport { why });
    }
    let host = HostRoot::find(&flags.registries);
    let authfile = authfile(&flags.registries, &host);
    // CRI-O's own settings are those of a node.
    let registries_d = flags.registries_d.as_deref();
    let registries = host.registries(&flags.registries, registries_d, authfile, &CrioConf::default())?;
    spec_short_names::complete(&mut spec, &registries.registries_conf, &host)?;
    let (os, architecture) = PLATFORM;
    Ok(ExportConfig {
        spec,
        warnings,
        since: flags.since.clone(),
        platform: what.images.platform.clone().unwrap_or_else(|| Platform {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }),
        output: flags.destination.clone(),
        work_dir: flags.work_dir.clone(),
        registries: RegistrySettings {
            give_up_after: flags.deadline.is_none().then_some(GIVE_UP_AFTER),
            proxies: proxy_env::proxies(&host, None)?,
            node_dns_files: host.dns_files(),
            limit: host.limit(flags.limit_rate.clone().unwrap_or_default()),
            ..registries
        },
        signature_stores: flags.signature_stores.clone(),
        max_downloads: max_downloads(flags.max_downloads)?,
        deadline: flags.deadline.map(SignedDuration::unsigned_abs),
    })
}
