//! Lists the reasons why files contain no usable version spec.

use super::listed;
use super::text_position::TextPosition;
use crate::spec::SpecError;

/// Why files contain no usable version spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Bytes that are not text, or a zero byte.
    #[error("line {line}: not UTF-8 text\nhint: save it as UTF-8")]
    NotText {
        /// Counted from 1.
        line: usize,
    },
    /// Neither YAML nor JSON.
    #[error("not {language}: {why}")]
    Syntax {
        /// The language that it resembles.
        language: &'static str,
        /// The parser's message, with line and column.
        why: String,
    },
    /// No version spec among the objects.
    #[error(
        "no version spec; found: {}\n\
         hint: a version spec is a ConfigMap with keys such as `platform.image`, a PreCachingConfig of \
         `ran.openshift.io/v1alpha1`, a ClusterVersion, an UpgradeConfig, or ACM Policies with such objects",
        listed(found)
    )]
    Nothing {
        /// The objects of the files.
        found: Vec<String>,
    },
    /// Two objects of a kind that may occur once.
    #[error("two version specs: {first} and {second}\nhint: leave only one of them in the input")]
    Several {
        /// The first one.
        first: String,
        /// The second one.
        second: String,
    },
    /// A ConfigMap has all keys of a version spec.
    #[error(
        "{config_map} is a complete version spec, which cannot be combined with {other}\nhint: leave one of them out of \
         the input"
    )]
    Complete {
        /// The ConfigMap.
        config_map: String,
        /// The first of the other objects.
        other: String,
    },
    /// A release in the version spec, and the cluster's.
    #[error(
        "{object} names a release, and so may the cluster\n\
         hint: remove it there, leave out `--from-cluster`, or name the release with `--platform-image`"
    )]
    TwoReleases {
        /// The object that names a release.
        object: String,
    },
    /// The update of a cluster that is unknown.
    #[error(
        "`--recommended` needs the ClusterVersion of the cluster\n\
         hint: add `--from-cluster` in a pod of the cluster, or the output of `oc get clusterversion version -o yaml` with \
         `--config`"
    )]
    NoCluster,
    /// A field has a wrong value.
    #[error("{object}: `{field}`{}: {why}", after_comma(.position))]
    Field {
        /// Which object.
        object: String,
        /// The path to the field.
        field: String,
        /// Its position, if the parser provides it.
        position: Option<TextPosition>,
        /// Why.
        why: String,
    },
    /// A key has a wrong text.
    #[error("{object}: {why}")]
    Content {
        /// Which object.
        object: String,
        /// Why.
        why: Box<SpecError>,
    },
    /// An object from which no release can be chosen.
    #[error("{object}: {why}")]
    Release {
        /// Which object.
        object: String,
        /// Why.
        why: String,
    },
}

fn after_comma(position: &Option<TextPosition>) -> String {
    position
        .map(|position| format!(", {position}"))
        .unwrap_or_default()
}
