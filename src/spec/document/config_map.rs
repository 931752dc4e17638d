//! A ConfigMap as a document: the keys as they would be mounted.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::yaml_tree::{Node, Value};
use super::{DocumentError, Object};
use crate::spec::config_map_keys::KNOWN;
use crate::spec::shown;

/// What an object of this kind has.
pub(super) const FIELDS: [&str; 6] = [
    "apiVersion",
    "kind",
    "metadata",
    "data",
    "binaryData",
    "immutable",
];

/// The names of its keys.
pub(super) fn names(object: &Node) -> Vec<String> {
    let values = ["data", "binaryData"]
        .into_iter()
        .filter_map(|field| object.field(field));
    values
        .flat_map(Node::fields)
        .map(|(name, _)| name.clone())
        .collect()
}

/// Whether it is a version spec.
pub(super) fn has_known_key(object: &Node) -> bool {
    names(object).iter().any(|name| KNOWN.contains(&&name[..]))
}

/// The keys and their bytes.
pub(super) fn keys(object: &Object<'_>) -> Result<BTreeMap<String, Vec<u8>>, DocumentError> {
    let mut keys = BTreeMap::new();
    for field in ["data", "binaryData"] {
        let Some(values) = object.node.field(field) else {
            continue;
        };
        let Value::Mapping(values) = &values.value else {
            let why = format!("{}, and must be a mapping", values.kind());
            return Err(object.wrong(field, values, why));
        };
        for (name, value) in values {
            let wrong = |why: String| {
                let path = format!("{field}.{}", shown(name));
                object.wrong(&path, value, why)
            };
            let text = text(name, value).map_err(wrong)?;
            let bytes = match field {
                "data" => text.as_bytes().to_vec(),
                _ => base64(text).map_err(|error| wrong(format!("not base64: {error}")))?,
            };
            if keys.insert(name.clone(), bytes).is_some() {
                return Err(wrong("`data` has this key as well".to_owned()));
            }
        }
    }
    Ok(keys)
}

/// The text of a value. Anything else the API server would refuse, and guessing is no use: `4.10` is a number, and 4.1.
fn text<'a>(name: &str, value: &'a Node) -> Result<&'a str, String> {
    let hint = match &value.value {
        Value::Text(text) => return Ok(text),
        Value::Null => return Ok(""),
        Value::List(_) => format!(
            "write `{}: |`, and below it one entry a line, indented and without `-`",
            shown(name)
        ),
        Value::Mapping(_) => format!("write `{}: |`, and below it the text, indented", shown(name)),
        Value::Boolean | Value::Number => "put it in double quotes".to_owned(),
    };
    Err(format!("{}, and must be a text\nhint: {hint}", value.kind()))
}

/// Broken into lines or not.
fn base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let packed: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(packed)
}
