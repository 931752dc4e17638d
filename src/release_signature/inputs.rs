//! Chooses the keyrings and the signature stores: flags, else the running release, else the cluster's API.

use super::keyring_file::NamedKeyring;
use super::reasons::Reasons;
use super::running_release::of_running_release;
use super::signature_store::StoreUrl;
use super::verification_config_map::VerificationConfigMap;
use crate::cluster::{ClusterRelease, MANAGED_NAMESPACE};
use crate::oci::{Platform, Reference};
use crate::store::{Inventory, Store};

/// What a verification uses.
#[derive(Clone, Debug)]
pub struct Inputs {
    release_keys: Vec<NamedKeyring>,
    /// `--signature-store`.
    pub(super) signature_stores: Vec<StoreUrl>,
    /// Of the running release, else of the cluster; or why there is none.
    pub(super) config_map: Result<VerificationConfigMap, String>,
    pub(super) cluster: ClusterRelease,
}

impl Inputs {
    /// Uses the keyrings of `--release-keys` and the stores of `--signature-store`. What they leave open is read from the
    /// store, with the ClusterVersion's or the container's name for the running release, or taken from the API.
    ///
    /// It reads files.
    pub fn gather(
        release: &Reference,
        release_keys: Vec<NamedKeyring>,
        signature_stores: Vec<StoreUrl>,
        cluster: ClusterRelease,
        store: &Store,
        inventory: &Inventory,
        platform: &Platform,
    ) -> Self {
        let config_map = match release_keys.is_empty() || signature_stores.is_empty() {
            true => of_running_release(release, &cluster, store, inventory, platform),
            false => Err("the flags make it unnecessary".to_owned()),
        };
        Self::new(release, release_keys, signature_stores, config_map, cluster)
    }

    fn new(
        release: &Reference,
        release_keys: Vec<NamedKeyring>,
        signature_stores: Vec<StoreUrl>,
        running: Result<VerificationConfigMap, String>,
        cluster: ClusterRelease,
    ) -> Self {
        // A running operator has read its ConfigMap successfully. So an unusable one is damaged, or we misread it, and the
        // operator's own copy in the cluster may be better. If not, nothing is known to be wrong with the release.
        let config_map = running.or_else(|why| {
            let of_cluster = match is_being_applied(release, &cluster) {
                true => Err("an update to the release that is verified may have written it".to_owned()),
                false => cluster.verification.as_ref().map_err(String::clone),
            };
            let parsed = of_cluster
                .and_then(|data| VerificationConfigMap::parse(data).map_err(|error| error.to_string()));
            parsed.map_err(|error| {
                let mut reasons = Reasons::default();
                reasons.add(&why);
                let name = format!("`{MANAGED_NAMESPACE}/release-verification`");
                reasons.add(&format!("ConfigMap {name} of the cluster: {error}"));
                reasons.to_string()
            })
        });
        Self {
            release_keys,
            signature_stores,
            config_map,
            cluster,
        }
    }

    /// The keyrings; at least one.
    pub(super) fn keyrings(&self) -> Result<&[NamedKeyring], &str> {
        match (&self.release_keys[..], &self.config_map) {
            ([], Ok(config_map)) => Ok(&config_map.keyrings),
            ([], Err(why)) => Err(why),
            (keyrings, _) => Ok(keyrings),
        }
    }
}

/// Whether an update to this release has begun, perhaps a forced one, which is not verified.
fn is_being_applied(release: &Reference, cluster: &ClusterRelease) -> bool {
    let version = cluster.version.as_ref().ok();
    let partial = version.and_then(|version| version.partial());
    let partial = partial.and_then(|entry| entry.image.parse::<Reference>().ok());
    partial.is_some_and(|image| image.digest().is_some() && image.digest() == release.digest())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::cluster_version::{ClusterVersion, HistoryEntry};
    use crate::oci::Digest;

    /// Its operator may have replaced the cluster's keys by its own.
    #[test]
    fn keys_of_a_cluster_that_updates_to_the_release_are_not_used() {
        let [release, other] = [b"release", b"another"].map(|text| format!("quay.io/r@{}", Digest::of(text)));
        for (partial, is_applied) in [
            (Some(release.clone()), true),
            (Some(release.replace("quay.io", "mirror.io")), true),
            (Some(other), false),
            (None, false),
        ] {
            let mut version = ClusterVersion::default();
            version.status.history.extend(partial.map(|image| HistoryEntry {
                state: "Partial".to_owned(),
                image,
                ..HistoryEntry::default()
            }));
            let cluster = ClusterRelease {
                version: Ok(version),
                ..ClusterRelease::default()
            };
            let release = release.parse().unwrap();
            assert_eq!(is_being_applied(&release, &cluster), is_applied, "{cluster:?}");
        }
    }
}
