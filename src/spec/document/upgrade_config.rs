//! Reads an UpgradeConfig of the managed-upgrade operator: the release to install, and when.
//!
//! ```text
//! spec.upgradeAt                  RFC 3339: when the upgrade begins
//! spec.desired.image              the release image, or
//! spec.desired.version, .channel  a version that the ClusterVersion offers, newer than the cluster's
//! ```
//!
//! The rules are those of the operator (`pkg/validation`), which also takes an update with known risks.

use std::cmp::Ordering;

use jiff::Timestamp;

use super::DocumentError;
use super::kube_object::KubeObject;
use crate::cluster_version::{ChoiceError, ChosenUpdate, ClusterVersion, HistoryEntry, SemanticVersion};
use crate::oci::Reference;
use crate::oci::go_json::is_time;
use crate::spec::shown;

/// The kind's group, and a group that is written by mistake.
const GROUPS: [&str; 2] = ["upgrade.managed.openshift.io", "managed.openshift.io"];

const UPGRADE_AT: &str = "spec.upgradeAt";

/// Whether an object is an UpgradeConfig.
pub(super) fn is_upgrade_config(object: &KubeObject<'_>) -> bool {
    GROUPS.iter().any(|group| object.is(group, "UpgradeConfig"))
}

/// What an UpgradeConfig asks for.
pub(super) struct UpgradeConfig<'a> {
    pub(super) object: KubeObject<'a>,
    /// When the upgrade begins.
    pub(super) upgrade_at: Timestamp,
    version: &'a str,
    channel: &'a str,
    image: &'a str,
}

impl<'a> UpgradeConfig<'a> {
    /// Reads the object; adds warnings for the user.
    pub(super) fn read(object: KubeObject<'a>, warnings: &mut Vec<String>) -> Result<Self, DocumentError> {
        if object.is(GROUPS[1], "UpgradeConfig") {
            warnings.push(format!(
                "{}: its group is `{}`, but that of UpgradeConfig is `{}`",
                object.title(),
                GROUPS[1],
                GROUPS[0]
            ));
        }
        let text = |path: &str| Ok::<_, DocumentError>(object.text_at(path)?.unwrap_or_default());
        let at = text(UPGRADE_AT)?;
        let upgrade_at: Option<Timestamp> = at.parse().ok().filter(|_| is_time(&format!("\"{at}\"")));
        let Some(upgrade_at) = upgrade_at else {
            let node = object.at(UPGRADE_AT).unwrap_or(object.node);
            let why = format!(
                "`{}` is not an RFC 3339 time, such as `2026-01-31T22:00:00Z`",
                shown(at)
            );
            return Err(object.wrong(UPGRADE_AT, node, why));
        };
        Ok(Self {
            upgrade_at,
            version: text("spec.desired.version")?,
            channel: text("spec.desired.channel")?,
            image: text("spec.desired.image")?,
            object,
        })
    }

    /// Chooses the release; `cluster` is the ClusterVersion of the cluster.
    pub(super) fn choose(&self, cluster: Option<&ClusterVersion>) -> Result<ChosenUpdate, DocumentError> {
        let refused = |why: String| DocumentError::Release {
            object: self.object.title(),
            why,
        };
        if !self.image.is_empty() {
            let unknown = ClusterVersion::default();
            let cluster = cluster.unwrap_or(&unknown);
            let chosen = cluster.choose_image(self.image, self.version);
            return chosen.map_err(|error| refused(error.to_string()));
        }
        if self.version.is_empty() || self.channel.is_empty() {
            return Err(refused(
                "`spec.desired` needs either an image, or a version and a channel".to_owned(),
            ));
        }
        let Some(cluster) = cluster else {
            return Err(refused(format!(
                "`spec.desired` has the version `{}` without an image, and only the cluster knows the image\n\
                 hint: add the cluster's ClusterVersion to the input (`oc get clusterversion version -o yaml`), set \
                 `spec.desired.image`, or name the image with `--platform-image`",
                shown(self.version)
            )));
        };
        self.is_upgrade(cluster).map_err(refused)?;
        let with_channel = |error: ChoiceError| match error {
            ChoiceError::NotOffered { .. } if cluster.spec.channel != self.channel => format!(
                "the ClusterVersion has the updates of the channel `{}`, not of `{}`: {error}",
                shown(&cluster.spec.channel),
                shown(self.channel)
            ),
            error => error.to_string(),
        };
        let chosen = cluster.choose_version(self.version);
        chosen.map_err(|error| refused(with_channel(error)))
    }

    /// Whether the cluster has completed this upgrade. The operator keeps the object until there is a new one.
    pub(super) fn is_completed(&self, cluster: &ClusterVersion) -> bool {
        let image: Option<Reference> = self.image.parse().ok();
        let is_it = |entry: &HistoryEntry| match &image {
            Some(image) => entry.image.parse().as_ref() == Ok(image),
            None => self.image.is_empty() && !self.version.is_empty() && entry.version == self.version,
        };
        let mut history = cluster.status.history.iter();
        history.any(|entry| entry.is_completed() && is_it(entry))
    }

    /// The operator refuses a downgrade and the cluster's own version.
    fn is_upgrade(&self, cluster: &ClusterVersion) -> Result<(), String> {
        let Some(current) = cluster.completed().map(|entry| &entry.version[..]) else {
            return Ok(());
        };
        let versions = (self.version.parse::<SemanticVersion>(), current.parse());
        let (Ok(wanted), Ok(present)) = versions else {
            return Ok(());
        };
        let (version, current) = (shown(self.version), shown(current));
        match wanted.cmp(&present) {
            Ordering::Greater => Ok(()),
            Ordering::Equal => Err(format!(
                "the desired version `{version}` is the cluster's current version"
            )),
            Ordering::Less => Err(format!(
                "downgrades are unsupported: the desired version is `{version}`, the cluster's is `{current}`"
            )),
        }
    }
}
