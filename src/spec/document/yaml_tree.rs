//! Parses YAML or JSON into a tree with the position of each value.
//!
//! The tree is as strict as the API server: no duplicate names, and only strings as names. Depth, number of nodes and the
//! expansion of aliases are bounded; the caller bounds the length of the text.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Spanned};

use super::DocumentError;
use crate::spec::shown;

/// The deepest nesting of YAML. The parser recurses: in a debug build, 60 levels overflow a thread's stack of 2 MiB. A
/// CustomResourceDefinition with a pod in it, which may be in the same file, has about 30. The JSON parser has its own limit
/// of 128 levels, which take less than 1 MiB.
const DEPTH_LIMIT: usize = 40;

/// The most scalars, lists and mappings of all YAML documents together, with aliases expanded: 5,000 ConfigMaps as printed
/// by `kubectl get`.
const NODES_LIMIT: usize = 250_000;

/// The most documents in one text; `kubectl` prints many objects as one `List`.
const DOCUMENTS_LIMIT: usize = 5_000;

/// The position of a value in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextPosition {
    /// Counted from 1.
    pub line: u64,
    /// In characters, counted from 1.
    pub column: u64,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// A value and its position, which is unknown for JSON.
#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) value: YamlValue,
    pub(super) position: Option<TextPosition>,
}

#[derive(Debug)]
pub(super) enum YamlValue {
    Null,
    Boolean,
    Number,
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

    /// The type of the value, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            YamlValue::Null => "nothing",
            YamlValue::Boolean => "`true` or `false`",
            YamlValue::Number => "a number",
            YamlValue::Text(_) => "a text",
            YamlValue::List(_) => "a list",
            YamlValue::Mapping(_) => "a mapping",
        }
    }
}

/// All documents of a text that are not empty.
///
/// A text that begins with a bracket is parsed as JSON first, because YAML parsers fail on JSON's surrogate pairs. If that
/// fails, it may still be YAML in flow style.
pub(super) fn parse(text: &str) -> Result<Vec<YamlNode>, DocumentError> {
    if !text.trim_start().starts_with(['{', '[']) {
        return yaml(text);
    }
    let documents: Result<Vec<YamlNode>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    documents.or_else(|error| {
        yaml(text).map_err(|_| DocumentError::Syntax {
            language: "JSON",
            why: shown(&error.to_string()),
        })
    })
}

fn yaml(text: &str) -> Result<Vec<YamlNode>, DocumentError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // For Go's parser, `y` is a string.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_LIMIT,
            max_nodes: NODES_LIMIT,
            max_events: 3 * NODES_LIMIT,
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
        | Error::AliasReplayStackDepthExceeded { .. } => "too large or too deeply nested".to_owned(),
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

    fn visit_bool<E>(self, _: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Boolean)
    }

    fn visit_i64<E>(self, _: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number)
    }

    fn visit_i128<E>(self, _: i128) -> Result<YamlValue, E> {
        Ok(YamlValue::Number)
    }

    fn visit_u128<E>(self, _: u128) -> Result<YamlValue, E> {
        Ok(YamlValue::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Number)
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
