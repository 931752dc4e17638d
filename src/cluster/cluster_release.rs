//! Reads from the API what the cluster has for the verification of a release's signature: keys, signatures, running release.
//!
//! ```text
//! openshift-config-managed ConfigMap release-verification      .data: keyrings and signature stores
//! openshift-config-managed ConfigMaps with the label           .binaryData: signatures
//!   release.openshift.io/verification-signatures
//! config.openshift.io/v1 clusterversions/version               .spec.signatureStores, .status.history
//! ```
//!
//! A value that cannot be read causes no warning: flags, the store or the other values may be enough. The reason is part of the
//! verdict's message if they are not.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::rbac::{GET_CLUSTER_VERSION, GET_VERIFICATION, LIST_SIGNATURES, MANAGED_NAMESPACE};

/// The ConfigMap that the cluster-version operator applies from the payload of the running release.
const VERIFICATION: &str = "release-verification";

/// The singleton of ClusterVersion.
const VERSION: &str = "version";

/// The beginning of a key with a signature: the digest's algorithm.
const SIGNATURE_KEY: &str = "sha256-";

/// Which values to read; flags may make some of them unnecessary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReleaseNeeds {
    /// Keyrings: no flag has any.
    pub keys: bool,
    /// Signatures: no flag names a store.
    pub signatures: bool,
}

/// What the cluster has for the verification of a release; each value, or why it is unknown.
#[derive(Clone, Debug)]
pub struct ClusterRelease {
    /// The data of the ConfigMap `release-verification`.
    pub verification: Result<BTreeMap<String, String>, String>,
    /// The signatures of all releases in labelled ConfigMaps.
    pub signatures: Result<Vec<ClusterSignature>, String>,
    /// The ClusterVersion.
    pub version: Result<ClusterVersion, String>,
}

/// A signature in a ConfigMap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterSignature {
    /// Namespace and name of the ConfigMap.
    pub config_map: String,
    /// `sha256-<hex of the release's digest>-<number>`
    pub key: String,
    /// The signed message.
    pub bytes: Vec<u8>,
}

/// What is read of the ClusterVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterVersion {
    /// The image of the newest completed release. During an update this is the release that the cluster comes from: the
    /// target is `status.desired` from the moment that its payload is loaded.
    pub completed: Option<String>,
    /// The image of an update that is not completed. Its operator may have replaced the cluster's keys by its own.
    pub partial: Option<String>,
    /// The URLs of `spec.signatureStores`. An empty list differs from none: then the cluster-version operator verifies
    /// nothing.
    pub signature_stores: Option<Vec<String>>,
}

impl ClusterRelease {
    /// No value, for this reason.
    fn unknown(why: &str) -> Self {
        Self {
            verification: Err(why.to_owned()),
            signatures: Err(why.to_owned()),
            version: Err(why.to_owned()),
        }
    }

    /// Reads what is needed.
    pub(super) async fn query(api: &Api, needs: ReleaseNeeds, effort: Effort) -> Self {
        if needs == ReleaseNeeds::default() {
            return Self::unknown("the flags make it unnecessary");
        }
        let signatures = async {
            match needs.signatures {
                true => signatures(api, effort).await.map_err(|error| error.to_string()),
                false => Err("the flags make it unnecessary".to_owned()),
            }
        };
        let verification = api.get::<ConfigMap>(&GET_VERIFICATION, VERIFICATION, effort);
        let version = api.get::<RawClusterVersion>(&GET_CLUSTER_VERSION, VERSION, effort);
        let (verification, version, signatures) = tokio::join!(verification, version, signatures);
        Self {
            verification: verification
                .map(|map| map.data.unwrap_or_default())
                .map_err(|error| error.to_string()),
            signatures,
            version: version
                .map(RawClusterVersion::read)
                .map_err(|error| error.to_string()),
        }
    }
}

impl Default for ClusterRelease {
    fn default() -> Self {
        Self::unknown("the cluster's API is not available")
    }
}

async fn signatures(api: &Api, effort: Effort) -> Result<Vec<ClusterSignature>, ClusterError> {
    let list: ConfigMapList = api.get(&LIST_SIGNATURES, "", effort).await?;
    let mut signatures = Vec::new();
    for map in list.items.unwrap_or_default() {
        let config_map = format!("{MANAGED_NAMESPACE}/{}", map.metadata.name);
        let entries = map.binary_data.unwrap_or_default().into_iter();
        for (key, base64) in entries.filter(|(key, _)| key.starts_with(SIGNATURE_KEY)) {
            // The API server has decoded it before.
            signatures.extend(STANDARD.decode(base64).ok().map(|bytes| ClusterSignature {
                config_map: config_map.clone(),
                key,
                bytes,
            }));
        }
    }
    Ok(signatures)
}

#[derive(Deserialize)]
struct ConfigMapList {
    items: Option<Vec<ConfigMap>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ConfigMap {
    metadata: Metadata,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawClusterVersion {
    spec: Spec,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    signature_stores: Option<Vec<SignatureStore>>,
}

#[derive(Deserialize)]
struct SignatureStore {
    url: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Status {
    history: Option<Vec<HistoryEntry>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HistoryEntry {
    state: String,
    image: String,
}

impl RawClusterVersion {
    fn read(self) -> ClusterVersion {
        // Newest first.
        let mut history = self.status.history.unwrap_or_default().into_iter().peekable();
        let partial = history.peek().filter(|entry| entry.state != "Completed");
        let partial = partial.map(|entry| entry.image.clone());
        let completed = history.find(|entry| entry.state == "Completed");
        let stores = self.spec.signature_stores;
        ClusterVersion {
            completed: completed.map(|entry| entry.image),
            partial,
            signature_stores: stores.map(|stores| stores.into_iter().map(|store| store.url).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn read(object: serde_json::Value) -> ClusterVersion {
        serde_json::from_value::<RawClusterVersion>(object)
            .unwrap()
            .read()
    }

    #[test]
    fn the_newest_completed_release_counts() {
        let version = read(json!({"status": {
            "desired": {"image": "q/r@sha256:c"},
            "history": [
                {"state": "Partial", "image": "q/r@sha256:c"},
                {"state": "Completed", "image": "q/r@sha256:b", "completionTime": "2026-01-02T03:04:05Z"},
                {"state": "Completed", "image": "q/r@sha256:a"},
            ],
        }}));
        assert_eq!(version.completed.as_deref(), Some("q/r@sha256:b"));
        for history in [
            json!(null),
            json!([]),
            json!([{"state": "Partial", "image": "x"}]),
        ] {
            assert_eq!(read(json!({"status": {"history": history}})).completed, None);
        }
        assert_eq!(read(json!({})), ClusterVersion::default());
    }

    #[test]
    fn an_empty_list_of_stores_differs_from_none() {
        let stores = |spec: serde_json::Value| read(json!({"spec": spec})).signature_stores;
        assert_eq!(stores(json!({})), None);
        assert_eq!(stores(json!({"signatureStores": null})), None);
        assert_eq!(stores(json!({"signatureStores": []})), Some(vec![]));
        let two =
            json!({"signatureStores": [{"url": "https://a", "ca": {"name": ""}}, {"url": "https://b"}]});
        assert_eq!(
            stores(two),
            Some(vec!["https://a".to_owned(), "https://b".to_owned()])
        );
    }
}
