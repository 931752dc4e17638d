//! The version spec as a file: a ConfigMap with the hub's keys, or a PreCachingConfig.
//!
//! ```text
//! text ─node→ documents ─→ objects, those of lists too ─→ the one that is a version spec ─→ its keys ─→ VersionSpec
//! ```
//!
//! Either is turned into the keys that the hub would mount, so that they mean the same wherever they come from. Other
//! objects beside it are passed over, for people write `kubectl get configmap -o yaml` and keep a site's objects in one
//! file; of two version specs none is taken.

mod config_map;
mod pre_caching_config;
mod yaml_tree;

use std::fmt;

use super::config_map_keys::from_keys;
use super::{SpecError, VersionSpec, shown};
pub use yaml_tree::TextPosition;
use yaml_tree::{Node, Value};

/// What a document says.
#[derive(Debug)]
pub struct Document {
    /// What is wanted.
    pub spec: VersionSpec,
    /// What should be told to the user.
    pub warnings: Vec<String>,
    /// Which object it is, as in `ConfigMap openshift-talo-pre-cache/pre-cache-spec`.
    pub title: String,
    /// The other objects.
    pub passed_over: Vec<String>,
}

/// Why a document is no version spec.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DocumentError {
    /// Bytes that are no text, or a zero byte.
    #[error("line {line}: not UTF-8 text\nhint: save it as UTF-8")]
    NotText {
        /// Counted from 1.
        line: usize,
    },
    /// Neither YAML nor JSON.
    #[error("not {language}: {why}")]
    Syntax {
        /// What it looks like.
        language: &'static str,
        /// The parser's words, with line and column.
        why: String,
    },
    /// No version spec among the objects.
    #[error(
        "no version spec; found: {}\n\
         hint: it is a ConfigMap with keys such as `platform.image`, or a PreCachingConfig of `ran.openshift.io/v1alpha1`",
        listed(found)
    )]
    Nothing {
        /// What is there instead.
        found: Vec<String>,
    },
    /// Two version specs.
    #[error("two version specs: {first} and {second}\nhint: leave only one of them in the file")]
    Several {
        /// One.
        first: String,
        /// The next.
        second: String,
    },
    /// A field is not as it should be.
    #[error("{object}: `{field}`{}: {why}", At(*place))]
    Field {
        /// Which object.
        object: String,
        /// The path to the field.
        field: String,
        /// Where it stands, if the parser told.
        place: Option<TextPosition>,
        /// What is wrong.
        why: String,
    },
    /// A key's text is not as it should be.
    #[error("{object}: {why}")]
    Content {
        /// Which object.
        object: String,
        /// What is wrong.
        why: Box<SpecError>,
    },
}

struct At(Option<TextPosition>);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(place) => write!(f, ", {place}"),
            None => Ok(()),
        }
    }
}

/// Reads the version spec out of the text of a YAML or JSON file.
///
/// # Errors
/// If there is none, or more than one, or if it makes no sense.
pub fn from_document(bytes: &[u8]) -> Result<Document, DocumentError> {
    let documents = yaml_tree::parse(text(bytes)?)?;
    let mut objects = Vec::new();
    for document in &documents {
        collect(document, "", "", &mut objects)?;
    }
    let (specs, others): (Vec<&Object<'_>>, Vec<&Object<'_>>) =
        objects.iter().partition(|object| object.is_version_spec());
    let object = match specs[..] {
        [object] => object,
        [] => {
            return Err(DocumentError::Nothing {
                found: objects.iter().map(Object::description).collect(),
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
    Ok(Document {
        spec,
        warnings,
        title: object.title(),
        passed_over: others.into_iter().map(Object::description).collect(),
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

/// A Kubernetes object, or what stands in its place.
struct Object<'a> {
    api_version: &'a str,
    kind: &'a str,
    node: &'a Node,
}

/// The object, or those of a list. The API's typed lists leave out what their items are, for the list says it.
fn collect<'a>(
    node: &'a Node,
    api_version: &'a str,
    kind: &'a str,
    objects: &mut Vec<Object<'a>>,
) -> Result<(), DocumentError> {
    let word = |name: &str| node.field(name).and_then(Node::text);
    let object = Object {
        api_version: word("apiVersion").unwrap_or(api_version),
        kind: word("kind").unwrap_or(kind),
        node,
    };
    let items_kind = object.kind.strip_suffix("List");
    match (items_kind, node.field("items")) {
        (Some(kind), Some(items)) => {
            let Value::List(list) = &items.value else {
                return Err(object.wrong("items", items, format!("{}, and must be a list", items.kind())));
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

impl Object<'_> {
    fn is_config_map(&self) -> bool {
        (self.api_version, self.kind) == ("v1", "ConfigMap")
    }

    fn is_pre_caching_config(&self) -> bool {
        (self.api_version, self.kind) == ("ran.openshift.io/v1alpha1", "PreCachingConfig")
    }

    /// A namespace is full of ConfigMaps; only one that has a key of ours is ours.
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

    /// The title, and why it is no version spec.
    fn description(&self) -> String {
        if self.kind.is_empty() {
            return match self.node.value {
                Value::Mapping(_) => "a mapping without `kind`".to_owned(),
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

    fn wrong(&self, field: &str, node: &Node, why: String) -> DocumentError {
        DocumentError::Field {
            object: self.title(),
            field: field.to_owned(),
            place: node.place,
            why,
        }
    }

    /// Of the fields of `node`, those that are not among `known`, as warnings; `path` is what leads there.
    fn unknown_fields(&self, path: &str, node: &Node, known: &[&str]) -> Vec<String> {
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

/// The first of many, each as it stands.
fn listed(found: &[String]) -> String {
    /// Enough to see that it is the wrong file.
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
