//! Decides which manifests a cluster includes, by the rules of library-go (`pkg/manifest`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::header::{Header, ResourceId};
use super::template::ANY_PROFILE;
use crate::cluster_version::ClusterVersion;

const CAPABILITY: &str = "capability.openshift.io/name";
const FEATURE_SET: &str = "release.openshift.io/feature-set";
const FEATURE_GATE: &str = "release.openshift.io/feature-gate";
const MAJOR_VERSION: &str = "release.openshift.io/major-version";

/// How annotations name the empty feature set.
const DEFAULT_FEATURE_SET: &str = "Default";

const KNOWN_FEATURE_SETS: [&str; 5] = [
    "CustomNoUpgrade",
    DEFAULT_FEATURE_SET,
    "DevPreviewNoUpgrade",
    "OKD",
    "TechPreviewNoUpgrade",
];

/// What a cluster includes of a release. A filter that is `None` is unknown, and excludes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inclusion {
    /// The identifier of `exclude.release.openshift.io/`, which hosted control planes set.
    pub exclude: Option<String>,
    /// Such as `self-managed-high-availability`.
    pub profile: Option<String>,
    /// Empty or `Default` for the default one.
    pub feature_set: Option<String>,
    /// The feature gates that the new release enables on this cluster.
    pub feature_gates: Option<BTreeSet<String>>,
    /// The major version of the release.
    pub major_version: Option<u64>,
    /// The cluster's capabilities.
    pub capabilities: Option<Capabilities>,
    /// The objects that the cluster's overrides make unmanaged.
    pub unmanaged: Vec<ResourceId>,
    /// The filters whose values are assumed, and why the cluster's own are unknown.
    pub assumed: BTreeMap<Filter, String>,
}

/// A property of a cluster that decides about many manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Filter {
    /// [`Inclusion::profile`]
    Profile,
    /// [`Inclusion::feature_set`]
    FeatureSet,
    /// [`Inclusion::capabilities`]
    Capabilities,
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Profile => "profile",
            Self::FeatureSet => "feature set",
            Self::Capabilities => "set of capabilities",
        })
    }
}

/// The capabilities of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Those that the cluster knows. Another one is new in the release.
    pub known: BTreeSet<String>,
    /// Those that are on.
    pub enabled: BTreeSet<String>,
    /// Those that the update to the release switches on ([`super::PayloadManifests::implicitly_enabled`]).
    pub implicit: BTreeSet<String>,
}

/// Why a cluster does not include a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// The object has no annotations.
    NoAnnotations,
    /// `exclude.release.openshift.io/<identifier>` is `true`.
    Excluded(String),
    /// The annotation's value does not have the cluster's feature set.
    FeatureSet(String),
    /// The annotation's value has a feature set that this program does not know.
    UnknownFeatureSet(String),
    /// The manifest has annotations for both feature set and feature gate.
    FeatureSetAndGate,
    /// A feature gate that is off, or that is on although `-` precedes it.
    FeatureGate(String),
    /// The annotation's value does not have the release's major version.
    MajorVersion(String),
    /// The annotation's value is invalid, or the object's kind cannot have one.
    InvalidMajorVersion(String),
    /// The annotation of the cluster's profile is missing, or has this value instead of `true`.
    Profile {
        /// Of the cluster.
        profile: String,
        /// `None` if it is missing.
        value: Option<String>,
    },
    /// Capabilities that the cluster does not know.
    UnknownCapabilities(Vec<String>),
    /// Capabilities that are off.
    DisabledCapabilities(Vec<String>),
    /// An override makes the object unmanaged.
    Unmanaged,
}

impl Exclusion {
    /// Whether the new release excludes the manifest too. A newer CVO may know what this program or the running CVO does
    /// not.
    pub fn is_certain(&self) -> bool {
        match self {
            Self::UnknownFeatureSet(_)
            | Self::FeatureSetAndGate
            | Self::InvalidMajorVersion(_)
            | Self::UnknownCapabilities(_) => false,
            Self::NoAnnotations
            | Self::Excluded(_)
            | Self::FeatureSet(_)
            | Self::FeatureGate(_)
            | Self::MajorVersion(_)
            | Self::Profile { .. }
            | Self::DisabledCapabilities(_)
            | Self::Unmanaged => true,
        }
    }
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnnotations => f.write_str("no annotations"),
            Self::Excluded(identifier) => write!(f, "exclude.release.openshift.io/{identifier}=true"),
            Self::FeatureSet(value) => write!(f, "feature-set {value}"),
            Self::UnknownFeatureSet(value) => write!(f, "unknown feature-set {value}"),
            Self::FeatureSetAndGate => f.write_str("both feature-set and feature-gate"),
            Self::FeatureGate(gate) => write!(f, "feature-gate {gate}"),
            Self::MajorVersion(value) => write!(f, "major-version {value}"),
            Self::InvalidMajorVersion(value) => write!(f, "invalid major-version {value}"),
            Self::Profile { profile, value: None } => {
                write!(f, "include.release.openshift.io/{profile} unset")
            }
            Self::Profile {
                profile,
                value: Some(value),
            } => write!(f, "include.release.openshift.io/{profile}={value}"),
            Self::UnknownCapabilities(names) => write!(f, "unknown capability {}", names.join(", ")),
            Self::DisabledCapabilities(names) => write!(f, "disabled capability {}", names.join(", ")),
            Self::Unmanaged => f.write_str("unmanaged by an override"),
        }
    }
}

impl Inclusion {
    /// What a cluster with this ClusterVersion includes. The ClusterVersion has neither the profile nor the feature set.
    pub fn of(cluster: &ClusterVersion) -> Self {
        let names = |names: &[String]| names.iter().cloned().collect();
        let reported = &cluster.status.capabilities;
        let capabilities = match (&reported.known_capabilities, &reported.enabled_capabilities) {
            (Some(known), Some(enabled)) => Some(Capabilities {
                known: names(known),
                enabled: names(enabled),
                implicit: BTreeSet::new(),
            }),
            _ => None,
        };
        let unmanaged = cluster.spec.overrides.iter().filter(|item| item.unmanaged);
        let unmanaged = unmanaged.map(|item| ResourceId {
            group: item.group.clone(),
            kind: item.kind.clone(),
            namespace: item.namespace.clone(),
            name: item.name.clone(),
        });
        Self {
            capabilities,
            unmanaged: unmanaged.collect(),
            ..Self::default()
        }
    }

    /// Why the cluster does not include the manifest with this header; `None` if it does.
    pub(super) fn exclusion(&self, header: &Header) -> Option<Exclusion> {
        let Some(annotations) = &header.annotations else {
            return Some(Exclusion::NoAnnotations);
        };
        self.by_identifier(annotations)
            .or_else(|| self.by_feature_set(annotations))
            .or_else(|| self.by_feature_gates(annotations))
            .or_else(|| self.by_major_version(&header.id, annotations))
            .or_else(|| self.by_profile(annotations))
            .or_else(|| self.by_capabilities(annotations))
            .or_else(|| self.by_overrides(&header.id))
    }

    fn by_identifier(&self, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let identifier = self.exclude.as_ref()?;
        let value = annotations.get(&format!("exclude.release.openshift.io/{identifier}"))?;
        (value == "true").then(|| Exclusion::Excluded(identifier.clone()))
    }

    fn by_feature_set(&self, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let required = match self.feature_set.as_deref()? {
            "" => DEFAULT_FEATURE_SET,
            required => required,
        };
        let value = annotations.get(FEATURE_SET)?;
        if self.feature_gates.is_some() && annotations.contains_key(FEATURE_GATE) {
            return Some(Exclusion::FeatureSetAndGate);
        }
        let mut names = value.split(',');
        if names.clone().any(|name| !KNOWN_FEATURE_SETS.contains(&name)) {
            return Some(Exclusion::UnknownFeatureSet(value.clone()));
        }
        (!names.any(|name| name == required)).then(|| Exclusion::FeatureSet(value.clone()))
    }

    fn by_feature_gates(&self, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let enabled = self.feature_gates.as_ref()?;
        let requirements = annotations.get(FEATURE_GATE)?.split(',').map(str::trim);
        let is_met = |requirement: &&str| match requirement.strip_prefix('-') {
            Some(gate) => !enabled.contains(gate),
            None => enabled.contains(*requirement),
        };
        let unmet = requirements.filter(|requirement| !requirement.is_empty());
        let unmet = unmet.into_iter().find(|requirement| !is_met(requirement))?;
        Some(Exclusion::FeatureGate(unmet.to_owned()))
    }

    fn by_major_version(&self, id: &ResourceId, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let major = self.major_version?;
        let value = annotations.get(MAJOR_VERSION)?;
        let invalid = || Some(Exclusion::InvalidMajorVersion(value.clone()));
        if !matches!(
            (id.group.as_str(), id.kind.as_str()),
            ("config.openshift.io", "FeatureGate") | ("apiextensions.k8s.io", "CustomResourceDefinition")
        ) {
            return invalid();
        }
        let (mut included, mut excluded) = (BTreeSet::new(), BTreeSet::new());
        for requirement in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
            let (versions, number) = match requirement.strip_prefix('-') {
                Some(number) => (&mut excluded, number),
                None => (&mut included, requirement),
            };
            // Go's parser refuses the sign that Rust's accepts.
            match number.parse::<u64>() {
                Ok(version) if !number.starts_with('+') => versions.insert(version),
                _ => return invalid(),
            };
        }
        if !included.is_disjoint(&excluded) {
            return invalid();
        }
        let is_included = included.contains(&major) || included.is_empty() && !excluded.contains(&major);
        (!is_included).then(|| Exclusion::MajorVersion(value.clone()))
    }

    fn by_profile(&self, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let profile = self.profile.as_ref()?;
        let annotation = |profile: &str| annotations.get(&format!("include.release.openshift.io/{profile}"));
        match annotation(profile).or_else(|| annotation(ANY_PROFILE)) {
            Some(value) if value == "true" => None,
            value => Some(Exclusion::Profile {
                profile: profile.clone(),
                value: value.cloned(),
            }),
        }
    }

    fn by_capabilities(&self, annotations: &BTreeMap<String, String>) -> Option<Exclusion> {
        let cluster = self.capabilities.as_ref()?;
        let (mut unknown, mut disabled) = (Vec::new(), Vec::new());
        for name in capabilities(annotations) {
            // An implicitly enabled capability may be one that the cluster does not know yet.
            if cluster.enabled.contains(name) || cluster.implicit.contains(name) {
                continue;
            }
            match cluster.known.contains(name) {
                true => disabled.push(name.to_owned()),
                false => unknown.push(name.to_owned()),
            }
        }
        // Unlike library-go: one capability that is off suffices, whatever the others are.
        if !disabled.is_empty() {
            return Some(Exclusion::DisabledCapabilities(disabled));
        }
        (!unknown.is_empty()).then_some(Exclusion::UnknownCapabilities(unknown))
    }

    fn by_overrides(&self, id: &ResourceId) -> Option<Exclusion> {
        let is_meant = |unmanaged: &ResourceId| {
            // An override names a namespace also for objects that have none.
            let has_namespace = id.namespace.is_empty() || id.namespace == unmanaged.namespace;
            has_namespace
                && (&id.group, &id.kind, &id.name) == (&unmanaged.group, &unmanaged.kind, &unmanaged.name)
        };
        self.unmanaged
            .iter()
            .any(is_meant)
            .then_some(Exclusion::Unmanaged)
    }

    /// What the certain absence of a use requires, and is unknown.
    pub(super) fn unknown_filters(&self) -> Vec<Filter> {
        let filters = [
            (Filter::Profile, self.profile.is_none()),
            (Filter::FeatureSet, self.feature_set.is_none()),
            (Filter::Capabilities, self.capabilities.is_none()),
        ];
        let is_unknown = |(filter, is_none): &(Filter, bool)| *is_none || self.assumed.contains_key(filter);
        let unknown = filters.into_iter().filter(is_unknown);
        unknown.map(|(filter, _)| filter).collect()
    }
}

/// The capabilities to which a manifest with these annotations belongs; all of them must be on.
pub(super) fn capabilities(annotations: &BTreeMap<String, String>) -> impl Iterator<Item = &str> {
    let value = annotations.get(CAPABILITY).filter(|value| !value.is_empty());
    value.into_iter().flat_map(|value| value.split('+'))
}
