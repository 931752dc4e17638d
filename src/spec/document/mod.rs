//! Reads a version spec from a YAML or JSON file: a ConfigMap with the hub's keys, or a PreCachingConfig.
//!
//! ```text
//! text ─yaml_tree→ documents ─→ objects, also of lists ─→ the one version spec ─→ its keys ─→ VersionSpec
//! ```
//!
//! Both are converted into the keys that the hub would mount, so that every source has the same meaning. Other objects in
//! the file are ignored, because people use the output of `kubectl get configmap -o yaml` and keep a site's objects in one
//! file. Two version specs are an error.

mod config_map;
mod pre_caching_config;
mod yaml_tree;

use super::config_map_keys::from_keys;
use super::{SpecError, VersionSpec, shown};
pub use yaml_tree::TextPosition;
use yaml_tree::{YamlNode, YamlValue};

/// A version spec that was read from a file.
#[derive(Debug)]
pub struct SpecDocument {
    /// The spec.
    pub spec: VersionSpec,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Which object it is, as in `ConfigMap openshift-talo-pre-cache/pre-cache-spec`.
    pub title: String,
    /// The other objects of the file.
    pub ignored: Vec<String>,
}

/// Why a file contains no usable version spec.
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
         hint: a version spec is a ConfigMap with keys such as `platform.image`, or a PreCachingConfig of `ran.openshift.io/v1alpha1`",
        listed(found)
    )]
    Nothing {
        /// The objects of the file.
        found: Vec<String>,
    },
    /// Two version specs.
    #[error("two version specs: {first} and {second}\nhint: leave only one of them in the file")]
    Several {
        /// The first one.
        first: String,
        /// The second one.
        second: String,
    },
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
}

fn after_comma(position: &Option<TextPosition>) -> String {
    position
        .map(|position| format!(", {position}"))
        .unwrap_or_default()
}

/// Reads the version spec from the bytes of a YAML or JSON file.
///
/// # Errors
/// If the file has no version spec, more than one, or an invalid one.
pub fn from_document(bytes: &[u8]) -> Result<SpecDocument, DocumentError> {
    let documents = yaml_tree::parse(text(bytes)?)?;
    let mut objects = Vec::new();
    for document in &documents {
        collect(document, "", "", &mut objects)?;
    }
    let (specs, others): (Vec<&KubeObject<'_>>, Vec<&KubeObject<'_>>) =
        objects.iter().partition(|object| object.is_version_spec());
    let object = match specs[..] {
        [object] => object,
        [] => {
            return Err(DocumentError::Nothing {
                found: objects.iter().map(KubeObject::description).collect(),
            });
        }
        [first, second, ..] => {
            return Err(DocumentError::Several {
                first: first.title(),
                second: second.title(),
            });
        }
    };
    let (spec, warnings) = object.read()?;
    Ok(SpecDocument {
        spec,
        warnings,
        title: object.title(),
        ignored: others.into_iter().map(KubeObject::description).collect(),
    })
}

fn text(bytes: &[u8]) -> Result<&str, DocumentError> {
    let not_text_at = |offset: usize| DocumentError::NotText {
        line: 1 + bytes[..offset].iter().filter(|&&byte| byte == b'\n').count(),
    };
    let text = std::str::from_utf8(bytes).map_err(|error| not_text_at(error.valid_up_to()))?;
    match text.find('\0') {
        Some(offset) => Err(not_text_at(offset)),
        None => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
    }
}

/// A Kubernetes object, or any other value in its place.
struct KubeObject<'a> {
    api_version: &'a str,
    kind: &'a str,
    node: &'a YamlNode,
}

/// Collects an object, or the objects of a list. The items of a typed list have no `kind`; they have the list's.
fn collect<'a>(
    node: &'a YamlNode,
    api_version: &'a str,
    kind: &'a str,
    objects: &mut Vec<KubeObject<'a>>,
) -> Result<(), DocumentError> {
    let word = |name: &str| node.field(name).and_then(YamlNode::text);
    let object = KubeObject {
        api_version: word("apiVersion").unwrap_or(api_version),
        kind: word("kind").unwrap_or(kind),
        node,
    };
    let items_kind = object.kind.strip_suffix("List");
    match (items_kind, node.field("items")) {
        (Some(kind), Some(items)) => {
            let YamlValue::List(list) = &items.value else {
                return Err(object.wrong("items", items, format!("it is {}, not a list", items.kind())));
            };
            let api_version = if kind.is_empty() { "" } else { object.api_version };
            list.iter()
                .try_for_each(|item| collect(item, api_version, kind, objects))
        }
        _ => {
            objects.push(object);
            Ok(())
        }
    }
}

impl KubeObject<'_> {
    fn is_config_map(&self) -> bool {
        (self.api_version, self.kind) == ("v1", "ConfigMap")
    }

    fn is_pre_caching_config(&self) -> bool {
        (self.api_version, self.kind) == ("ran.openshift.io/v1alpha1", "PreCachingConfig")
    }

    /// A file may contain many ConfigMaps; a version spec has at least one known key.
    fn is_version_spec(&self) -> bool {
        self.is_pre_caching_config() || self.is_config_map() && config_map::has_known_key(self.node)
    }

    fn read(&self) -> Result<(VersionSpec, Vec<String>), DocumentError> {
        if self.is_pre_caching_config() {
            return pre_caching_config::read(self);
        }
        let mut warnings = self.unknown_fields("", self.node, &config_map::FIELDS);
        let keys = config_map::keys(self)?;
        let (spec, more) = from_keys(&keys).map_err(|why| DocumentError::Content {
            object: self.title(),
            why: Box::new(why),
        })?;
        warnings.extend(more);
        Ok((spec, warnings))
    }

    /// Kind, namespace and name.
    fn title(&self) -> String {
        let metadata = self.node.field("metadata");
        let word = |name: &str| metadata?.field(name)?.text();
        let kind = shown(self.kind);
        match (word("namespace"), word("name")) {
            (Some(namespace), Some(name)) => format!("{kind} `{}/{}`", shown(namespace), shown(name)),
            (None, Some(name)) => format!("{kind} `{}`", shown(name)),
            _ => format!("{kind} without a name"),
        }
    }

    /// The title, and why it is not a version spec.
    fn description(&self) -> String {
        if self.kind.is_empty() {
            return match self.node.value {
                YamlValue::Mapping(_) => "a mapping without `kind`".to_owned(),
                _ => self.node.kind().to_owned(),
            };
        }
        let title = self.title();
        if self.is_config_map() {
            return match &config_map::names(self.node)[..] {
                [] => format!("{title} without keys"),
                names => format!("{title} with the keys {}", super::list(names)),
            };
        }
        match self.api_version {
            "" => format!("{title} without `apiVersion`"),
            version => format!("{title} of `{}`", shown(version)),
        }
    }

    fn wrong(&self, field: &str, node: &YamlNode, why: String) -> DocumentError {
        DocumentError::Field {
            object: self.title(),
            field: field.to_owned(),
            position: node.position,
            why,
        }
    }

    /// Warnings about the fields of `node` that are not `known`; `path` is the prefix of their names.
    fn unknown_fields(&self, path: &str, node: &YamlNode, known: &[&str]) -> Vec<String> {
        let unknown = node
            .fields()
            .iter()
            .filter(|(name, _)| !known.contains(&&name[..]));
        let warning = |name: &str| {
            format!(
                "{}: the field `{path}{}` is unknown and ignored",
                self.title(),
                shown(name)
            )
        };
        unknown.map(|(name, _)| warning(name)).collect()
    }
}

/// The first objects as a list.
fn listed(found: &[String]) -> String {
    /// Enough to recognise a wrong file.
    const OBJECTS: usize = 10;
    let mut shown = found[..found.len().min(OBJECTS)].to_vec();
    match found.len() {
        0 => shown.push("nothing".to_owned()),
        count if count > OBJECTS => shown.push(format!("{} more", count - OBJECTS)),
        _ => {}
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
