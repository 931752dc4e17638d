//! Parses YAML or JSON into a tree with the position of each value.
//!
//! The tree is as strict as the API server: no duplicate names, and only strings as names. Depth, number of nodes and the
//! expansion of aliases are bounded; the caller bounds the length of the text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};
use serde_saphyr::{Error, Spanned};

use super::DocumentError;
use super::text_position::TextPosition;
use crate::spec::shown;

/// The deepest nesting of YAML. The parser recurses: in a debug build, 60 levels overflow a thread's stack of 2 MiB. A
/// CustomResourceDefinition with a pod in it, which may be in the same file, has about 30. The JSON parser has its own limit
/// of 128 levels, which take less than 1 MiB.
const DEPTH_LIMIT: usize = 40;

/// The most scalars, lists and mappings of all documents of a text together, with aliases expanded: 5,000 ConfigMaps as printed
/// by `kubectl get`.
const NODES_LIMIT: usize = 250_000;

/// The most documents in one text; `kubectl` prints many objects as one `List`.
const DOCUMENTS_LIMIT: usize = 5_000;

const TOO_LARGE: &str = "too large or too deeply nested";

/// A value and its position, which is unknown for JSON.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: YamlValue,
    pub(super) position: Option<TextPosition>,
}

#[derive(Debug)]
pub(super) enum YamlValue {
    Null,
    Boolean(bool),
    /// `None` for a number that JSON does not have.
    Number(Option<Number>),
    Text(String),
    List(Vec<YamlNode>),
    /// Names are unique.
    Mapping(Vec<(String, YamlNode)>),
}

impl YamlNode {
    /// The field `name` of a mapping; `None` if it is null.
    pub(super) fn field(&self, name: &str) -> Option<&YamlNode> {
        let (_, node) = self.fields().iter().find(|(field, _)| field == name)?;
        (!matches!(node.value, YamlValue::Null)).then_some(node)
    }

    /// The fields of a mapping; empty for any other value.
    pub(super) fn fields(&self) -> &[(String, YamlNode)] {
        match &self.value {
            YamlValue::Mapping(fields) => fields,
            _ => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            YamlValue::Text(text) => Some(text),
            _ => None,
        }
    }

    /// How many values it has, itself included.
    pub(super) fn count(&self) -> usize {
        1 + match &self.value {
            YamlValue::List(items) => items.iter().map(Self::count).sum(),
            YamlValue::Mapping(fields) => fields.iter().map(|(_, node)| node.count()).sum::<usize>(),
            _ => 0,
        }
    }

    /// Removes all positions, which are those of another text.
    pub(super) fn forget_positions(&mut self) {
        self.position = None;
        match &mut self.value {
            YamlValue::List(items) => items.iter_mut().for_each(Self::forget_positions),
            YamlValue::Mapping(fields) => fields.iter_mut().for_each(|(_, node)| node.forget_positions()),
            _ => {}
        }
    }

    /// The value for a type's `Deserialize`.
    pub(super) fn to_json(&self) -> Value {
        match &self.value {
            YamlValue::Null => Value::Null,
            YamlValue::Boolean(value) => Value::Bool(*value),
            YamlValue::Number(value) => value.clone().map_or(Value::Null, Value::Number),
            YamlValue::Text(text) => Value::String(text.clone()),
            YamlValue::List(items) => items.iter().map(Self::to_json).collect(),
            YamlValue::Mapping(fields) => {
                let fields = fields.iter();
                fields
                    .map(|(name, node)| (name.clone(), node.to_json()))
                    .collect()
            }
        }
    }

    /// The type of the value, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            YamlValue::Null => "nothing",
            YamlValue::Boolean(_) => "`true` or `false`",
            YamlValue::Number(_) => "a number",
            YamlValue::Text(_) => "a text",
            YamlValue::List(_) => "a list",
            YamlValue::Mapping(_) => "a mapping",
        }
    }
}

/// All documents of a text that are not empty; together they have at most `nodes` values.
///
/// A text that begins with a bracket is parsed as JSON first, because YAML parsers fail on JSON's surrogate pairs. If that
/// fails, it may still be YAML in flow style.
pub(super) fn parse(text: &str, nodes: usize) -> Result<Vec<YamlNode>, DocumentError> {
    let nodes = nodes.min(NODES_LIMIT);
    if !text.trim_start().starts_with(['{', '[']) {
        return yaml(text, nodes);
    }
    let documents: Result<Vec<YamlNode>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    if let Ok(documents) = &documents
        && documents.iter().map(YamlNode::count).sum::<usize>() > nodes
    {
        return Err(DocumentError::Syntax {
            language: "JSON",
            why: TOO_LARGE.to_owned(),
        });
    }
    documents.or_else(|error| {
        yaml(text, nodes).map_err(|_| DocumentError::Syntax {
            language: "JSON",
            why: shown(&error.to_string()),
        })
    })
}

fn yaml(text: &str, nodes: usize) -> Result<Vec<YamlNode>, DocumentError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // For Go's parser, `y` is a string.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
            max_nodes: nodes,
            max_events: 3 * nodes,
            max_documents: DOCUMENTS_LIMIT,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| DocumentError::Syntax {
        language: "YAML",
        why: shown(&message(&error)),
    })
}

/// The parser's message, with its messages for programmers reworded.
fn message(error: &Error) -> String {
    let mut innermost = error;
    while let Error::AliasError { error, .. } = innermost {
        innermost = error;
    }
    let what = match innermost {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("`{key}` occurs twice"),
        Error::DuplicateMappingKey { key: None, .. } => "a name occurs twice".to_owned(),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => TOO_LARGE.to_owned(),
        other => return other.to_string(),
    };
    match innermost.location() {
        Some(at) => format!("{what} at line {}, column {}", at.line(), at.column()),
        None => what,
    }
}

impl<'de> Deserialize<'de> for YamlNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned {
            value, referenced, ..
        } = Spanned::<YamlValue>::deserialize(deserializer)?;
        let (line, column) = (referenced.line(), referenced.column());
        let position = (line > 0).then_some(TextPosition { line, column });
        Ok(Self { value, position })
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Boolean(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(Some(value.into())))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(Some(value.into())))
    }

    fn visit_i128<E>(self, _: i128) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(None))
    }

    fn visit_u128<E>(self, _: u128) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(None))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number(Number::from_f64(value)))
    }

    fn visit_str<E>(self, text: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<YamlValue, A::Error> {
        let mut names = std::collections::HashSet::new();
        let mut mapping = Vec::new();
        while let Some(name) = fields.next_key::<String>()? {
            if !names.insert(name.clone()) {
                let name = shown(&name);
                return Err(A::Error::custom(format!("`{name}` occurs twice")));
            }
            mapping.push((name, fields.next_value()?));
        }
        Ok(YamlValue::Mapping(mapping))
    }
}
