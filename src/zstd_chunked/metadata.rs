//! Parses the annotations of layers that state where a blob has its TOC and its tar-split.

use std::collections::HashMap;
use std::ops::Range;

use serde::Deserialize;

use crate::oci::Digest;

/// `<offset>:<length>:<uncompressed length>:<type>` of the TOC.
const TOC_POSITION: &str = "io.github.containers.zstd-chunked.manifest-position";

/// SHA-256 of the compressed TOC.
const TOC_DIGEST: &str = "io.github.containers.zstd-chunked.manifest-checksum";

/// `<offset>:<length>:<uncompressed length>` of the tar-split.
const TAR_SPLIT_POSITION: &str = "io.github.containers.zstd-chunked.tarsplit-position";

/// The only type of TOC.
const TYPE: u64 = 1;

/// The most compressed bytes of both, which are read into memory. A layer of 30,000 files has 3 MB.
const MAX_LENGTH: u64 = 24 << 20;

/// The most uncompressed bytes of the TOC; containers/storage accepts 150 MiB. It is parsed as a stream.
const MAX_TOC: u64 = 128 << 20;

/// The most uncompressed bytes of the tar-split, which is read as a stream.
const MAX_TAR_SPLIT: u64 = 512 << 20;

/// The most bytes between the two: the header of a skippable frame has 8.
const MAX_GAP: u64 = 64;

/// Where a blob has its TOC and its tar-split, as the image's manifest states it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Metadata {
    /// The bytes of the blob from the start of the TOC to the end of the tar-split.
    pub range: Range<u64>,
    /// Compressed bytes of the TOC.
    pub(super) toc_length: u64,
    /// Digest of these bytes.
    pub(super) toc_digest: Digest,
    /// Uncompressed bytes of the TOC.
    pub(super) toc_size: u64,
    /// Where the tar-split starts in `range`.
    pub(super) tar_split_start: u64,
    /// Uncompressed bytes of the tar-split.
    pub(super) tar_split_size: u64,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<HashMap<String, Option<String>>>,
}

impl Metadata {
    /// The metadata of those layers of an image that have it, by the digests of their blobs. `manifest` has been verified.
    pub fn of_manifest(manifest: &[u8]) -> HashMap<Digest, Self> {
        let layers =
            serde_json::from_slice(manifest).map_or(Vec::new(), |manifest: Manifest| manifest.layers);
        let layers = layers.into_iter();
        layers
            .filter_map(|layer| Some((layer.digest.parse().ok()?, Self::of_layer(&layer)?)))
            .collect()
    }

    fn of_layer(layer: &Descriptor) -> Option<Self> {
        let annotation = |key| layer.annotations.as_ref()?.get(key)?.as_deref();
        let [offset, toc_length, toc_size, TYPE] = numbers(annotation(TOC_POSITION)?)? else {
            return None;
        };
        let [tar_split, tar_split_length, tar_split_size] = numbers(annotation(TAR_SPLIT_POSITION)?)?;
        let toc_end = offset.checked_add(toc_length)?;
        let end = tar_split.checked_add(tar_split_length)?;
        let is_possible = offset > 0
            && toc_length > 0
            && tar_split_length > 0
            && end <= layer.size
            && (toc_end..=toc_end.saturating_add(MAX_GAP)).contains(&tar_split);
        let is_small =
            end - offset.min(end) <= MAX_LENGTH && toc_size <= MAX_TOC && tar_split_size <= MAX_TAR_SPLIT;
        (is_possible && is_small).then_some(Self {
            range: offset..end,
            toc_length,
            toc_digest: annotation(TOC_DIGEST)?.parse().ok()?,
            toc_size,
            tar_split_start: tar_split - offset,
            tar_split_size,
        })
    }

    /// How many bytes both have.
    pub fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Exactly `N` decimal numbers, separated by colons.
fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
    let numbers: Option<Vec<u64>> = text.split(':').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    /// A layer of 1000 bytes with these annotations.
    fn parse(toc: &str, tar_split: &str, digest: &str) -> Option<Metadata> {
        let blob = Digest::of(b"blob");
        let manifest = json!({"layers": [
            {"digest": Digest::of(b"other"), "size": 5},
            {"digest": blob, "size": 1000, "annotations": {
                TOC_POSITION: toc, TAR_SPLIT_POSITION: tar_split, TOC_DIGEST: digest, "other": null,
            }},
        ]});
        let mut found = Metadata::of_manifest(manifest.to_string().as_bytes());
        assert!(found.len() <= 1);
        found.remove(&blob)
    }

    #[test]
    fn the_annotations_of_a_layer_are_parsed() {
        let digest = Digest::of(b"toc");
        let metadata = parse("600:100:5000:1", "708:200:7000", &digest.to_string()).unwrap();
        assert_eq!(
            metadata,
            Metadata {
                range: 600..908,
                toc_length: 100,
                toc_digest: digest,
                toc_size: 5000,
                tar_split_start: 108,
                tar_split_size: 7000,
            }
        );
        assert_eq!(metadata.length(), 308);
    }

    #[test]
    fn impossible_positions_are_none() {
        let digest = Digest::of(b"toc").to_string();
        let max = u64::MAX;
        for (toc, tar_split, digest) in [
            ("600:100:5000:2", "708:200:7000", &*digest),
            ("600:100:5000", "708:200:7000", &digest),
            ("600:100:5000:1:1", "708:200:7000", &digest),
            ("600:100:-1:1", "708:200:7000", &digest),
            ("0:700:5000:1", "708:200:7000", &digest),
            ("600:100:5000:1", "690:200:7000", &digest),
            ("600:100:5000:1", "708:293:7000", &digest),
            ("600:100:5000:1", "708:0:7000", &digest),
            ("600:0:5000:1", "608:9:7000", &digest),
            ("100:100:5000:1", "708:200:7000", &digest),
            (&format!("600:{max}:5000:1"), "708:200:7000", &digest),
            (&format!("{max}:100:5000:1"), "708:200:7000", &digest),
            ("600:100:5000:1", &format!("708:{max}:7000"), &digest),
            (&format!("600:100:{max}:1"), "708:200:7000", &digest),
            ("600:100:5000:1", &format!("708:200:{max}"), &digest),
            ("600:100:5000:1", "708:200:7000", "sha512:00"),
            ("", "", ""),
        ] {
            assert_eq!(parse(toc, tar_split, digest), None, "{toc} {tar_split} {digest}");
        }
        assert!(Metadata::of_manifest(b"no manifest").is_empty());
    }
}
