//! Reads from the API which release the cluster is asked to install, for `--from-cluster`.
//!
//! ```text
//! config.openshift.io/v1 clusterversions/version                                 required
//! upgrade.managed.openshift.io/v1alpha1 upgradeconfigs/managed-upgrade-config    only on clusters with its operator
//! ```
//!
//! The objects are kept as the API returned them: [`crate::spec`] reads them like those of files. Unlike everything else that
//! is read from the API, they cannot be left out.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort, parse};
use super::rbac::{GET_CLUSTER_VERSION, GET_UPGRADE_CONFIG, Rule};
use crate::cluster_version::ClusterVersion;

/// The singleton of ClusterVersion.
pub(super) const VERSION: &str = "version";

/// The only UpgradeConfig that the managed-upgrade operator handles (its `pkg/upgradeconfigmanager`).
const UPGRADE_CONFIG: &str = "managed-upgrade-config";

/// The objects that request a release.
#[derive(Debug)]
pub struct UpgradeObjects {
    cluster_version: Bytes,
    upgrade_config: Option<Bytes>,
    /// The same as `cluster_version`.
    pub(super) version: ClusterVersion,
}

impl UpgradeObjects {
    /// Queries the API and waits up to `patience` if it is busy.
    pub async fn query(api: &Api, patience: Duration) -> Result<Self, ClusterError> {
        Self::query_with(api, Effort::patient(patience)).await
    }

    pub(super) async fn query_with(api: &Api, effort: Effort) -> Result<Self, ClusterError> {
        let version = object(api, &GET_CLUSTER_VERSION, VERSION, "ClusterVersion", effort);
        let config = object(api, &GET_UPGRADE_CONFIG, UPGRADE_CONFIG, "UpgradeConfig", effort);
        let (version, config) = tokio::join!(version, config);
        let cluster_version = match version {
            Err(error) if error.is_not_found() => return Err(ClusterError::NoClusterVersion),
            found => found?,
        };
        Ok(Self {
            version: parse(&GET_CLUSTER_VERSION, &cluster_version)?,
            cluster_version,
            upgrade_config: match config {
                // Also if the kind does not exist.
                Err(error) if error.is_not_found() => None,
                found => Some(found?),
            },
        })
    }

    /// The JSON of each object.
    pub fn bytes(&self) -> impl Iterator<Item = &[u8]> {
        let objects = [Some(&self.cluster_version), self.upgrade_config.as_ref()];
        objects.into_iter().flatten().map(|object| &object[..])
    }
}

/// Reads an object of this kind. Another answer must not count as an object that requests nothing.
async fn object(
    api: &Api,
    rule: &Rule,
    name: &str,
    kind: &str,
    effort: Effort,
) -> Result<Bytes, ClusterError> {
    #[derive(Deserialize)]
    struct Typed {
        kind: String,
    }
    let bytes = api.get_bytes(rule, name, effort).await?;
    match parse::<Typed>(rule, &bytes)?.kind == kind {
        true => Ok(bytes),
        false => Err(ClusterError::Unexpected {
            request: rule.request(),
            why: format!("it is no {kind}"),
        }),
    }
}
