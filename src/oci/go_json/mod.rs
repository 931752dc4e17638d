//! Checks that Go's `encoding/json` can decode a document into a type, and that this program reads the same fields.
//!
//! podman, CRI-O and containers/storage decode the documents of every image in the store whenever they list images. One
//! document that Go refuses fails the whole list, also for the kubelet, so it must not get into the store. The types are in
//! [`schema`]; the rules are those of Go 1.19 to 1.24, and the stricter one where they differ:
//!
//! - A name belongs to a field if it is equal, or equal after folding (`foldName`): upper case, the long s (U+017F) and the
//!   Kelvin sign (U+212A) count as the lower-case letter. Every other name is skipped.
//! - A field may be repeated; each occurrence must decode. null decodes into every type.
//! - A number decodes into an integer if it is written as one and fits into 64 bits.
//! - Strings may contain invalid UTF-8 and lone surrogates; Go replaces them.
//! - Arrays and objects nest at most 10,000 levels deep; only white space may follow the document.
//!
//! The check keeps nothing in memory: a tree of four mebibytes of brackets would take forty times their length.

mod scan;
pub(super) mod schema;
mod time;

pub(crate) use time::is_time;

use std::fmt;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use serde::de::{
    Deserialize as _, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde_json::value::RawValue;

/// A Go type, as far as the decoder distinguishes it.
#[derive(Clone, Copy)]
pub(crate) enum Type {
    /// `string`
    Text,
    /// `bool`
    Flag,
    /// `int`, `int64`, `time.Duration`
    Integer,
    /// `time.Time`
    Time,
    /// `[]byte`
    Bytes,
    /// containers/image's `strslice.StrSlice`: a string, or a slice of them
    TextOrTexts,
    /// A slice.
    List(&'static Type),
    /// `map[string]…`
    Map(&'static Type),
    /// A struct.
    Struct(&'static [Field]),
    /// Only null is allowed: a field of another kind of document, which containers/image refuses here
    /// (`ValidateUnambiguousManifestFormat`).
    Foreign,
}

/// `[]string`
pub(super) const TEXTS: Type = Type::List(&Type::Text);

/// `map[string]struct{}`, a set.
pub(super) const SET: Type = Type::Map(&Type::Struct(&[]));

/// A field of a struct.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    name: &'static str,
    kind: Type,
    is_ours: bool,
}

impl Field {
    /// A field that only other programs read.
    pub(crate) const fn of(name: &'static str, kind: Type) -> Self {
        Self {
            name,
            kind,
            is_ours: false,
        }
    }

    /// A field that this program reads too. It reads the exact name only, while Go reads every name that folds to it and
    /// keeps the last one, so another spelling would mean different things to the two.
    pub(crate) const fn ours(name: &'static str, kind: Type) -> Self {
        Self {
            name,
            kind,
            is_ours: true,
        }
    }
}

/// Returns why Go cannot decode `json` into `kind`, and where.
pub(crate) fn check(json: &[u8], kind: Type) -> Result<(), serde_json::Error> {
    scan::check(json)?;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    kind.deserialize(&mut deserializer)?;
    deserializer.end()
}

/// Whether Go decodes `name` into the field. All field names are ASCII.
fn folds_to(name: &str, field: &str) -> bool {
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        c => c.to_ascii_lowercase(),
    };
    name.chars().map(fold).eq(field.chars().map(fold))
}

impl Type {
    /// The type of the member `name` of an object; `None` if Go skips it.
    fn of_member<E: Error>(self, name: &str) -> Result<Option<Self>, E> {
        match self {
            Self::Map(kind) => Ok(Some(*kind)),
            Self::Struct(fields) => match fields.iter().find(|field| folds_to(name, field.name)) {
                Some(field) if field.is_ours && field.name != name => Err(E::custom(format_args!(
                    "`{name}` may be read as `{}`",
                    field.name
                ))),
                found => Ok(found.map(|field| field.kind)),
            },
            _ => Ok(None),
        }
    }
}

impl<'de> DeserializeSeed<'de> for Type {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'de> Visitor<'de> for Type {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a string",
            Self::Flag => "a boolean",
            Self::Integer => "a whole number",
            Self::Time => "a time of RFC 3339",
            Self::Bytes => "base64",
            Self::TextOrTexts => "a string or a list",
            Self::List(_) => "a list",
            Self::Map(_) | Self::Struct(_) => "an object",
            Self::Foreign => "null",
        })
    }

    fn visit_none<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self {
            // As bytes, serde_json passes a string on without checking that it is Unicode.
            Self::Text | Self::Bytes | Self::TextOrTexts => deserializer.deserialize_bytes(self),
            // `Time.UnmarshalJSON` gets the raw text and does not decode escapes.
            Self::Time => match <&RawValue>::deserialize(deserializer)?.get() {
                quoted if is_time(quoted) => Ok(()),
                other => Err(D::Error::invalid_value(Unexpected::Other(other), &self)),
            },
            Self::Foreign => Err(D::Error::custom("does not belong in a manifest of this type")),
            _ => deserializer.deserialize_any(self),
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self {
            Self::Flag => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        match self {
            Self::Integer => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Signed(value), &self)),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        match self {
            Self::Integer if i64::try_from(value).is_ok() => Ok(()),
            _ => Err(E::invalid_type(Unexpected::Unsigned(value), &self)),
        }
    }

    fn visit_bytes<E: Error>(self, value: &[u8]) -> Result<(), E> {
        let is_good = match self {
            Self::Text | Self::TextOrTexts => true,
            Self::Bytes => decode_base64(value).is_some(),
            _ => return Err(E::invalid_type(Unexpected::Other("string"), &self)),
        };
        match is_good {
            true => Ok(()),
            false => Err(E::invalid_value(
                Unexpected::Str(&String::from_utf8_lossy(value)),
                &self,
            )),
        }
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<(), E> {
        self.visit_bytes(value.as_bytes())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let kind = match self {
            Self::List(kind) => *kind,
            Self::TextOrTexts => Self::Text,
            _ => return Err(A::Error::invalid_type(Unexpected::Seq, &self)),
        };
        while list.next_element_seed(kind)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        if !matches!(self, Self::Map(_) | Self::Struct(_)) {
            return Err(A::Error::invalid_type(Unexpected::Map, &self));
        }
        while let Some(name) = object.next_key_seed(Name)? {
            match self.of_member(&name)? {
                None => drop(object.next_value::<IgnoredAny>()?),
                Some(kind) => object
                    .next_value_seed(kind)
                    .map_err(|error| A::Error::custom(format_args!("`{name}`: {error}")))?,
            }
        }
        Ok(())
    }
}

/// The name of an object's member, with U+FFFD in place of invalid Unicode.
struct Name;

impl<'de> DeserializeSeed<'de> for Name {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl Visitor<'_> for Name {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_bytes<E: Error>(self, name: &[u8]) -> Result<String, E> {
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

/// Decodes text as Go's `base64.StdEncoding` does: padded, with line breaks anywhere, and any trailing bits.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    const GO: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
    );
    let text: Vec<u8> = text
        .iter()
        .copied()
        .filter(|byte| !b"\r\n".contains(byte))
        .collect();
    GO.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: Type = Type::Struct(&[
        Field::ours("size", Type::Integer),
        Field::of("link", Type::Text),
        Field::of("annotations", Type::Map(&Type::Text)),
        Field::of("data", Type::Bytes),
        Field::of("shell", Type::TextOrTexts),
        Field::of("manifests", Type::Foreign),
    ]);

    fn refusal(json: &[u8]) -> Option<String> {
        check(json, DOCUMENT).err().map(|error| error.to_string())
    }

    #[test]
    fn documents_that_go_decodes_are_accepted() {
        for json in [
            &br#"{}"#[..],
            b"null",
            br#" {"size":-9223372036854775808,"link":null,"annotations":{"a":null,"a":"b"},"manifests":null} "#,
            br#"{"link":"\ud800","annotations":{"\udfff":"\ud83d x"}}"#,
            b"{\"link\":\"\xff\",\"annotations\":{\"\xc3\":\"\xed\xa0\x80\"},\"\xff\":1}",
            br#"{"LINK":"a","lin\u212a":"b","link":"c"}"#,
            br#"{"data":"aGk=","shell":"sh"}"#,
            br#"{"data":"a\nGl\r=","shell":["sh",null]}"#,
            br#"{"data":""}"#,
            br#"{"unknown":[{"size":"x","Size":[1e308,-1.5E-999]}]}"#,
        ] {
            assert_eq!(refusal(json), None, "{}", String::from_utf8_lossy(json));
        }
    }

    #[test]
    fn fields_that_go_refuses_or_reads_differently_are_named() {
        for (json, why) in [
            (&br#"{"annotations":"x"}"#[..], "`annotations`: invalid type"),
            (br#"{"Annotations":"x"}"#, "`Annotations`: invalid type"),
            (
                "{\"annotation\u{17f}\":\"x\"}".as_bytes(),
                "`annotation\u{17f}`: invalid type",
            ),
            (br#"{"annotation\u017f":["x"]}"#, "invalid type: sequence"),
            ("{\"lin\u{212a}\":1}".as_bytes(), "`lin\u{212a}`: invalid type"),
            (br#"{"link":1,"link":"a"}"#, "`link`: invalid type"),
            (br#"{"\u017fize":1}"#, "`\u{17f}ize` may be read as `size`"),
            (br#"{"size":1,"SIZE":2}"#, "`SIZE` may be read as `size`"),
            (br#"{"size":1.0}"#, "`size`: invalid type"),
            (br#"{"size":1e2}"#, "`size`: invalid type"),
            (br#"{"size":9223372036854775808}"#, "`size`: invalid type"),
            (br#"{"size":"1"}"#, "`size`: invalid type"),
            (br#"{"data":"aGk"}"#, "`data`: invalid value"),
            (br#"{"data":"a-k="}"#, "`data`: invalid value"),
            (br#"{"shell":{}}"#, "`shell`: invalid type"),
            (br#"{"manifests":[]}"#, "`manifests`: does not belong"),
            (br#"{"unknown":1e999}"#, "too large"),
            (b"{\"link\":\"a\nb\"}", "control character"),
            (b"{\"unknown\":\"a\x01\"}", "control character"),
            (br#"{} {}"#, "trailing"),
            (br#"[]"#, "expected an object"),
            (b"\xef\xbb\xbf{}", "expected value"),
        ] {
            let refusal = refusal(json).unwrap_or_default();
            assert!(
                refusal.contains(why),
                "{}: {refusal}",
                String::from_utf8_lossy(json)
            );
        }
    }

    #[test]
    fn nesting_is_limited_to_ten_thousand_levels() {
        let nested =
            |depth: usize| format!(r#"{{"new":{}{}}}"#, "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert_eq!(refusal(nested(10_000).as_bytes()), None);
        let refusal = refusal(nested(10_001).as_bytes()).unwrap_or_default();
        assert!(refusal.contains("deeper than 10000"), "{refusal}");
        // Brackets in strings do not count.
        let text = format!(r#"{{"link":"\"{}"}}"#, "[".repeat(20_000));
        assert!(check(text.as_bytes(), DOCUMENT).is_ok());
    }
}
