//! Writes the documents of an export: `spoke-precache.json`, and the version spec with every image by digest.

use serde::Serialize;

use super::image_set::ImageSet;
use super::known_release::KnownRelease;
use crate::oci::{Digest, Platform, Reference};
use crate::spec::VersionSpec;

/// The version of the format.
const VERSION: u32 = 1;

/// `spoke-precache.json`: what is in an export. Nothing depends on it but people, and the search for media: every blob is
/// verified by its digest.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExportDocument {
    version: u32,
    platform: String,
    /// Whether every image of the version spec is in it, apart from what is left out.
    is_complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
    /// The release whose blobs are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Since>,
    images: Vec<DocumentedImage>,
}

#[derive(Debug, Serialize)]
struct Since {
    reference: String,
    version: String,
}

/// One image.
#[derive(Debug, Serialize)]
struct DocumentedImage {
    reference: String,
    digest: Digest,
}

impl ExportDocument {
    pub(super) fn new(
        platform: &Platform,
        is_complete: bool,
        set: &ImageSet,
        since: Option<&KnownRelease>,
        images: &[(Reference, Digest)],
    ) -> Self {
        let images = images.iter().map(|(reference, digest)| DocumentedImage {
            reference: reference.to_string(),
            digest: *digest,
        });
        Self {
            version: VERSION,
            platform: platform.to_string(),
            is_complete,
            release: set.release.as_ref().map(|release| release.version.clone()),
            since: since.map(|since| Since {
                reference: since.reference.to_string(),
                version: since.version.clone(),
            }),
            images: images.collect(),
        }
    }

    pub(super) fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("strings, numbers and lists always serialise") + "\n"
    }
}

/// The version spec with every image by its digest, as far as it is known, as a ConfigMap. A run with it and the export asks
/// no registry.
pub(super) fn pinned_spec(spec: &VersionSpec, images: &[(Reference, Digest)]) -> String {
    let pinned = |reference: &Reference| {
        let mut known = images.iter().filter(|(image, _)| image == reference);
        known
            .next()
            .map_or_else(|| reference.clone(), |(_, digest)| reference.with_digest(*digest))
    };
    let all = |references: &[Reference]| references.iter().map(pinned).collect();
    let pinned = VersionSpec {
        platform_image: spec.platform_image.as_ref().map(pinned),
        operators_indexes: all(&spec.operators_indexes),
        additional_images: all(&spec.additional_images),
        ..spec.clone()
    };
    pinned.to_yaml()
}
