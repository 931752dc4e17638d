//! Reads documents and lists of bounded length: JSON, JSON arrays, and digests in an annotation.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error as _, SeqAccess, Visitor};

use super::error::ArtifactError;
use crate::oci::Digest;

/// The JSON document, of at most `max` bytes.
pub(super) fn parse_json<'de, T: Deserialize<'de>>(bytes: &'de [u8], max: u64) -> Result<T, ArtifactError> {
    let found = bytes.len() as u64;
    if found > max {
        return Err(ArtifactError::TooLarge { found, limit: max });
    }
    serde_json::from_slice(bytes).map_err(|error| ArtifactError::not_json(&error))
}

/// A JSON array of at most `MAX` elements; more are an error before they are in memory.
pub(super) struct AtMost<T, const MAX: usize>(pub(super) Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for AtMost<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements<T, const MAX: usize>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Elements<T, MAX> {
            type Value = AtMost<T, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX} elements")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut elements = Vec::new();
                while let Some(element) = list.next_element()? {
                    if elements.len() == MAX {
                        return Err(A::Error::invalid_length(MAX + 1, &self));
                    }
                    elements.push(element);
                }
                Ok(AtMost(elements))
            }
        }

        deserializer.deserialize_seq(Elements(PhantomData))
    }
}

/// The digests of an annotation, separated by commas, at most `max`.
pub(super) fn digests(text: &str, max: usize) -> Result<Vec<Digest>, String> {
    let mut digests = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        if digests.len() == max {
            return Err(format!("more than {max} digests"));
        }
        digests.push(part.parse().map_err(|error| format!("{error}"))?);
    }
    Ok(digests)
}

/// The annotation of such digests.
pub(super) fn joined<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> String {
    let digests = digests.into_iter().map(Digest::to_string);
    digests.collect::<Vec<_>>().join(",")
}
