//! Reads and edits the `metadata` of an image's record, in which containers/image keeps the length of each signature.
//!
//! ```text
//! metadata  {"signature-sizes":[575,588],"signatures-sizes":{"sha256:<manifest>":[575,588]}}
//! big data    signatures                   signature-<manifest>
//! ```
//!
//! Each item is the signatures one after another. The first one belongs to the manifest that the image was pulled by
//! last, and CRI-O reads it before it starts a container. The others belong to one manifest each (`storage_image.go`:
//! `storageImageMetadata`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::oci::Digest;

/// Items whose keys begin with this are signatures.
pub(super) const SIGNATURE: &str = "signature";

/// The item with the signatures of the item `manifest`.
pub(super) const SIGNATURES: &str = "signatures";

/// The most signatures that one manifest has. A lookaside store has at most 128 (containers/image
/// `docker_image_src.go`: `maxLookasideSignatures`).
pub(super) const COUNT_LIMIT: usize = 4096;

/// The item with the signatures of one manifest.
pub(super) fn key_of(manifest: Digest) -> String {
    format!("{SIGNATURE}-{}", manifest.hex())
}

/// The length of each signature, for each item.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default, rename_all = "kebab-case")]
pub(super) struct SignatureLengths {
    #[serde(skip_serializing_if = "Option::is_none")]
    signature_sizes: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signatures_sizes: Option<BTreeMap<String, Option<Vec<u64>>>>,
    /// Unknown fields, which are kept.
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

impl SignatureLengths {
    /// The lengths in a record's `metadata`; `None` if containers/image cannot read it.
    pub(super) fn parse(metadata: Option<&str>) -> Option<Self> {
        match metadata.filter(|text| !text.is_empty()) {
            Some(text) => serde_json::from_str(text).ok(),
            None => Some(Self::default()),
        }
    }

    /// The `metadata`. That of an image without signatures is `{}`.
    pub(super) fn text(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// The lengths in the item `signatures`.
    pub(super) fn of_default(&self) -> &[u64] {
        self.signature_sizes.as_deref().unwrap_or_default()
    }

    /// The lengths in the item of one manifest.
    pub(super) fn of(&self, manifest: Digest) -> &[u64] {
        let lists = self.signatures_sizes.as_ref();
        let list = lists.and_then(|lists| lists.get(&manifest.to_string())?.as_deref());
        list.unwrap_or_default()
    }

    /// Replaces the lengths in the item `signatures`.
    pub(super) fn set_default(&mut self, lengths: &[u64]) {
        if self.of_default() != lengths {
            self.signature_sizes = (!lengths.is_empty()).then(|| lengths.to_vec());
        }
    }

    /// Replaces the lengths in the item of one manifest.
    pub(super) fn set(&mut self, manifest: Digest, lengths: &[u64]) {
        if self.of(manifest) != lengths {
            let lists = self.signatures_sizes.get_or_insert_default();
            lists.insert(manifest.to_string(), Some(lengths.to_vec()));
        }
    }

    /// Removes the lengths in the item with this key.
    pub(super) fn remove(&mut self, key: &str) {
        if key == SIGNATURES {
            self.set_default(&[]);
        }
        if let Some(lists) = &mut self.signatures_sizes {
            lists.retain(|manifest, _| key_of_text(manifest) != key);
        }
        if self.signatures_sizes.as_ref().is_some_and(BTreeMap::is_empty) {
            self.signatures_sizes = None;
        }
    }

    /// The items from which containers/image cannot cut the signatures, because their length differs from the sum of
    /// these lengths. Items of an earlier pull stay when a later pull finds no signatures, and nothing reads them.
    pub(super) fn mismatches(&self, size_of: impl Fn(&str) -> Option<u64>) -> Vec<String> {
        let lists = self.signatures_sizes.iter().flatten();
        let of_manifests =
            lists.map(|(manifest, lengths)| (key_of_text(manifest), lengths.as_deref().unwrap_or_default()));
        let all = of_manifests.chain([(SIGNATURES.to_owned(), self.of_default())]);
        let mismatches = all.filter(|(key, lengths)| {
            let sum = lengths
                .iter()
                .try_fold(0_u64, |sum, length| sum.checked_add(*length));
            !lengths.is_empty() && (lengths.contains(&0) || sum.is_none() || size_of(key) != sum)
        });
        mismatches.map(|(key, _)| key).collect()
    }
}

fn key_of_text(manifest: &str) -> String {
    let hex = manifest.split_once(':').map_or(manifest, |(_, hex)| hex);
    format!("{SIGNATURE}-{hex}")
}

/// Cuts an item into its signatures, as containers/image does (`storage_src.go`: `GetSignaturesWithFormat`).
pub(super) fn cut(mut item: &[u8], lengths: &[u64]) -> Result<Vec<Vec<u8>>, String> {
    if lengths.len() > COUNT_LIMIT {
        return Err(format!("it has more than {COUNT_LIMIT} signatures"));
    }
    let total = item.len();
    let mut signatures = Vec::new();
    for length in lengths {
        let cut = usize::try_from(*length).ok().filter(|length| *length > 0);
        let Some((signature, rest)) = cut.and_then(|length| item.split_at_checked(length)) else {
            return Err(format!(
                "it has {total} bytes, which differs from the lengths in its image's `metadata`"
            ));
        };
        signatures.push(signature.to_vec());
        item = rest;
    }
    match item.is_empty() {
        true => Ok(signatures),
        false => Err(format!("it has {} bytes after the last signature", item.len())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn metadata_is_read_and_written_as_containers_image_does() {
        for text in [
            "{}",
            r#"{"signature-sizes":[575,588],"signatures-sizes":{"sha256:ab":[575,588]}}"#,
            r#"{"signatures-sizes":{"sha256:ab":[]}}"#,
            r#"{"signatures-sizes":{"sha256:ab":null},"novel":{"b":1}}"#,
        ] {
            let lengths = SignatureLengths::parse(Some(text)).unwrap();
            assert_eq!(lengths.text().unwrap(), text);
        }
        for nothing in [None, Some("")] {
            assert_eq!(SignatureLengths::parse(nothing).unwrap().text().unwrap(), "{}");
        }
        for wrong in [
            "x",
            "[]",
            r#"{"signature-sizes":"5"}"#,
            r#"{"signature-sizes":[-1]}"#,
        ] {
            assert_eq!(SignatureLengths::parse(Some(wrong)), None, "{wrong}");
        }
        let (one, two) = (Digest::of(b"1"), Digest::of(b"2"));
        let mut lengths = SignatureLengths::default();
        lengths.set_default(&[]);
        lengths.set(one, &[]);
        assert_eq!(lengths, SignatureLengths::default());
        lengths.set_default(&[3]);
        lengths.set(one, &[3]);
        lengths.set(two, &[4, 5]);
        assert_eq!(
            (lengths.of_default(), lengths.of(one), lengths.of(two)),
            (&[3][..], &[3][..], &[4, 5][..])
        );
        lengths.remove(&key_of(one));
        lengths.remove(SIGNATURES);
        assert_eq!(
            lengths.text().unwrap(),
            format!(r#"{{"signatures-sizes":{{"{two}":[4,5]}}}}"#)
        );
        lengths.remove(&key_of(two));
        assert_eq!(lengths.text().unwrap(), "{}");
    }

    #[test]
    fn lengths_must_fit_the_items_that_they_cut() {
        let size_of = |key: &str| (key == "signatures" || key == "signature-ab").then_some(5);
        for (metadata, expected) in [
            ("{}", &[][..]),
            (r#"{"x":1}"#, &[]),
            (
                r#"{"signature-sizes":[],"signatures-sizes":{"sha256:ab":[],"sha256:cd":null}}"#,
                &[],
            ),
            (
                r#"{"signature-sizes":[2,3],"signatures-sizes":{"sha256:ab":[5]}}"#,
                &[],
            ),
            (r#"{"signature-sizes":[2]}"#, &["signatures"]),
            (r#"{"signature-sizes":[5,0]}"#, &["signatures"]),
            (r#"{"signature-sizes":[18446744073709551615,6]}"#, &["signatures"]),
            (r#"{"signatures-sizes":{"sha256:cd":[5]}}"#, &["signature-cd"]),
        ] {
            let lengths = SignatureLengths::parse(Some(metadata)).unwrap();
            assert_eq!(lengths.mismatches(size_of), expected, "{metadata}");
        }
    }

    #[test]
    fn an_item_is_cut_into_its_signatures() {
        assert_eq!(cut(b"abcde", &[2, 3]), Ok(vec![b"ab".to_vec(), b"cde".to_vec()]));
        assert_eq!(cut(b"", &[]), Ok(Vec::new()));
        for lengths in [&[][..], &[4], &[6], &[5, 0], &[5, 1], &[u64::MAX, 6]] {
            assert!(cut(b"abcde", lengths).is_err(), "{lengths:?}");
        }
        assert!(cut(&[0; COUNT_LIMIT + 1], &[1; COUNT_LIMIT + 1]).is_err());
    }
}
