//! Defines the ClusterVersion of `config.openshift.io/v1`: what a cluster runs, what is on offer, and what it is asked to install.
//!
//! ```text
//! spec.desiredUpdate ──choose──→ Choice: the image with its warnings, already desired, or nothing requested
//! status.availableUpdates, status.conditionalUpdates ──↗        └─recommended─→ the newest update of the channel's z-stream
//! ```
//!
//! The fields have the names of the API (openshift/api `config/v1/types_cluster_version.go`). An absent field, `null` and an
//! empty text are the same, because the API's types have no difference either; where the operator makes one, the field is an
//! `Option`. Nothing here does I/O.

mod choice;
mod semantic_version;

use std::collections::HashSet;

use serde::{Deserialize, Deserializer};

use crate::oci::{Digest, Reference};
pub use choice::{Choice, ChoiceError, ChosenUpdate, Offer, Offers};
pub use semantic_version::SemanticVersion;

/// The value of `architecture` for a payload that is a manifest list.
const MULTI: &str = "Multi";

/// How many characters of a foreign text a message repeats.
const SHOWN: usize = 200;

/// What is read of a ClusterVersion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ClusterVersion {
    /// What the cluster is asked for.
    #[serde(deserialize_with = "null_is_default")]
    pub spec: Spec,
    /// What the cluster-version operator reports.
    #[serde(deserialize_with = "null_is_default")]
    pub status: Status,
}

/// `spec`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The update that the cluster is asked to install.
    pub desired_update: Option<DesiredUpdate>,
    /// The URL of the update graph; empty for Red Hat's.
    #[serde(deserialize_with = "null_is_default")]
    pub upstream: String,
    /// The channel of the update graph, as in `stable-4.16`.
    #[serde(deserialize_with = "null_is_default")]
    pub channel: String,
    /// Where signatures of releases are. An empty list differs from none: then the operator verifies nothing.
    pub signature_stores: Option<Vec<SignatureStore>>,
    /// Objects that the operator may not manage.
    #[serde(deserialize_with = "null_is_default")]
    pub overrides: Vec<ComponentOverride>,
}

/// `spec.desiredUpdate`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DesiredUpdate {
    /// `Multi`, or empty for the cluster's own.
    #[serde(deserialize_with = "null_is_default")]
    pub architecture: String,
    /// A semantic version.
    #[serde(deserialize_with = "null_is_default")]
    pub version: String,
    /// The release image; it has precedence over the version.
    #[serde(deserialize_with = "null_is_default")]
    pub image: String,
    /// Whether the operator installs a release that it cannot verify.
    #[serde(deserialize_with = "null_is_default")]
    pub force: bool,
}

/// An item of `spec.signatureStores`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SignatureStore {
    /// The store's URL.
    #[serde(deserialize_with = "null_is_default")]
    pub url: String,
}

/// An item of `spec.overrides`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ComponentOverride {
    /// Of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub kind: String,
    /// Of the object, without a version.
    #[serde(deserialize_with = "null_is_default")]
    pub group: String,
    /// Of the object; empty for cluster-scoped objects.
    #[serde(deserialize_with = "null_is_default")]
    pub namespace: String,
    /// Of the object.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
    /// Whether the operator leaves the object alone.
    #[serde(deserialize_with = "null_is_default")]
    pub unmanaged: bool,
}

/// `status`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The release that the operator applies: the target of a running update.
    #[serde(deserialize_with = "null_is_default")]
    pub desired: Release,
    /// The releases that the cluster has had, newest first.
    #[serde(deserialize_with = "null_is_default")]
    pub history: Vec<HistoryEntry>,
    /// Which capabilities the release has, and which are on.
    #[serde(deserialize_with = "null_is_default")]
    pub capabilities: Capabilities,
    /// Progressing, Failing and others.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
    /// The recommended updates.
    #[serde(deserialize_with = "null_is_default")]
    pub available_updates: Vec<Release>,
    /// The updates with known risks. One that is recommended for this cluster is in `available_updates` too.
    #[serde(deserialize_with = "null_is_default")]
    pub conditional_updates: Vec<ConditionalUpdate>,
}

/// A release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Release {
    /// `Multi` for a manifest list; older operators leave it empty.
    #[serde(deserialize_with = "null_is_default")]
    pub architecture: String,
    /// A semantic version.
    #[serde(deserialize_with = "null_is_default")]
    pub version: String,
    /// The release image.
    #[serde(deserialize_with = "null_is_default")]
    pub image: String,
}

/// An item of `status.history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HistoryEntry {
    /// `Completed` or `Partial`.
    #[serde(deserialize_with = "null_is_default")]
    pub state: String,
    /// A semantic version; empty until the payload is loaded.
    #[serde(deserialize_with = "null_is_default")]
    pub version: String,
    /// The release image.
    #[serde(deserialize_with = "null_is_default")]
    pub image: String,
    /// Whether the operator verified a signature.
    #[serde(deserialize_with = "null_is_default")]
    pub verified: bool,
}

/// `status.capabilities`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Capabilities {
    /// The capabilities that are on; `None` if the operator does not report any.
    pub enabled_capabilities: Option<Vec<String>>,
    /// All capabilities of the release.
    pub known_capabilities: Option<Vec<String>>,
}

/// A condition of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Condition {
    /// As in `Progressing`.
    #[serde(rename = "type", deserialize_with = "null_is_default")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    #[serde(deserialize_with = "null_is_default")]
    pub status: String,
    /// In CamelCase.
    #[serde(deserialize_with = "null_is_default")]
    pub reason: String,
    /// For people.
    #[serde(deserialize_with = "null_is_default")]
    pub message: String,
}

/// An item of `status.conditionalUpdates`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConditionalUpdate {
    /// The release.
    #[serde(deserialize_with = "null_is_default")]
    pub release: Release,
    /// Why it may be unfit.
    #[serde(deserialize_with = "null_is_default")]
    pub risks: Vec<Risk>,
    /// `Recommended`: whether the risks apply to this cluster.
    #[serde(deserialize_with = "null_is_default")]
    pub conditions: Vec<Condition>,
}

/// An item of `risks`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Risk {
    /// In CamelCase.
    #[serde(deserialize_with = "null_is_default")]
    pub name: String,
}

impl ClusterVersion {
    /// The newest completed release. During an update this is the release that the cluster comes from.
    pub fn completed(&self) -> Option<&HistoryEntry> {
        self.status.history.iter().find(|entry| entry.is_completed())
    }

    /// The update that is not completed. Its operator may have replaced the cluster's keys by its own.
    pub fn partial(&self) -> Option<&HistoryEntry> {
        self.status.history.first().filter(|entry| !entry.is_completed())
    }

    /// Whether the operator is applying `status.desired`.
    pub fn is_progressing(&self) -> bool {
        let mut conditions = self.status.conditions.iter();
        conditions.any(|condition| condition.kind == "Progressing" && condition.status == "True")
    }

    /// Whether the operator is moving the cluster to the release image with this digest. Its first installation is not such a
    /// move.
    pub fn is_updating_to(&self, release: &Digest) -> bool {
        let is_meant = |image: &str| {
            let image = image.parse::<Reference>().ok();
            image.and_then(|image| image.digest()).as_ref() == Some(release)
        };
        self.is_progressing()
            && self.completed().is_some()
            && is_meant(&self.status.desired.image)
            && self.partial().is_some_and(|entry| is_meant(&entry.image))
    }

    /// The newest recommended update of the channel's own minor version: of `stable-4.16` an update to 4.16.z. A channel
    /// without a minor version counts as that of the cluster's own.
    ///
    /// An update with known risks counts if the operator found that they do not apply to this cluster. `None` if there is
    /// no such update, also if all of them are older than `status.desired`.
    pub fn recommended(&self) -> Option<&Release> {
        let parse = |version: &str| version.parse::<SemanticVersion>().ok();
        let current = parse(&self.status.desired.version);
        let minor =
            minor_of_channel(&self.spec.channel).or_else(|| current.as_ref().map(SemanticVersion::minor))?;
        let conditional = self.status.conditional_updates.iter();
        let with_risks: HashSet<&String> = conditional
            .filter(|update| !update.is_recommended())
            .map(|update| &update.release.version)
            .collect();
        let updates = self.status.available_updates.iter().filter_map(|release| {
            let version = parse(&release.version)?;
            let is_wanted = version.minor() == minor
                && !release.image.is_empty()
                && current.as_ref().is_none_or(|current| version > *current)
                && !with_risks.contains(&release.version);
            is_wanted.then_some((version, release))
        });
        updates
            .max_by(|(one, _), (other, _)| one.cmp(other))
            .map(|(_, release)| release)
    }
}

impl HistoryEntry {
    /// Whether the release was installed completely.
    pub fn is_completed(&self) -> bool {
        self.state == "Completed"
    }
}

impl ConditionalUpdate {
    /// The condition `Recommended`.
    pub fn recommended(&self) -> Option<&Condition> {
        self.conditions
            .iter()
            .find(|condition| condition.kind == "Recommended")
    }

    /// Whether no risk applies to this cluster.
    pub fn is_recommended(&self) -> bool {
        self.recommended()
            .is_some_and(|condition| condition.status == "True")
    }
}

/// `4.16` of `eus-4.16`.
fn minor_of_channel(channel: &str) -> Option<(u64, u64)> {
    let (_, version) = channel.rsplit_once('-')?;
    let (major, minor) = version.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// A foreign text in a form that is safe in a message: bounded, without control characters.
fn shown(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN).map(visible).collect()
}

/// Go decodes `null` to the empty value.
fn null_is_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests;
