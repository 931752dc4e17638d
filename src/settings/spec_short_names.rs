//! Completes names without a registry in the version spec, as the node's CRI-O resolves them.
//!
//! After this a run has full names only. As in CRI-O, the file of recorded aliases is read only if there is a short name, so
//! that a broken one does no harm otherwise.

use std::collections::HashSet;

use super::SettingsError;
use super::host_root::HostRoot;
use crate::oci::Reference;
use crate::registry::{ConfText, RegistriesConf};
use crate::spec::VersionSpec;

/// The aliases that podman records when a user selects a registry; containers/image reads it in every program of root.
const RECORDED_ALIASES: &str = "var/cache/containers/short-name-aliases.conf";

/// Completes every name in the spec. `files` are registries.conf and its drop-ins.
pub(super) fn complete(
    spec: &mut VersionSpec,
    files: &[ConfText],
    host: &HostRoot,
) -> Result<(), SettingsError> {
    let lists = [&mut spec.operators_indexes, &mut spec.additional_images];
    let all = spec
        .platform_image
        .iter()
        .chain(lists.iter().flat_map(|list| list.iter()));
    if !all.into_iter().any(Reference::is_short) {
        return Ok(());
    }
    let mut conf = RegistriesConf::parse(files)?;
    if let Some(recorded) = host.file(RECORDED_ALIASES)? {
        conf = conf.with_recorded_aliases(&recorded)?;
    }
    if let Some(name) = &mut spec.platform_image {
        full_name(name, &conf)?;
    }
    for list in lists {
        let mut unique = HashSet::new();
        for name in list.iter_mut() {
            full_name(name, &conf)?;
        }
        // The spec may contain both the short and the full name.
        list.retain(|name| unique.insert(name.clone()));
    }
    Ok(())
}

fn full_name(name: &mut Reference, conf: &RegistriesConf) -> Result<(), SettingsError> {
    let full = conf.full_name(name)?;
    if name.is_short() {
        tracing::info!("the short name `{name}` is `{full}` on this node");
    }
    *name = full;
    Ok(())
}
