//! Reads and writes a signature as containers/image keeps it in the store and in lookaside stores.
//!
//! ```text
//! blob     = message                                          simple signing, the old form, still written
//!          | NUL "simple-signing" LF message                  simple signing
//!          | NUL "sigstore-json" LF json                      sigstore attachment
//! json     = {"mimeType":…,"payload":<base64>,"annotations":{…}}
//! ```
//!
//! containers/image `internal/signature/signature.go` and `sigstore.go`. The JSON is the text of Go's `json.Marshal`, byte
//! for byte: names of annotations sorted, and the characters escaped that HTML or JavaScript would misread.

use std::collections::BTreeMap;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Signature, SigstoreSignature};
use crate::oci::go_json::{self, Field, Type};

const SIMPLE_SIGNING: &[u8] = b"simple-signing";
const SIGSTORE: &[u8] = b"sigstore-json";

/// How many characters of an unknown format's name an error shows.
const SHOWN: usize = 60;

/// First bytes of an OpenPGP message that is signed: the packets compressed data, one-pass signature and signature, each
/// with every kind of length. `0x3d` stands for `0x93` there, by mistake; the list is copied as it is, because a blob that
/// containers/image cannot read makes the image in the store unusable.
const OPENPGP: [u8; 15] = [
    0xa0, 0xa1, 0xa2, 0xa3, 0xc8, 0x90, 0x91, 0x92, 0x3d, 0xc4, 0x88, 0x89, 0x8a, 0x8b, 0xc2,
];

/// The bytes are no signature blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlobError {
    /// There are no bytes.
    #[error("empty signature blob")]
    Empty,
    /// Neither an OpenPGP message nor a marked format.
    #[error("unrecognized signature format, starting with binary {0:#x}")]
    FirstByte(u8),
    /// The name of the format has no end or is no ASCII text.
    #[error("invalid signature format, its name is not a line of ASCII text")]
    FormatName,
    /// A format that containers/image does not know either.
    #[error("unrecognized signature format `{0}`")]
    Format(String),
    /// The JSON of a sigstore signature is invalid.
    #[error("the JSON of the sigstore signature is invalid: {0}")]
    Json(String),
}

impl Signature {
    /// The signature as containers/image writes it into the store.
    pub fn to_blob(&self) -> Vec<u8> {
        match self {
            Self::Simple(message) => message.clone(),
            Self::Sigstore(signature) => [&[0], SIGSTORE, b"\n", signature.to_json().as_bytes()].concat(),
        }
    }

    /// Reads a blob as containers/image does.
    pub fn from_blob(bytes: &[u8]) -> Result<Self, BlobError> {
        match bytes {
            [] => Err(BlobError::Empty),
            [0, marked @ ..] => {
                let end = marked.iter().position(|byte| *byte == b'\n');
                let (format, content) = marked.split_at(end.ok_or(BlobError::FormatName)?);
                let content = &content[1..];
                match format {
                    SIMPLE_SIGNING => Ok(Self::Simple(content.to_vec())),
                    SIGSTORE => SigstoreSignature::from_json(content)
                        .map(Self::Sigstore)
                        .map_err(|error| BlobError::Json(error.to_string())),
                    _ if format.iter().all(|byte| (b' '..0x7f).contains(byte)) => {
                        let shown = format.iter().take(SHOWN).copied().map(char::from);
                        Err(BlobError::Format(shown.collect()))
                    }
                    _ => Err(BlobError::FormatName),
                }
            }
            [first, ..] if OPENPGP.contains(first) => Ok(Self::Simple(bytes.to_vec())),
            [first, ..] => Err(BlobError::FirstByte(*first)),
        }
    }
}

/// `sigstoreJSONRepresentation`, in its order.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Json {
    #[serde(default)]
    mime_type: Option<String>,
    #[serde(default, deserialize_with = "from_base64", serialize_with = "to_base64")]
    payload: Vec<u8>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, Option<String>>>,
}

/// [`Json`] as Go's decoder sees it.
const JSON: Type = Type::Struct(&[
    Field::ours("mimeType", Type::Text),
    Field::ours("payload", Type::Bytes),
    Field::ours("annotations", Type::Map(&Type::Text)),
]);

fn from_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    go_json::decode_base64(text.as_bytes()).ok_or_else(|| D::Error::custom("`payload` is not base64"))
}

fn to_base64<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&base64::display::Base64Display::new(
        bytes,
        &base64::engine::general_purpose::STANDARD,
    ))
}

impl SigstoreSignature {
    fn to_json(&self) -> String {
        let json = Json {
            mime_type: Some(self.mime_type.clone()),
            payload: self.payload.clone(),
            annotations: self.annotations.as_ref().map(|annotations| {
                let pairs = annotations.iter();
                pairs
                    .map(|(name, value)| (name.clone(), Some(value.clone())))
                    .collect()
            }),
        };
        let text = serde_json::to_string(&json).expect("strings as names and values");
        // Go escapes these too. Outside strings, JSON has none of them.
        let mut escaped = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '<' => escaped.push_str("\\u003c"),
                '>' => escaped.push_str("\\u003e"),
                '&' => escaped.push_str("\\u0026"),
                '\u{2028}' => escaped.push_str("\\u2028"),
                '\u{2029}' => escaped.push_str("\\u2029"),
                other => escaped.push(other),
            }
        }
        escaped
    }

    fn from_json(json: &[u8]) -> Result<Self, serde_json::Error> {
        go_json::check(json, JSON)?;
        let Json {
            mime_type,
            payload,
            annotations,
        } = serde_json::from_slice(json)?;
        let texts = |annotations: BTreeMap<String, Option<String>>| {
            let pairs = annotations.into_iter();
            pairs
                .map(|(name, value)| (name, value.unwrap_or_default()))
                .collect()
        };
        Ok(Self {
            mime_type: mime_type.unwrap_or_default(),
            payload,
            annotations: annotations.map(texts),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::tests::corpus;

    fn sigstore(annotations: &[(&str, &str)]) -> SigstoreSignature {
        SigstoreSignature {
            mime_type: SigstoreSignature::MIME_TYPE.to_owned(),
            payload: b"{\"a\":1}".to_vec(),
            annotations: Some(
                annotations
                    .iter()
                    .map(|(name, value)| (name.to_string(), value.to_string()))
                    .collect(),
            ),
        }
    }

    #[test]
    fn a_sigstore_signature_is_written_as_go_writes_it() {
        let signature = sigstore(&[
            ("b", "<&>\u{2028}\u{2029}é\u{7f}\u{1f}\n\"\\/"),
            ("B", ""),
            ("a/b", "x"),
        ]);
        let blob = concat!(
            "\0sigstore-json\n",
            r#"{"mimeType":"application/vnd.dev.cosign.simplesigning.v1+json","payload":"eyJhIjoxfQ==","#,
            r#""annotations":{"B":"","a/b":"x","b":"\u003c\u0026\u003e\u2028\u2029é"#,
            "\u{7f}",
            r#"\u001f\n\"\\/"}}"#,
        );
        let signature = Signature::Sigstore(signature);
        assert_eq!(String::from_utf8_lossy(&signature.to_blob()), blob);
        assert_eq!(Signature::from_blob(blob.as_bytes()), Ok(signature));
    }

    #[test]
    fn no_annotations_are_null_and_differ_from_an_empty_map() {
        let mut signature = sigstore(&[]);
        for expected in [",\"annotations\":{}}", ",\"annotations\":null}"] {
            let blob = Signature::Sigstore(signature.clone()).to_blob();
            assert!(blob.ends_with(expected.as_bytes()));
            assert_eq!(
                Signature::from_blob(&blob),
                Ok(Signature::Sigstore(signature.clone()))
            );
            signature.annotations = None;
        }
    }

    #[test]
    fn a_simple_signature_is_its_bytes_and_is_read_with_and_without_a_name() {
        for message in [&b"\xa3rest"[..], b"\x90", b"\x3d-", b"\xc2\n\0"] {
            let signature = Signature::Simple(message.to_vec());
            assert_eq!(signature.to_blob(), message);
            assert_eq!(Signature::from_blob(message), Ok(signature.clone()));
            let named = [b"\0simple-signing\n", message].concat();
            assert_eq!(Signature::from_blob(&named), Ok(signature));
        }
    }

    #[test]
    fn go_reads_these_blobs_and_so_does_this() {
        let read = |json: &str| Signature::from_blob(format!("\0sigstore-json\n{json}").as_bytes());
        let empty = Signature::Sigstore(SigstoreSignature::default());
        assert_eq!(read("{}"), Ok(empty.clone()));
        assert_eq!(
            read(r#" {"mimeType":null,"payload":null,"annotations":null,"new":[1]} "#),
            Ok(empty)
        );
        let Ok(Signature::Sigstore(signature)) =
            read(r#"{"payload":"YQ\n==","annotations":{"a":"1","a":"2","b":null}}"#)
        else {
            panic!("Go reads it");
        };
        assert_eq!(signature.payload, b"a");
        let annotations = signature.annotations.expect("annotations");
        assert_eq!(annotations["a"], "2");
        assert_eq!(annotations["b"], "");
    }

    #[test]
    fn what_is_no_blob_is_refused() {
        for (blob, why) in [
            (&b""[..], "empty signature blob"),
            (b"\x01", "unrecognized signature format, starting with binary 0x1"),
            (
                b"<html>",
                "unrecognized signature format, starting with binary 0x3c",
            ),
            (b"\0sigstore-json", "not a line of ASCII"),
            (b"\0sig\xffstore\n", "not a line of ASCII"),
            (b"\0cosign-9\n{}", "unrecognized signature format `cosign-9`"),
            (b"\0sigstore-json\n", "EOF"),
            (b"\0sigstore-json\n{}{}", "trailing"),
            (b"\0sigstore-json\n{\"payload\":\"=\"}", "`payload`"),
            (b"\0sigstore-json\n{\"payload\":1}", "`payload`"),
            (b"\0sigstore-json\n{\"PAYLOAD\":\"\"}", "may be read as `payload`"),
        ] {
            let error = Signature::from_blob(blob).expect_err("no blob").to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn the_signatures_of_containers_image_are_read_and_written_byte_for_byte() {
        let Some(fixtures) = corpus("policy-json/containers-image-signature-fixtures") else {
            return;
        };
        let mut read = 0;
        for directory in std::fs::read_dir(fixtures).expect("fixtures").flatten() {
            for number in 1..=2 {
                let path = directory.path().join(format!("signature-{number}"));
                let Ok(bytes) = std::fs::read(&path) else {
                    continue;
                };
                // An editor added a line feed to some.
                let end = [&b""[..], b"\n"].map(|end| bytes.strip_suffix(end));
                match Signature::from_blob(&bytes) {
                    Ok(signature) => {
                        assert!(end.contains(&Some(&signature.to_blob())), "{}", path.display())
                    }
                    Err(error) => panic!("{}: {error}", path.display()),
                }
                read += 1;
            }
        }
        assert!(read > 10, "{read}");
    }
}
