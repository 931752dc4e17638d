//! Finds the verification ConfigMap of the release that the cluster runs, in the store.
//!
//! ```text
//! ClusterVersion, newest completed release ──→ release image in the store ─→ manifests/, release-manifests/
//! else the newest container of the operator ─↗                               the first file with the ConfigMap
//! ```
//!
//! The operator loads its keys from the payload that it runs, once, at its start (`pkg/cvo/cvo.go`: `LoadInitialPayload`).
//! During an update that is the target's payload as soon as the target's operator runs. The completed release is still
//! used: the target was verified with its keys, and a forced update is not verified at all.
//! Keys are never taken from the release that is verified.

use std::path::Path;

use super::verification_config_map::{ANNOTATION, VerificationConfigMap};
use crate::cluster::ClusterRelease;
use crate::oci::{Platform, Reference};
use crate::store::{FileKind, Inventory, Node, Store, StoredImage, Tree};

/// The directories of a payload with manifests, in the operator's order. The first has those of the operator itself.
const DIRECTORIES: [&str; 2] = ["manifests", "release-manifests"];

/// The file names that the operator reads.
const EXTENSIONS: [&str; 3] = [".yaml", ".yml", ".json"];

/// The most files in one directory; release 4.12.0 has 646.
const FILES_LIMIT: usize = 20_000;

/// The largest file; those of release 4.12.0 have 848 KB at most.
const FILE_LIMIT: u64 = 16 << 20;

/// The operator's namespace, and the name of its container.
const OPERATOR: (&str, &str) = ("openshift-cluster-version", "cluster-version-operator");

/// Reads the ConfigMap of the running release, unless that is `release`. The error is a reason for messages.
pub(super) fn of_running_release(
    release: &Reference,
    cluster: &ClusterRelease,
    store: &Store,
    inventory: &Inventory,
    platform: &Platform,
) -> Result<VerificationConfigMap, String> {
    let image = match &cluster.version {
        Ok(version) => {
            let completed = version.completed().map(|entry| &entry.image[..]);
            completed_image(completed, inventory, platform)?
        }
        Err(why) => operator_image(store, inventory)
            .map_err(|or| format!("the running release is unknown: ClusterVersion: {why}; {or}"))?,
    };
    let name = image.names.first().map_or("without a name", String::as_str);
    if release
        .digest()
        .is_some_and(|digest| image.digests.contains(&digest))
    {
        return Err("the running release is the one to verify".to_owned());
    }
    let layers = inventory.chain_of(image);
    let layers = layers.ok_or_else(|| format!("the layers of the running release `{name}` are damaged"))?;
    let tree = store.tree(&layers).map_err(|error| error.to_string())?;
    find(&tree).map_err(|why| format!("the running release `{name}`: {why}"))
}

fn completed_image<'i>(
    completed: Option<&str>,
    inventory: &'i Inventory,
    platform: &Platform,
) -> Result<&'i StoredImage, String> {
    let completed = completed.ok_or("the ClusterVersion has no completed release")?;
    let reference: Reference = completed
        .parse()
        .map_err(|error| format!("the ClusterVersion's completed release: {error}"))?;
    let found = inventory
        .find(&reference, platform)
        .map_err(|error| error.to_string())?;
    found.ok_or_else(|| format!("the running release `{reference}` is not in the store"))
}

/// The image of the operator's container, which is a release image.
fn operator_image<'i>(store: &Store, inventory: &'i Inventory) -> Result<&'i StoredImage, String> {
    let (namespace, container) = OPERATOR;
    let id = store
        .pod_container_image(namespace, container)
        .map_err(|error| error.to_string())?
        .ok_or_else(|| format!("the node has no container `{container}`"))?;
    let image = inventory.image(&id);
    image.ok_or_else(|| format!("the image of container `{container}` is not in the store"))
}

/// The first ConfigMap with the annotation in the manifests of a release. The error is a reason for messages.
pub fn find(payload: &Tree) -> Result<VerificationConfigMap, String> {
    for directory in DIRECTORIES {
        let path = Path::new(directory);
        let opened = payload.open(path).map_err(|error| error.to_string())?;
        let Some(Node::Directory(opened)) = opened else {
            continue;
        };
        let entries = opened
            .entries(path, FILES_LIMIT)
            .map_err(|error| error.to_string())?;
        for entry in entries {
            let Some(name) = entry.name.to_str() else {
                continue;
            };
            let is_file = matches!(entry.kind, FileKind::File | FileKind::Symlink);
            if !is_file || !EXTENSIONS.iter().any(|end| name.ends_with(end)) {
                continue;
            }
            let file = format!("{directory}/{name}");
            let bytes = payload
                .read_file(&file, FILE_LIMIT)
                .map_err(|error| error.to_string())?
                .unwrap_or_default();
            // Parsing all files of a payload takes a second.
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            if !text.contains(ANNOTATION) {
                continue;
            }
            let found = VerificationConfigMap::find(text)
                .map_err(|error| format!("`{file}` cannot be used: {error}"))?;
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
    Err(format!("it has no ConfigMap with the annotation `{ANNOTATION}`"))
}
