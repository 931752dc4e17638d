//! Names without a registry in the version spec, replaced by what the node's CRI-O makes of them.
//!
//! After this the run knows full names only. The node's configuration is read for it only when there is such a name, as
//! CRI-O itself does: a broken file of recorded aliases is nobody's trouble until then.

use std::collections::HashSet;

use super::SettingsError;
use super::host_root::HostRoot;
use crate::oci::Reference;
use crate::registry::{ConfText, RegistriesConf};
use crate::spec::VersionSpec;

/// Where podman records what people chose; containers/image reads it for root, whichever program it is part of.
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
    if let Some(recorded) = host.text(RECORDED_ALIASES)? {
        conf = conf.with_recorded_aliases(&recorded)?;
    }
    if let Some(name) = &mut spec.platform_image {
        full_name(name, &conf)?;
    }
    for list in lists {
        let mut seen = HashSet::new();
        for name in list.iter_mut() {
            full_name(name, &conf)?;
        }
        // The spec may have had both the short and the full name.
        list.retain(|name| seen.insert(name.clone()));
    }
    Ok(())
}

fn full_name(name: &mut Reference, conf: &RegistriesConf) -> Result<(), SettingsError> {
    let full = conf.full_name(name)?;
    if name.is_short() {
        tracing::info!("`{name}` is `{full}` on this node");
    }
    *name = full;
    Ok(())
}
