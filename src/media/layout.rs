//! Recognises the forms of a medium, and knows how each names blobs and tags.
//!
//! ```text
//! OCI layout        blobs/sha256/<hex>                                       index.json: `org.opencontainers.image.ref.name`
//! registry          docker/registry/v2/blobs/sha256/<2 digits>/<hex>/data
//!                   docker/registry/v2/repositories/<path>/_manifests/tags/<tag>/current/link
//! oc image mirror   v2/<path>/blobs/sha256:<hex>                             v2/<path>/manifests/<tag>, a link
//! dir:              <hex>   <hex>.manifest.json   manifest.json
//! docker-archive    manifest.json names the configs and layer tars
//! spool             sha256:<hex>
//! ```
//!
//! The names are those of the OCI image layout specification 1.1, of distribution 2.8 (`registry/storage/paths.go`), of oc
//! 4.21 (`pkg/cli/image/imagesource/file.go`), and of containers/image (`directory`, `docker/internal/tarfile`). A medium may
//! have several forms at once: `docker save` (25.0) writes an OCI layout with a docker-archive's `manifest.json`.

use std::io;

use serde::Deserialize;

use super::docker_archive::DockerArchive;
use super::file_mirror::FileMirror;
use super::oci_tags::OciTags;
use super::tag::repository_names;
use super::tree::Tree;
use crate::oci::{DiffId, Digest, MAX_MANIFEST_SIZE};

/// Where a registry's storage may be below the given directory, which may be any of its levels or the directory of oc-mirror's
/// cache.
const REGISTRY_ROOTS: [&str; 6] = [
    "",
    "v2/",
    "registry/v2/",
    "docker/registry/v2/",
    ".cache/docker/registry/v2/",
    ".oc-mirror/.cache/docker/registry/v2/",
];

/// The end of a root that nothing but a registry has. A part of oc-mirror's archive may have blobs or repositories alone.
const REGISTRY: &str = "registry/v2/";

/// The largest file with the digest of a tag.
const MAX_LINK: u64 = 1 << 10;

/// A form of a medium.
#[derive(Debug)]
pub(super) enum Layout {
    Oci(OciTags),
    Registry {
        /// Empty, or ends with a slash.
        root: &'static str,
    },
    FileMirror(FileMirror),
    Dir {
        /// The digest of `manifest.json`.
        manifest: Digest,
    },
    DockerArchive(DockerArchive),
    Spool,
}

/// What distinguishes a manifest of `dir:` from any other file with that name.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ManifestVersion {
    #[serde(rename = "schemaVersion")]
    _schema_version: u32,
}

impl Layout {
    /// All forms that the files have; empty if there is none. Adds what is wrong with them to `warnings`.
    pub(super) fn recognise(tree: &Tree, warnings: &mut Vec<String>) -> io::Result<Vec<Self>> {
        let mut layouts = Vec::new();
        for root in REGISTRY_ROOTS {
            let blobs = tree.has_directory(&format!("{root}blobs"))?;
            let repositories = tree.has_directory(&format!("{root}repositories"))?;
            if blobs && repositories || root.ends_with(REGISTRY) && (blobs || repositories) {
                layouts.push(Self::Registry { root });
            }
        }
        let is_registry = !layouts.is_empty();
        // A damaged archive may have lost `oci-layout`.
        if !is_registry && (tree.find("oci-layout")?.is_some() || tree.has_directory("blobs/sha256")?) {
            layouts.push(Self::Oci(OciTags::read(tree, warnings)));
        }
        if !is_registry && let Some(mirror) = FileMirror::find(tree, warnings)? {
            layouts.push(Self::FileMirror(mirror));
        }
        if let Some(manifest) = tree.find("manifest.json")? {
            match tree.bytes(&manifest, MAX_MANIFEST_SIZE) {
                Ok(bytes) => layouts.extend(Self::of_manifest(&bytes, tree, warnings)),
                Err(error) => warnings.push(format!("cannot read `manifest.json`: {error}")),
            }
        }
        if layouts.is_empty() && tree.has_blob_at_top()? {
            layouts.push(Self::Spool);
        }
        Ok(layouts)
    }

    /// The form that has such a `manifest.json`.
    fn of_manifest(bytes: &[u8], tree: &Tree, warnings: &mut Vec<String>) -> Option<Self> {
        if bytes.trim_ascii_start().starts_with(b"[") {
            return DockerArchive::read(bytes, tree, warnings).map(Self::DockerArchive);
        }
        let is_manifest = serde_json::from_slice::<ManifestVersion>(bytes).is_ok();
        let manifest = Digest::of(bytes);
        is_manifest.then_some(Self::Dir { manifest })
    }

    /// The paths that may have the blob, manifest or config.
    pub(super) fn blob_paths(&self, digest: &Digest) -> Vec<String> {
        let hex = digest.hex();
        match self {
            Self::Oci(_) => vec![format!("blobs/sha256/{hex}")],
            Self::Registry { root } => vec![format!("{root}blobs/sha256/{}/{hex}/data", &hex[..2])],
            Self::FileMirror(mirror) => mirror.blob_paths(digest),
            Self::Dir { manifest } => {
                let top = (manifest == digest).then(|| "manifest.json".to_owned());
                let named = [hex.clone(), format!("{hex}.manifest.json")];
                top.into_iter().chain(named).collect()
            }
            Self::DockerArchive(archive) => archive.config_path(digest).into_iter().collect(),
            Self::Spool => vec![digest.to_string()],
        }
    }

    /// The path that may have the uncompressed tar of this layer.
    pub(super) fn layer_path(&self, diff_id: DiffId) -> Option<&str> {
        match self {
            Self::DockerArchive(archive) => archive.layer_path(diff_id),
            _ => None,
        }
    }

    /// The path of a signature, numbered from 1, that is stored beside the image and not in a store of signatures.
    pub(super) fn signature_paths(&self, image: &Digest, number: usize) -> Vec<String> {
        let Self::Dir { manifest } = self else {
            return Vec::new();
        };
        let top = (manifest == image).then(|| format!("signature-{number}"));
        let of_instance = format!("{}.signature-{number}", image.hex());
        top.into_iter().chain([of_instance]).collect()
    }

    /// The digest that the tag of the repository `host/path` names.
    pub(super) fn tagged(&self, tree: &Tree, repository: &str, tag: &str) -> io::Result<Option<Digest>> {
        match self {
            Self::Oci(tags) => Ok(tags.digest(repository, tag)),
            Self::Registry { root } => {
                for name in repository_names(repository, tag) {
                    let link = format!("{root}repositories/{name}/_manifests/tags/{tag}/current/link");
                    let text = tree.read(&link, MAX_LINK)?;
                    let digest = text.and_then(|text| std::str::from_utf8(&text).ok()?.trim().parse().ok());
                    if digest.is_some() {
                        return Ok(digest);
                    }
                }
                Ok(None)
            }
            Self::FileMirror(mirror) => mirror.tagged(tree, &repository_names(repository, tag), tag),
            Self::Dir { .. } | Self::DockerArchive(_) | Self::Spool => Ok(None),
        }
    }
}
