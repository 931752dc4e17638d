//! Describes a manifest or blob by media type, digest and size, as indexes and subjects name it.

use oci_distribution::manifest::{OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE};
use serde::{Deserialize, Serialize};

use super::manifest_kind::ManifestKind;
use super::{Content, Digest, ManifestError};

/// A descriptor (OCI image spec, descriptor.md) without its optional fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// What the content is.
    pub media_type: String,
    /// Digest of the content.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    media_type: Option<String>,
}

impl Descriptor {
    /// The descriptor of a manifest or an index, with the media type that its body states.
    pub fn of_manifest(manifest: &Content) -> Result<Self, ManifestError> {
        let kind = ManifestKind::of(manifest.bytes())?;
        let body: Body = serde_json::from_slice(manifest.bytes()).map_err(ManifestError::not_json)?;
        let stated = body.media_type.filter(|stated| !stated.is_empty());
        let media_type = stated.unwrap_or_else(|| match kind {
            ManifestKind::Image => OCI_IMAGE_MEDIA_TYPE.to_owned(),
            ManifestKind::Index { .. } => OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned(),
        });
        Ok(Self {
            media_type,
            digest: manifest.digest(),
            size: manifest.bytes().len() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_described_by_the_media_type_in_its_body() {
        for (body, media_type) in [
            (
                r#"{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json"}"#,
                Some("application/vnd.docker.distribution.manifest.v2+json"),
            ),
            (r#"{"schemaVersion":2,"config":{}}"#, Some(OCI_IMAGE_MEDIA_TYPE)),
            (
                r#"{"schemaVersion":2,"manifests":[{}]}"#,
                Some(OCI_IMAGE_INDEX_MEDIA_TYPE),
            ),
            (r#"{"schemaVersion":1}"#, None),
            ("<html>", None),
        ] {
            let content = Content::new(body.into());
            let described = Descriptor::of_manifest(&content).ok();
            let expected = media_type.map(|media_type| Descriptor {
                media_type: media_type.to_owned(),
                digest: content.digest(),
                size: body.len() as u64,
            });
            assert_eq!(described, expected, "{body}");
        }
    }
}
