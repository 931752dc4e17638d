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
use super::upgrade_objects::VERSION;
use crate::cluster_version::ClusterVersion;

/// The ConfigMap that the cluster-version operator applies from the payload of the running release.
const VERIFICATION: &str = "release-verification";

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

impl ClusterRelease {
    /// No value, for this reason.
    fn unknown(why: &str) -> Self {
        Self {
            verification: Err(why.to_owned()),
            signatures: Err(why.to_owned()),
            version: Err(why.to_owned()),
        }
    }

    /// Reads what is needed, and always the ClusterVersion, unless it is `known`: it also says which images an update needs
    /// first.
    pub(super) async fn query(
        api: &Api,
        needs: ReleaseNeeds,
        known: Option<ClusterVersion>,
        effort: Effort,
    ) -> Self {
        let version = async {
            if let Some(known) = known {
                return Ok(known);
            }
            let version = api.get::<ClusterVersion>(&GET_CLUSTER_VERSION, VERSION, effort);
            version.await.map_err(|error| error.to_string())
        };
        if needs == ReleaseNeeds::default() {
            return Self {
                version: version.await,
                ..Self::unknown("the flags make it unnecessary")
            };
        }
        let signatures = async {
            match needs.signatures {
                true => signatures(api, effort).await.map_err(|error| error.to_string()),
                false => Err("the flags make it unnecessary".to_owned()),
            }
        };
        let verification = api.get::<ConfigMap>(&GET_VERIFICATION, VERIFICATION, effort);
        let (verification, version, signatures) = tokio::join!(verification, version, signatures);
        Self {
            verification: verification
                .map(|map| map.data.unwrap_or_default())
                .map_err(|error| error.to_string()),
            signatures,
            version,
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
