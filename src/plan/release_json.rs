//! Writes what the manifests of the release say about its images into the plan's JSON document.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::image_request::Requester;
use crate::release::manifests::{Filter, Inclusion, ReleaseManifests};

/// The release, in the field `release` of the document.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Release<'a> {
    version: &'a str,
    manifests: Manifests<'a>,
    inclusion: InclusionJson<'a>,
    /// The cluster operators that the update reaches, in the order of the files.
    operators: Vec<Operator<'a>>,
    /// The images that no included manifest names.
    unnamed: Vec<Unnamed<'a>>,
}

/// How many manifests there are.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifests<'a> {
    count: usize,
    included: usize,
    /// How many are excluded for each reason.
    excluded: &'a BTreeMap<String, usize>,
    /// How many may be excluded for each reason, and count as included.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    uncertain: &'a BTreeMap<String, usize>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unread: Vec<Unread<'a>>,
}

/// A file that is not understood.
#[derive(Debug, Serialize)]
struct Unread<'a> {
    file: &'a str,
    reason: &'a str,
}

/// By what the manifests were filtered.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InclusionJson<'a> {
    profile: FilterJson<'a, &'a str>,
    /// `Default` for the empty one.
    feature_set: FilterJson<'a, &'a str>,
    /// Absent if unknown; then no gate excludes a manifest.
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_gates: Option<&'a BTreeSet<String>>,
    capabilities: FilterJson<'a, CapabilitiesJson<'a>>,
}

/// A property of the cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FilterJson<'a, T> {
    /// Absent if nothing is excluded by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<T>,
    /// Whether it is the cluster's own, and not assumed.
    known: bool,
    /// Why it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct CapabilitiesJson<'a> {
    enabled: &'a BTreeSet<String>,
    known: &'a BTreeSet<String>,
    /// Those that the update switches on.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    implicit: &'a BTreeSet<String>,
}

/// A cluster operator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Operator<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    component: Option<&'a str>,
    /// What it reports when it is updated, by the name of the operand.
    versions: BTreeMap<&'a str, &'a str>,
}

/// An image that no included manifest names.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Unnamed<'a> {
    tag: &'a str,
    /// Whether the absence of a name is certain. An operator may still use the image.
    may_be_excluded: bool,
    /// Why it must stay.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// The use of an image by one component at one run level.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Use<'a> {
    tag: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) level: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) component: Option<&'a str>,
    /// `image`, `env`, `args`, `ConfigMap`, `ImageStream` or `other`.
    named_in: Vec<String>,
    /// The cluster operators of the component.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    operators: Vec<&'a str>,
}

impl<'a> Release<'a> {
    pub(super) fn new(manifests: &'a ReleaseManifests) -> Self {
        let unread = manifests.unread.iter().map(|file| Unread {
            file: &file.path,
            reason: &file.why,
        });
        let operators = manifests.operators.iter().map(|operator| Operator {
            name: &operator.name,
            level: operator.level,
            component: operator.component.as_deref(),
            versions: operator
                .versions
                .iter()
                .map(|version| (version.name.as_str(), version.version.as_str()))
                .collect(),
        });
        let unnamed = manifests.unnamed().map(|tag| {
            let kept = manifests.droppable(tag).err();
            Unnamed {
                tag,
                may_be_excluded: kept.is_none(),
                reason: kept.map(|kept| kept.to_string()),
            }
        });
        Self {
            version: &manifests.version,
            manifests: Manifests {
                count: manifests.count,
                included: manifests.included,
                excluded: &manifests.excluded,
                uncertain: &manifests.uncertain,
                unread: unread.collect(),
            },
            inclusion: InclusionJson::new(&manifests.inclusion),
            operators: operators.collect(),
            unnamed: unnamed.collect(),
        }
    }
}

impl<'a> InclusionJson<'a> {
    fn new(inclusion: &'a Inclusion) -> Self {
        let feature_set = inclusion.feature_set.as_deref();
        let capabilities = inclusion.capabilities.as_ref().map(|it| CapabilitiesJson {
            enabled: &it.enabled,
            known: &it.known,
            implicit: &it.implicit,
        });
        Self {
            profile: FilterJson::new(inclusion, Filter::Profile, inclusion.profile.as_deref()),
            feature_set: FilterJson::new(
                inclusion,
                Filter::FeatureSet,
                feature_set.map(|name| if name.is_empty() { "Default" } else { name }),
            ),
            feature_gates: inclusion.feature_gates.as_ref(),
            capabilities: FilterJson::new(inclusion, Filter::Capabilities, capabilities),
        }
    }
}

impl<'a, T> FilterJson<'a, T> {
    fn new(inclusion: &'a Inclusion, filter: Filter, value: Option<T>) -> Self {
        let reason = inclusion.assumed.get(&filter).map(String::as_str);
        Self {
            value,
            known: reason.is_none(),
            reason,
        }
    }
}

/// The uses of an image of the release, first one first for each of its tags.
pub(super) fn uses<'a>(
    requesters: impl IntoIterator<Item = &'a Requester>,
    manifests: Option<&'a ReleaseManifests>,
) -> Vec<Use<'a>> {
    let mut uses = Vec::new();
    let Some(manifests) = manifests else {
        return uses;
    };
    for requester in requesters {
        let Requester::Release { tag } = requester else {
            continue;
        };
        uses.extend(manifests.uses(tag).iter().map(|tag_use| {
            let component = tag_use.component.as_deref();
            let operators = component.into_iter().flat_map(|it| manifests.operators_of(it));
            Use {
                tag,
                level: tag_use.level,
                component,
                named_in: tag_use.namings.iter().map(ToString::to_string).collect(),
                operators: operators.map(|operator| operator.name.as_str()).collect(),
            }
        }));
    }
    uses
}
