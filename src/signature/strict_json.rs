//! Reads JSON objects as strictly as containers/image reads policies and signatures: no unknown and no repeated names.
//!
//! containers/image `signature/internal/json.go` (`ParanoidUnmarshalJSONObject`). Each level is read from its raw text, so
//! depth and memory do not depend on values that are not read. Go decodes null into every type and leaves the value
//! empty; invalid Unicode, which Go replaces, is refused here.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeOwned, Deserializer as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::shown;
use crate::oci::go_json::{self, Type};

/// What is wrong with a document, and at which member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormatError(String);

impl FormatError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Names the member in which the error is.
    pub(super) fn within(self, member: &str) -> Self {
        Self(format!("`{}`: {}", shown(member), self.0))
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A whole document.
pub(super) fn document(json: &[u8]) -> Result<&RawValue, FormatError> {
    // The types are checked later; this finds what Go's scanner refuses anywhere in the document.
    let checked = go_json::check(json, Type::Struct(&[]));
    checked
        .and_then(|()| serde_json::from_slice(json))
        .map_err(|error| FormatError::new(error.to_string()))
}

/// The members of an object, in their order.
pub(super) fn members(value: &RawValue) -> Result<Vec<(String, &RawValue)>, FormatError> {
    if !value.get().starts_with('{') {
        return Err(FormatError::new("JSON object expected"));
    }
    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    let members = deserializer.deserialize_map(Members);
    let members = members.map_err(|_| FormatError::new("a name contains invalid Unicode"))?;
    let mut seen = BTreeSet::new();
    match members.iter().find(|(name, _)| !seen.insert(name)) {
        Some((name, _)) => Err(FormatError::new(format!("Duplicate key `{}`", shown(name)))),
        None => Ok(members),
    }
}

/// The values of those of `names` that an object has; it has no others.
pub(super) fn fields<'a, const N: usize>(
    value: &'a RawValue,
    names: [&str; N],
) -> Result<[Option<&'a RawValue>; N], FormatError> {
    let mut found = [None; N];
    for (name, value) in members(value)? {
        match names.iter().position(|known| *known == name) {
            Some(position) => found[position] = Some(value),
            None => return Err(unknown_key(&name)),
        }
    }
    Ok(found)
}

/// The error for a name that has no meaning.
pub(super) fn unknown_key(name: &str) -> FormatError {
    FormatError::new(format!("Unknown key `{}`", shown(name)))
}

/// The values of `names`; an object has all of them and no others.
pub(super) fn exact_fields<'a, const N: usize>(
    value: &'a RawValue,
    names: [&str; N],
) -> Result<[&'a RawValue; N], FormatError> {
    let found = fields(value, names)?;
    if let Some(missing) = found.iter().position(Option::is_none) {
        let name = names[missing];
        return Err(FormatError::new(format!("Key `{name}` missing in a JSON object")));
    }
    Ok(found.map(|value| value.expect("none is missing")))
}

/// A value that Go decodes into the same type; nothing for null.
pub(super) fn optional<T: DeserializeOwned>(value: &RawValue, what: &str) -> Result<Option<T>, FormatError> {
    serde_json::from_str(value.get()).map_err(|_| FormatError::new(format!("{what} expected")))
}

/// A string; null is the empty one.
pub(super) fn text(value: &RawValue) -> Result<String, FormatError> {
    Ok(optional(value, "a string")?.unwrap_or_default())
}

/// A list of strings; nothing for null.
pub(super) fn texts(value: &RawValue) -> Result<Option<Vec<String>>, FormatError> {
    let texts: Option<Vec<Option<String>>> = optional(value, "a list of strings")?;
    Ok(texts.map(|texts| texts.into_iter().map(Option::unwrap_or_default).collect()))
}

/// Bytes in base64; nothing for null.
pub(super) fn bytes(value: &RawValue) -> Result<Option<Vec<u8>>, FormatError> {
    optional(value, "a string in base64")?.map(decode).transpose()
}

/// A list of bytes in base64; nothing for null.
pub(super) fn byte_strings(value: &RawValue) -> Result<Option<Vec<Vec<u8>>>, FormatError> {
    let list = texts(value)?;
    list.map(|list| list.into_iter().map(decode).collect())
        .transpose()
}

fn decode(text: String) -> Result<Vec<u8>, FormatError> {
    go_json::decode_base64(text.as_bytes()).ok_or_else(|| FormatError::new("a string in base64 expected"))
}

/// Collects the members of an object.
struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = object.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}
