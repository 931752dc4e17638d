//! Defines how a manifest names an image.

use std::collections::BTreeSet;
use std::fmt;

use serde_json::Value;

use super::tag_index::TagIndex;
use super::yaml::Parser;

/// How a manifest names an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Naming {
    /// A container's image, or another field `image`.
    Image,
    /// An environment variable, which tells an operator what to run.
    Env,
    /// An argument of a container, or its command.
    Args,
    /// The data of a ConfigMap.
    ConfigMap,
    /// A tag of an ImageStream, which users run.
    ImageStream,
    /// Another field, a comment, or a file that cannot be parsed.
    Other,
}

impl fmt::Display for Naming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::Env => "env",
            Self::Args => "args",
            Self::ConfigMap => "ConfigMap",
            Self::ImageStream => "ImageStream",
            Self::Other => "other",
        })
    }
}

/// The images in a document of this kind. The document is parsed only if its text has one.
pub(super) fn named_images(
    document: &str,
    kind: &str,
    index: &TagIndex,
    parser: &mut Parser,
) -> Result<Vec<(usize, Naming)>, String> {
    let mut in_text = BTreeSet::new();
    index.search(document, |image| {
        in_text.insert(image);
    });
    if in_text.is_empty() {
        return Ok(Vec::new());
    }
    let mut walk = Walk {
        index,
        fixed: match kind {
            "ConfigMap" => Some(Naming::ConfigMap),
            "ImageStream" => Some(Naming::ImageStream),
            _ => None,
        },
        found: BTreeSet::new(),
    };
    walk.value(&parser.parse(document)?, Naming::Other);
    let mut found = walk.found;
    for (image, _) in &found {
        in_text.remove(image);
    }
    found.extend(in_text.into_iter().map(|image| (image, Naming::Other)));
    Ok(found.into_iter().collect())
}

struct Walk<'a> {
    index: &'a TagIndex,
    /// If the kind of the object decides.
    fixed: Option<Naming>,
    found: BTreeSet<(usize, Naming)>,
}

impl Walk<'_> {
    /// The parser limits the depth.
    fn value(&mut self, value: &Value, naming: Naming) {
        match value {
            Value::String(text) => {
                let naming = self.fixed.unwrap_or(naming);
                self.index.search(text, |image| {
                    self.found.insert((image, naming));
                });
            }
            Value::Array(items) => items.iter().for_each(|item| self.value(item, naming)),
            Value::Object(fields) => {
                for (key, value) in fields {
                    let naming = match key.as_str() {
                        "image" => Naming::Image,
                        "env" => Naming::Env,
                        "args" | "command" => Naming::Args,
                        _ => naming,
                    };
                    self.value(value, naming);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
