//! Makes an image with one layer, deltas for it and the documents that describe them.

use bytes::Bytes;
use serde_json::json;
use spoke_precache::delta::artifact::{ArtifactDescriptor, DeltaIndex, EMPTY_CONFIG, NewArtifact};
use spoke_precache::delta::{DeltaSource, Format, LayerDelta};
use spoke_precache::oci::{
    Content, Descriptor, Digest, OCI_IMAGE_INDEX_MEDIA_TYPE, OCI_IMAGE_MEDIA_TYPE, ResolvedImage,
};

use crate::noise;

/// Blobs of a repository, and manifests in the order in which they are pushed.
pub(crate) struct Documents {
    pub(crate) target: ResolvedImage,
    pub(crate) layer: Bytes,
    pub(crate) delta: Bytes,
    /// All blobs that the artifact needs.
    pub(crate) blobs: Vec<Bytes>,
    pub(crate) artifact: Bytes,
    pub(crate) index: Bytes,
}

impl Documents {
    /// Another image, other deltas and another pair for each number.
    pub(crate) fn new(number: u64) -> Self {
        let layer = noise(5000, number);
        let config = json!({"architecture": "amd64", "os": "linux", "config": {},
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]}});
        let config = Bytes::from(config.to_string());
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_IMAGE_MEDIA_TYPE,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": Digest::of(&config), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": Digest::of(&layer), "size": layer.len()}]});
        let manifest = Content::new(manifest.to_string().into());
        let target = ResolvedImage::assemble(None, manifest, Content::new(config.clone())).unwrap();
        let delta = noise(300, number + 1000);
        let layers = [LayerDelta {
            blob: Digest::of(&delta),
            size: delta.len() as u64,
            format: Format::TarDiff,
            target: Digest::of(&layer),
            tar_size: Some(5000),
        }];
        let sources = [DeltaSource {
            config: Digest::of(b"the old config"),
            ostree_commit: None,
        }];
        let new = NewArtifact {
            format: Format::TarDiff,
            target: &target,
            source_manifest: Digest::of(b"the old manifest"),
            sources: &sources,
            layers: &layers,
            reused: &[],
        };
        let artifact = new.to_json();
        let index = Self::index(number, new.descriptor(&artifact), Some(&target));
        let blobs = vec![
            target.manifest.bytes().clone(),
            config,
            delta.clone(),
            Bytes::from_static(EMPTY_CONFIG),
        ];
        Self {
            target,
            layer,
            delta,
            blobs,
            artifact,
            index,
        }
    }

    fn index(number: u64, artifact: ArtifactDescriptor, target: Option<&ResolvedImage>) -> Bytes {
        let subject = target.map(|target| Descriptor::of_manifest(&target.manifest).unwrap());
        let index = DeltaIndex {
            from: Some(format!("registry.example/release:{number}")),
            to: Some("registry.example/release:1000".to_owned()),
            artifacts: vec![artifact],
            without: Vec::new(),
        };
        index.to_json(subject.as_ref())
    }

    /// Digest of the target's manifest.
    pub(crate) fn subject(&self) -> Digest {
        self.target.manifest.digest()
    }

    /// The artifact and the index, with their media types.
    pub(crate) fn manifests(&self) -> [(&'static str, &Bytes); 2] {
        [
            (OCI_IMAGE_MEDIA_TYPE, &self.artifact),
            (OCI_IMAGE_INDEX_MEDIA_TYPE, &self.index),
        ]
    }
}
