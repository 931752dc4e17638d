//! Names of fields as Go's `encoding/json` reads them: regardless of case.
//!
//! Whoever reads the manifest back from the store takes `Digest` for `digest`, and of both the later one. A body that has
//! a name in another spelling says one thing to us and another to them, so it is refused.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// What descriptors and platforms are made of, as far as anybody acts on it.
const NAMES: [&str; 9] = [
    "mediaType",
    "digest",
    "size",
    "urls",
    "annotations",
    "platform",
    "architecture",
    "os",
    "variant",
];

/// The one of `names` that Go takes `name` for although it is spelt otherwise.
pub(super) fn taken_for<'a>(name: &str, names: &[&'a str]) -> Option<&'a str> {
    // Folded as Unicode has it, the long s and the Kelvin sign are letters too (`foldName`).
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    let same = |known: &&&str| known.chars().map(fold).eq(name.chars().map(fold)) && **known != name;
    names.iter().find(same).copied()
}

/// A descriptor, or a list of them, in which every name is spelt as it should be. Annotations and fields that nobody
/// knows may have any.
pub(super) struct WellSpelt;

impl<'de> Deserialize<'de> for WellSpelt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Speller)
    }
}

struct Speller;

impl<'de> Visitor<'de> for Speller {
    type Value = WellSpelt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a descriptor, a list of them, or null")
    }

    fn visit_unit<E: Error>(self) -> Result<WellSpelt, E> {
        Ok(WellSpelt)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<WellSpelt, A::Error> {
        while list.next_element::<WellSpelt>()?.is_some() {}
        Ok(WellSpelt)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<WellSpelt, A::Error> {
        while let Some(name) = object.next_key::<String>()? {
            if let Some(known) = taken_for(&name, &NAMES) {
                return Err(Error::custom(format!("`{name}` may be read as `{known}`")));
            }
            if name == "platform" {
                object.next_value::<WellSpelt>()?;
            } else {
                object.next_value::<IgnoredAny>()?;
            }
        }
        Ok(WellSpelt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_spelling_is_found_wherever_it_counts() {
        let error = |text| {
            serde_json::from_str::<WellSpelt>(text)
                .err()
                .map(|error| error.to_string())
        };
        for (text, name) in [
            (
                r#"{"digest":"a","Digest":"b"}"#,
                "`Digest` may be read as `digest`",
            ),
            (
                r#"[{"size":1},{"\u017fize":1}]"#,
                "`\u{17f}ize` may be read as `size`",
            ),
            (r#"[{"platform":{"OS":"linux"}}]"#, "`OS` may be read as `os`"),
        ] {
            let error = error(text).expect(text);
            assert!(error.contains(name), "{error}");
        }
        for text in [
            "null",
            "[]",
            r#"[{"digest":"a","annotations":{"Size":"1"},"new":{"OS":1}}]"#,
        ] {
            assert_eq!(error(text), None, "{text}");
        }
    }
}
