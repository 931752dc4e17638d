//! A YAML or JSON document as a tree, with the places where its values stand.
//!
//! What the API server would not take, is not taken here either: a name that occurs twice, a name that is no text.
//! Depth, nodes and what aliases may expand to are bounded; the text's length is the reader's to bound.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Error, Spanned};

use super::DocumentError;
use crate::spec::shown;

/// The deepest nesting of YAML. The parser recurses: 60 levels with their places overflow a thread's 2 MiB in a debug
/// build. A CustomResourceDefinition with a pod in it, which may lie beside ours, has about 30. JSON's parser has a limit
/// of its own, 128 levels, which take less than 1 MiB.
const DEPTH_LIMIT: usize = 40;

/// Scalars, lists and mappings of all YAML documents together, aliases expanded: 5,000 ConfigMaps as `kubectl get` shows
/// them.
const NODES_LIMIT: usize = 250_000;

/// Documents in one text; `kubectl` puts many objects into one `List`.
const DOCUMENTS_LIMIT: usize = 5_000;

/// Where a value begins.
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

/// A value and where it stands; that is not known of JSON.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) value: Value,
    pub(super) place: Option<TextPosition>,
}

#[derive(Debug)]
pub(super) enum Value {
    Null,
    Boolean,
    Number,
    Text(String),
    List(Vec<Node>),
    /// No name occurs twice.
    Mapping(Vec<(String, Node)>),
}

impl Node {
    /// The field `name` of a mapping; a null one is none.
    pub(super) fn field(&self, name: &str) -> Option<&Node> {
        let (_, node) = self.fields().iter().find(|(field, _)| field == name)?;
        (!matches!(node.value, Value::Null)).then_some(node)
    }

    /// The fields of a mapping; of anything else none.
    pub(super) fn fields(&self) -> &[(String, Node)] {
        match &self.value {
            Value::Mapping(fields) => fields,
            _ => &[],
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// What it is, for a message.
    pub(super) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Boolean => "`true` or `false`",
            Value::Number => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Mapping(_) => "a mapping",
        }
    }
}

/// All documents of a text that are not empty.
///
/// What begins like JSON is read as that, for YAML's parsers stumble over JSON's surrogate pairs; what is no JSON then,
/// may still be YAML in braces.
pub(super) fn parse(text: &str) -> Result<Vec<Node>, DocumentError> {
    if !text.trim_start().starts_with(['{', '[']) {
        return yaml(text);
    }
    let documents: Result<Vec<Node>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
    documents.or_else(|error| {
        yaml(text).map_err(|_| DocumentError::Syntax {
            language: "JSON",
            why: shown(&error.to_string()),
        })
    })
}

fn yaml(text: &str) -> Result<Vec<Node>, DocumentError> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `y` is a name for Go.
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
        why: shown(&what_is_wrong(&error)),
    })
}

/// The parser's words, but for what it says to programmers.
fn what_is_wrong(error: &Error) -> String {
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
        | Error::AliasReplayStackDepthExceeded { .. } => "too much, or too deeply nested".to_owned(),
        other => return other.to_string(),
    };
    match innermost.location() {
        Some(at) => format!("{what} at line {}, column {}", at.line(), at.column()),
        None => what,
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned {
            value, referenced, ..
        } = Spanned::<Value>::deserialize(deserializer)?;
        let (line, column) = (referenced.line(), referenced.column());
        let place = (line > 0).then_some(TextPosition { line, column });
        Ok(Self { value, place })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Value, E> {
        Ok(Value::Boolean)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Value, E> {
        Ok(Value::Number)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Value, E> {
        Ok(Value::Number)
    }

    fn visit_i128<E>(self, _: i128) -> Result<Value, E> {
        Ok(Value::Number)
    }

    fn visit_u128<E>(self, _: u128) -> Result<Value, E> {
        Ok(Value::Number)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Value, E> {
        Ok(Value::Number)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(Value::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut names = std::collections::HashSet::new();
        let mut mapping = Vec::new();
        while let Some(name) = fields.next_key::<String>()? {
            if !names.insert(name.clone()) {
                let name = shown(&name);
                return Err(A::Error::custom(format!("`{name}` occurs twice")));
            }
            mapping.push((name, fields.next_value()?));
        }
        Ok(Value::Mapping(mapping))
    }
}
