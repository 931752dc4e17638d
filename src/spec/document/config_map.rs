//! Reads the keys of a ConfigMap object, as they would be mounted.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::yaml_tree::{YamlNode, YamlValue};
use super::{DocumentError, KubeObject};
use crate::spec::config_map_keys::KNOWN;
use crate::spec::shown;

/// The fields of a ConfigMap.
pub(super) const FIELDS: [&str; 6] = [
    "apiVersion",
    "kind",
    "metadata",
    "data",
    "binaryData",
    "immutable",
];

/// The names of its keys.
pub(super) fn names(object: &YamlNode) -> Vec<String> {
    let values = ["data", "binaryData"]
        .into_iter()
        .filter_map(|field| object.field(field));
    values
        .flat_map(YamlNode::fields)
        .map(|(name, _)| name.clone())
        .collect()
}

/// Whether the ConfigMap has a key of a version spec.
pub(super) fn has_known_key(object: &YamlNode) -> bool {
    names(object).iter().any(|name| KNOWN.contains(&&name[..]))
}

/// The keys and their bytes.
pub(super) fn keys(object: &KubeObject<'_>) -> Result<BTreeMap<String, Vec<u8>>, DocumentError> {
    let mut keys = BTreeMap::new();
    for field in ["data", "binaryData"] {
        let Some(values) = object.node.field(field) else {
            continue;
        };
        let YamlValue::Mapping(values) = &values.value else {
            let why = format!("it is {}, not a mapping", values.kind());
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
                return Err(wrong("`data` has the same key".to_owned()));
            }
        }
    }
    Ok(keys)
}

/// The text of a value. The API server refuses any other type, and a conversion could be wrong: `4.10` is the number 4.1.
fn text<'a>(name: &str, value: &'a YamlNode) -> Result<&'a str, String> {
    let hint = match &value.value {
        YamlValue::Text(text) => return Ok(text),
        YamlValue::Null => return Ok(""),
        YamlValue::List(_) => format!(
            "write `{}: |`, and below it one entry per line, indented and without `-`",
            shown(name)
        ),
        YamlValue::Mapping(_) => format!("write `{}: |`, and below it the text, indented", shown(name)),
        YamlValue::Boolean | YamlValue::Number => "put it in double quotes".to_owned(),
    };
    Err(format!("it is {}, not a text\nhint: {hint}", value.kind()))
}

/// Decodes base64, with or without line breaks.
fn base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let packed: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(packed)
}
