//! Edits one record of layers.json or images.json and keeps every byte that it does not change.
//!
//! Other programs, of other versions, keep fields in these files that we do not know. So a value stays the text that
//! it was, and the fields keep their order.

use std::fmt;
use std::path::Path;

use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::atomic_file;
use super::error::StoreError;

/// The largest layers.json or images.json that is read: some hundred thousand records.
pub(super) const FILE_LIMIT: u64 = 512 << 20;

/// A JSON object as an ordered list of fields.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonRecord(Vec<(String, Box<RawValue>)>);

impl JsonRecord {
    /// The field as a `T`; the default if it is absent, null or something else.
    pub(super) fn field<T: DeserializeOwned + Default>(&self, key: &str) -> T {
        let raw = self.0.iter().rev().find(|(name, _)| name == key);
        raw.and_then(|(_, raw)| serde_json::from_str::<Option<T>>(raw.get()).ok().flatten())
            .unwrap_or_default()
    }

    /// Replaces the field in its position, or inserts it at its position in `order`.
    pub(super) fn set(
        &mut self,
        key: &str,
        value: &impl Serialize,
        order: &[&str],
    ) -> Result<(), serde_json::Error> {
        let raw = serde_json::value::to_raw_value(value)?;
        if let Some(field) = self.0.iter_mut().rev().find(|(name, _)| name == key) {
            field.1 = raw;
            return Ok(());
        }
        let rank = |key: &str| order.iter().position(|name| *name == key);
        let later = self.0.iter().position(|(name, _)| rank(name) > rank(key));
        self.0
            .insert(later.unwrap_or(self.0.len()), (key.to_owned(), raw));
        Ok(())
    }

    /// Removes the field.
    pub(super) fn remove(&mut self, key: &str) {
        self.0.retain(|(name, _)| name != key);
    }
}

impl Serialize for JsonRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for JsonRecord {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = JsonRecord;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonRecord, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(JsonRecord(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// The records of a file, each as its text and as the fields `V` that we use. A missing file has no records.
pub(super) fn read<V: DeserializeOwned>(path: &Path) -> Result<Vec<(V, Box<RawValue>)>, StoreError> {
    let bytes = atomic_file::read(path, FILE_LIMIT)?.unwrap_or_default();
    let text = std::str::from_utf8(&bytes).map_err(|error| StoreError::corrupt(path, error))?;
    let records = split(text).map_err(|error| StoreError::corrupt(path, error))?;
    let view = |raw: Box<RawValue>| match serde_json::from_str(raw.get()) {
        Ok(view) => Ok((view, raw)),
        Err(error) => Err(StoreError::corrupt(path, error)),
    };
    records.into_iter().map(view).collect()
}

/// The records in the text of a file, each as its own text. Empty text and Go's `null` have no records.
pub(super) fn split(text: &str) -> Result<Vec<Box<RawValue>>, serde_json::Error> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_str::<Option<Vec<Box<RawValue>>>>(text)?.unwrap_or_default())
}

/// The text of a file with these records: one line, no newline, as Go writes it.
pub(super) fn join<'r>(records: impl IntoIterator<Item = &'r RawValue>) -> Vec<u8> {
    let mut text = String::from("[");
    for (position, record) in records.into_iter().enumerate() {
        if position > 0 {
            text.push(',');
        }
        text.push_str(record.get());
    }
    text.push(']');
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unchanged_fields_keep_their_text() {
        let text = r#"{"id":"a", "novel":{"n": 1.50, "big":123456789012345678901234567890},"names":["x"],"created":"y"}"#;
        let order = ["id", "digest", "names", "layer", "created"];
        let mut record: JsonRecord = serde_json::from_str(text).unwrap();
        record.set("names", &["z"], &order).unwrap();
        record.set("layer", &"l", &order).unwrap();
        record.set("digest", &"d", &order).unwrap();
        assert_eq!(
            serde_json::to_string(&record).unwrap(),
            r#"{"id":"a","novel":{"n": 1.50, "big":123456789012345678901234567890},"digest":"d","names":["z"],"layer":"l","created":"y"}"#
        );
        record.remove("novel");
        assert_eq!(record.field::<Vec<String>>("names"), ["z"]);
        assert_eq!(record.field::<String>("novel"), "");
    }

    #[test]
    fn files_are_split_and_joined_without_a_change() {
        for text in ["[]", r#"[{"id":"a","u":[1, 2]},{"id":"<&>"}]"#] {
            let records = split(text).unwrap();
            assert_eq!(join(records.iter().map(|record| &**record)), text.as_bytes());
        }
        assert!(split("").unwrap().is_empty());
        assert!(split("null").unwrap().is_empty());
        assert!(split(r#"[{"id":"a"}"#).is_err());
    }
}
