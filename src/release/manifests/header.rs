//! Defines the part of a manifest that decides whether a cluster includes it, and the ClusterOperator that it declares.

use std::collections::BTreeMap;

use serde_json::Value;

use super::header_lines::header_lines;
use super::yaml::Parser;

/// Annotations with other prefixes do not matter, and may be long.
const ANNOTATION_PREFIXES: [&str; 4] = [
    "include.release.openshift.io/",
    "exclude.release.openshift.io/",
    "release.openshift.io/",
    "capability.openshift.io/",
];

/// What identifies an object in a cluster; the version of its API does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId {
    /// Of the API; empty for the core group.
    pub group: String,
    /// Such as `Deployment`.
    pub kind: String,
    /// Empty if the manifest has none.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// A version that a ClusterOperator reports when it is updated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperandVersion {
    /// Such as `operator`.
    pub name: String,
    /// As in the manifest.
    pub version: String,
}

/// The header of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: ResourceId,
    /// Those that matter; `None` if the object has no annotations. The Kubernetes library sees none either if the value
    /// of one of them is not a string.
    pub(super) annotations: Option<BTreeMap<String, String>>,
    /// Of a ClusterOperator.
    pub(super) versions: Option<Vec<OperandVersion>>,
}

impl Header {
    /// The header of a YAML document; `None` if the document is `null`.
    pub(super) fn parse(document: &str, parser: &mut Parser) -> Result<Option<Self>, String> {
        let header = header_lines(document).and_then(|lines| parser.parse(&lines).ok());
        match header {
            // The lines do not have what they refer to, or are something else.
            None | Some(Value::Null) => Self::of(&parser.parse(document)?),
            Some(header) => Self::of(&header),
        }
    }

    fn of(object: &Value) -> Result<Option<Self>, String> {
        if object.is_null() {
            return Ok(None);
        }
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let group = text("/apiVersion").split_once('/').map_or("", |(group, _)| group);
        let id = ResourceId {
            group: group.to_owned(),
            kind: text("/kind").to_owned(),
            namespace: text("/metadata/namespace").to_owned(),
            name: text("/metadata/name").to_owned(),
        };
        if id.kind.is_empty() || id.name.is_empty() {
            return Err("a document has no `kind` or no `metadata.name`".to_owned());
        }
        let is_operator = id.kind == "ClusterOperator" && id.group == "config.openshift.io";
        Ok(Some(Self {
            id,
            annotations: annotations(object),
            versions: is_operator.then(|| versions(object)),
        }))
    }

    /// The bytes of its texts, and of what holds them.
    pub(super) fn retained_bytes(&self) -> usize {
        /// Of an entry of a map or list.
        const ENTRY: usize = 64;
        let id = &self.id;
        let texts = id.group.len() + id.kind.len() + id.namespace.len() + id.name.len();
        let annotations = self.annotations.iter().flatten();
        let annotations = annotations.map(|(key, value)| ENTRY + key.len() + value.len());
        let versions = self.versions.iter().flatten();
        let versions = versions.map(|operand| ENTRY + operand.name.len() + operand.version.len());
        size_of::<Self>() + texts + annotations.sum::<usize>() + versions.sum::<usize>()
    }
}

fn annotations(object: &Value) -> Option<BTreeMap<String, String>> {
    let mut annotations = BTreeMap::new();
    for (key, value) in object.pointer("/metadata/annotations")?.as_object()? {
        let text = match value {
            Value::String(text) => text.as_str(),
            Value::Null => "",
            _ => return None,
        };
        if ANNOTATION_PREFIXES.iter().any(|prefix| key.starts_with(prefix)) {
            annotations.insert(key.clone(), text.to_owned());
        }
    }
    Some(annotations)
}

fn versions(object: &Value) -> Vec<OperandVersion> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = object.pointer("/status/versions").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .map(|version| OperandVersion {
            name: text(&version["name"]),
            version: text(&version["version"]),
        })
        .collect()
}
