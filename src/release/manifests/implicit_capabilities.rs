//! Finds capabilities that an update enables although the cluster does not ask for them.
//!
//! If a manifest that the cluster includes now gets a capability in the new release, the CVO enables that capability
//! (`GetImplicitlyEnabledCapabilities` in its `lib/manifest`): nothing disappears from a cluster by an update.

use std::collections::{BTreeMap, BTreeSet};

use super::inclusion::{Exclusion, Inclusion, capabilities};
use super::payload_manifests::PayloadManifests;

impl PayloadManifests {
    /// The capabilities that become enabled when a cluster with `inclusion` moves from `current` to these manifests.
    /// To evaluate them, use these as [`super::Capabilities::implicit`].
    pub fn implicitly_enabled(&self, current: &Self, inclusion: &Inclusion) -> BTreeSet<String> {
        let Some(cluster) = &inclusion.capabilities else {
            return BTreeSet::new();
        };
        let included_now: BTreeMap<_, _> = current
            .manifests()
            .iter()
            .filter(|manifest| !is_off(inclusion.exclusion(&manifest.header)))
            .map(|manifest| (&manifest.header.id, &manifest.header.annotations))
            .collect();
        let mut enabled = BTreeSet::new();
        for manifest in self.manifests() {
            let by_capability = matches!(
                inclusion.exclusion(&manifest.header),
                Some(Exclusion::DisabledCapabilities(_) | Exclusion::UnknownCapabilities(_))
            );
            let Some(before) = included_now.get(&manifest.header.id).filter(|_| by_capability) else {
                continue;
            };
            let before: BTreeSet<_> = before.iter().flat_map(capabilities).collect();
            let now = manifest.header.annotations.iter().flat_map(capabilities);
            let gained = now.filter(|name| !before.contains(name) && !cluster.enabled.contains(*name));
            enabled.extend(gained.map(str::to_owned));
        }
        enabled
    }
}

fn is_off(exclusion: Option<Exclusion>) -> bool {
    exclusion.is_some_and(|exclusion| exclusion.is_certain())
}
