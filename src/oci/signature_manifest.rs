//! Parses the manifest of an image's sigstore attachments: each layer is one signature.
//!
//! A tool such as cosign pushes it under the tag `sha256-<hex of the image's manifest>.sig`. The checks are those of
//! containers/image (`docker/docker_client.go`, `getSigstoreAttachmentManifest`): only an OCI image manifest by its
//! Content-Type, with layers of any media type.

use std::collections::BTreeMap;

use oci_distribution::manifest::OCI_IMAGE_MEDIA_TYPE;
use serde::Deserialize;

use super::go_json::schema::IMAGE_MANIFEST;
use super::manifest_error::{MAX_SIGNATURES, excerpt};
use super::{Digest, ManifestError, go_json};

/// The layers of such a manifest, in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureManifest {
    /// One for each signature.
    pub layers: Vec<SignatureLayer>,
}

/// One sigstore signature: its payload's descriptor and its annotations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignatureLayer {
    /// Of the payload.
    pub media_type: String,
    /// Digest of the payload.
    pub blob: Digest,
    /// The payload's length in bytes.
    pub size: u64,
    /// The signature itself, its certificate and so on. In Go, none are a nil map, which is stored otherwise than an empty one.
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Body {
    layers: Option<Vec<Descriptor>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    media_type: Option<String>,
    digest: Option<String>,
    size: Option<i64>,
    annotations: Option<BTreeMap<String, Option<String>>>,
}

impl SignatureManifest {
    /// Parses a manifest's bytes. `content_type` is the header of the HTTP response, if it had one.
    pub fn parse(bytes: &[u8], content_type: Option<&str>) -> Result<Self, ManifestError> {
        let essence = content_type.unwrap_or_default().split(';').next();
        let essence = essence.unwrap_or_default().trim().to_ascii_lowercase();
        if essence != OCI_IMAGE_MEDIA_TYPE {
            return Err(ManifestError::NotAttachments(excerpt(&essence)));
        }
        go_json::check(bytes, IMAGE_MANIFEST).map_err(ManifestError::not_json)?;
        let body: Body = serde_json::from_slice(bytes).map_err(ManifestError::not_json)?;
        let layers = body.layers.unwrap_or_default();
        if layers.len() > MAX_SIGNATURES {
            return Err(ManifestError::TooManySignatures(layers.len()));
        }
        let layers = layers.into_iter().map(SignatureLayer::check);
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }
}

impl SignatureLayer {
    fn check(layer: Descriptor) -> Result<Self, ManifestError> {
        let digest = layer.digest.unwrap_or_default();
        let size = layer.size.unwrap_or_default();
        let texts = |annotations: BTreeMap<String, Option<String>>| {
            let pairs = annotations.into_iter();
            pairs
                .map(|(name, value)| (name, value.unwrap_or_default()))
                .collect()
        };
        Ok(Self {
            media_type: layer.media_type.unwrap_or_default(),
            blob: digest.parse().map_err(|_| ManifestError::digest(&digest))?,
            size: u64::try_from(size).map_err(|_| ManifestError::Size {
                what: "blob",
                digest: excerpt(&digest),
                size,
            })?,
            annotations: layer.annotations.map(texts),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYER: &str = r#"{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","size":3,
        "digest":"sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "annotations":{"dev.cosignproject.cosign/signature":"MEUC","empty":null}}"#;

    fn manifest(layers: &str) -> String {
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_IMAGE_MEDIA_TYPE}","config":{{"mediaType":"x","size":2,
            "digest":"sha256:{}"}},"layers":{layers}}}"#,
            "c".repeat(64)
        )
    }

    fn parse(text: &str) -> Result<SignatureManifest, ManifestError> {
        SignatureManifest::parse(text.as_bytes(), Some(OCI_IMAGE_MEDIA_TYPE))
    }

    #[test]
    fn each_layer_is_a_signature_with_its_annotations() {
        let layers = parse(&manifest(&format!("[{LAYER},{LAYER}]")))
            .expect("valid")
            .layers;
        assert_eq!(layers.len(), 2, "the same payload may be signed twice");
        assert_eq!(layers[0].blob.hex(), "a".repeat(64));
        assert_eq!(layers[0].size, 3);
        assert_eq!(
            layers[0].annotations.as_ref().expect("annotations")["dev.cosignproject.cosign/signature"],
            "MEUC"
        );
        assert_eq!(
            layers[0].annotations.as_ref().expect("annotations")["empty"],
            "",
            "as Go decodes null"
        );
        assert_eq!(parse(&manifest("null")).expect("valid").layers, Vec::new());
    }

    #[test]
    fn only_an_oci_image_manifest_has_attachments() {
        let text = manifest("[]");
        for (content_type, is_accepted) in [
            (Some("application/vnd.oci.image.manifest.v1+json"), true),
            (
                Some("Application/vnd.OCI.image.manifest.v1+json; charset=utf-8"),
                true,
            ),
            (
                Some("application/vnd.docker.distribution.manifest.v2+json"),
                false,
            ),
            (Some("application/vnd.oci.image.index.v1+json"), false),
            (Some("text/html"), false),
            (None, false),
        ] {
            let parsed = SignatureManifest::parse(text.as_bytes(), content_type);
            assert_eq!(parsed.is_ok(), is_accepted, "{content_type:?}");
        }
    }

    #[test]
    fn hostile_manifests_are_refused() {
        let many = vec![LAYER; MAX_SIGNATURES + 1].join(",");
        for (text, why) in [
            (manifest(&format!("[{many}]")), "129 signatures"),
            (manifest("[{}]"), "names a digest"),
            (
                manifest(&format!("[{}]", LAYER.replace("aaaa", "../."))),
                "names a digest",
            ),
            (
                manifest(&format!("[{}]", LAYER.replace(":3", ":-3"))),
                "impossible size",
            ),
            (
                manifest(&format!("[{}]", LAYER.replace("null", "{}"))),
                "cannot be read",
            ),
            (
                manifest("[]").replacen('{', r#"{"manifests":[],"#, 1),
                "cannot be read",
            ),
            ("<html>".to_owned(), "cannot be read"),
        ] {
            let error = parse(&text).expect_err(why).to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
