//! Reads the keys of a ConfigMap object, as they would be mounted.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::DocumentError;
use super::complete_spec::CompleteSpec;
use super::kube_object::KubeObject;
use super::yaml_tree::{YamlNode, YamlValue};
use crate::spec::config_map_keys::{from_keys, is_key};
use crate::spec::shown;

/// The fields of a ConfigMap.
const FIELDS: [&str; 6] = [
    "apiVersion",
    "kind",
    "metadata",
    "data",
    "binaryData",
    "immutable",
];

impl KubeObject<'_> {
    /// A file may contain many ConfigMaps; a version spec has at least one known key.
    pub(super) fn has_spec_keys(&self) -> bool {
        self.is_config_map() && self.key_names().iter().any(|name| is_key(name))
    }

    /// The version spec, and warnings for the user.
    pub(super) fn read_config_map(&self) -> Result<CompleteSpec, DocumentError> {
        let mut warnings = self.unknown_fields("", self.node, &FIELDS);
        let (spec, more) = from_keys(&keys(self)?).map_err(|why| DocumentError::Content {
            object: self.title(),
            why: Box::new(why),
        })?;
        warnings.extend(more);
        Ok(CompleteSpec {
            title: self.title(),
            spec,
            warnings,
        })
    }
}

/// The keys and their bytes.
fn keys(object: &KubeObject<'_>) -> Result<BTreeMap<String, Vec<u8>>, DocumentError> {
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
        YamlValue::Boolean(_) | YamlValue::Number(_) => "put it in double quotes".to_owned(),
    };
    Err(format!("it is {}, not a text\nhint: {hint}", value.kind()))
}

/// Decodes base64, with or without line breaks.
fn base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    let packed: String = text.split_ascii_whitespace().collect();
    STANDARD.decode(packed)
}
