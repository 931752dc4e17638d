//! Pins the images of a successful run, or warns that the kubelet may remove them.
//!
//! A pin names an image by digest; an image that was requested by tag has the digest that it was stored with. CRI-O compares
//! pins only with the names in an image's record, and the Machine Config Operator pulls no image that CRI-O finds by its
//! digest, so the name by digest is added to the record here (cri-o `internal/storage/image.go`: `buildImageResult`). An
//! image that cannot be pinned is a warning with its name. It does not change the result of the run, because the image is in
//! the store.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::cancel::Cancel;
use crate::cluster::{Api, ClusterError, PinnedImageSets};
use crate::job::{JobConfig, Outcome};
use crate::oci::{Digest, Manifest, Platform, Reference};
use crate::preflight::Space;
use crate::report::{Count, OutputFile, WriteError};
use crate::store::{Inventory, Store, StoreError, StoreLocation};

/// Where the PinnedImageSets are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinTarget {
    /// To the cluster's API.
    Api,
    /// To this file.
    File(PathBuf),
}

impl FromStr for PinTarget {
    type Err = Infallible;

    /// `api` or a path; a file with the name `api` is `./api`.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "api" => Self::Api,
            path => Self::File(path.into()),
        })
    }
}

impl PinTarget {
    /// Checks that the file could be written now.
    ///
    /// # Errors
    /// If it could not.
    pub fn check_writable(&self) -> Result<(), WriteError> {
        match self {
            Self::Api => Ok(()),
            Self::File(path) => file(path).check_writable(),
        }
    }
}

/// Why nothing is pinned.
#[derive(Debug, thiserror::Error)]
enum PinError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Cluster(ClusterError),
    #[error(
        "the cluster has no PinnedImageSets of `machineconfiguration.openshift.io/v1`\nhint: OpenShift supports them from 4.19 on"
    )]
    NoSuchKind,
    #[error("there is no service account for the cluster's API")]
    NoAccount,
    #[error("a worker panicked, which is a bug of this program: {0}")]
    Panicked(String),
}

impl From<ClusterError> for PinError {
    fn from(error: ClusterError) -> Self {
        match error {
            // An apply creates missing objects, so the kind is missing.
            ClusterError::NotFound { .. } => Self::NoSuchKind,
            error => Self::Cluster(error),
        }
    }
}

/// The result of pinning.
#[derive(Debug)]
pub struct PinOutcome {
    /// Whether the pins are in the cluster.
    pub is_pinned: bool,
    /// About images that are not pinned or may be removed.
    pub warnings: Vec<String>,
}

/// Pins the images of a run to `target`; without one, warns if the kubelet is about to remove images.
pub async fn pin_images(
    config: &JobConfig,
    outcome: &Outcome,
    target: Option<&PinTarget>,
    api: Option<&Api>,
    cancel: &Cancel,
) -> PinOutcome {
    let Some(target) = target else {
        let warnings = threshold_warning(config).await.into_iter().collect();
        return PinOutcome {
            is_pinned: false,
            warnings,
        };
    };
    let mut warnings = Vec::new();
    let done = pin(config, outcome, target, api, cancel, &mut warnings).await;
    let is_pinned = done.is_ok() && *target == PinTarget::Api;
    match done {
        Ok(count) => tracing::info!("{} pinned", Count(count, "image")),
        Err(why) => warnings.push(format!("the images are not pinned: {why}")),
    }
    PinOutcome { is_pinned, warnings }
}

/// A warning if the disk usage is close to the kubelet's threshold.
async fn threshold_warning(config: &JobConfig) -> Option<String> {
    let (graph_root, threshold) = (config.graph_root.clone(), config.image_gc_high_threshold);
    let space = on_a_thread(move || Ok(Space::of(&graph_root).ok())).await;
    space.ok()??.threshold_warning(threshold)
}

/// Returns the number of pinned images; adds a warning for each other one.
async fn pin(
    config: &JobConfig,
    outcome: &Outcome,
    target: &PinTarget,
    api: Option<&Api>,
    cancel: &Cancel,
    warnings: &mut Vec<String>,
) -> Result<usize, PinError> {
    let (graph_root, conf) = (config.graph_root.clone(), config.storage_conf.clone());
    let (platform, cancel) = (config.platform.clone(), cancel.clone());
    let images = outcome.plan.images.iter();
    let references: Vec<Reference> = images.map(|image| image.reference.clone()).collect();
    let digests = outcome.digests.clone();
    let (sets, count, unpinned) = on_a_thread(move || {
        let store = Store::open(&graph_root, &conf)?;
        let (images, mut unpinned) = by_digest(references, &digests, &store.inventory()?);
        let (sets, left_out) = PinnedImageSets::of(images);
        let left_out = left_out
            .iter()
            .map(|image| format!("`{image}` is not pinned: a PinnedImageSet cannot contain it"));
        unpinned.extend(left_out);
        let count = add_names(&store, &sets, &platform, &cancel, &mut unpinned)?;
        Ok((sets, count, unpinned))
    })
    .await?;
    warnings.extend(unpinned);
    match (target, api) {
        (PinTarget::File(path), _) => {
            let path = path.clone();
            // Writing to a pipe without a reader would block the task, and with it cancellation.
            on_a_thread(move || Ok(file(&path).write(&sets.to_yaml())?)).await?;
        }
        (PinTarget::Api, Some(api)) => {
            sets.apply(api).await?;
            if let Err(error) = sets.delete_others(api).await {
                warnings.push(format!("images of an earlier run may stay pinned: {error}"));
            }
        }
        (PinTarget::Api, None) => return Err(PinError::NoAccount),
    }
    Ok(count)
}

fn file(path: &Path) -> OutputFile<'_> {
    OutputFile::at(path, "pins")
}

/// Adds the name by digest to the record of each image, and counts the images that CRI-O will find by it.
fn add_names(
    store: &Store,
    sets: &PinnedImageSets,
    platform: &Platform,
    cancel: &Cancel,
    unpinned: &mut Vec<String>,
) -> Result<usize, StoreError> {
    let inventory = store.inventory()?;
    let mut names = Vec::new();
    for reference in sets.images() {
        if let Some(image) = inventory.find(reference, platform)?
            && image.location == StoreLocation::GraphRoot
            && !image.names.contains(&reference.to_string())
        {
            names.push((image.id, reference.clone()));
        }
    }
    store.add_names(&names, cancel)?;
    let inventory = store.inventory()?;
    let mut pinned = HashSet::new();
    for reference in sets.images() {
        if let Some(image) = inventory.image_by_name(&reference.to_string()) {
            pinned.insert(image.id);
            continue;
        }
        let image = inventory.find(reference, platform)?;
        let additional = image.and_then(|image| inventory.additional_root(image.location));
        unpinned.push(match additional {
            Some(root) => format!(
                "`{reference}` is not pinned: it is in the additional image store `{}`, which is read-only, and CRI-O pins an \
                 image by the names in its record",
                root.display()
            ),
            None => format!("`{reference}` is not pinned: another program removed it from the store"),
        });
    }
    Ok(pinned.len())
}

/// A reference by digest for each image whose digest the store has, and a warning for each other one.
fn by_digest(
    references: Vec<Reference>,
    digests: &HashMap<Reference, Digest>,
    inventory: &Inventory,
) -> (Vec<Reference>, Vec<String>) {
    let (mut images, mut unpinned) = (Vec::new(), Vec::new());
    for reference in references {
        let digest = reference
            .digest()
            .or_else(|| digest_of(&reference, digests.get(&reference), inventory));
        match digest {
            Some(digest) => images.push(reference.with_digest(digest)),
            None => unpinned.push(format!(
                "`{reference}` is not pinned: the store has no digest of it"
            )),
        }
    }
    (images, unpinned)
}

/// Of several digests, the one that the registry returned for the name, because one image may be in indexes of several
/// repositories; or else that of an index, which the registry has for every platform.
fn digest_of(reference: &Reference, resolved: Option<&Digest>, inventory: &Inventory) -> Option<Digest> {
    let digests = &inventory.image_by_name(&reference.to_string())?.digests;
    let is_list = |digest: &&Digest| {
        let content = inventory.content(digest).ok().flatten();
        content.is_some_and(|content| {
            Manifest::parse(content.bytes(), None)
                .is_ok_and(|manifest| matches!(manifest, Manifest::Index(_)))
        })
    };
    let known = resolved.filter(|digest| digests.contains(digest));
    known
        .or_else(|| digests.iter().find(is_list))
        .or(digests.first())
        .copied()
}

/// Runs blocking I/O on a thread, so that the task can be cancelled meanwhile.
async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, PinError> + Send + 'static,
) -> Result<T, PinError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|panic| Err(PinError::Panicked(panic.to_string())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::store::StorageConf;

    /// An image that was removed since, or whose record has no digest.
    #[test]
    fn an_image_without_a_digest_is_a_warning() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&directory.path().join("storage"), &StorageConf::default()).unwrap();
        let digest = format!("sha256:{}", "0a".repeat(32));
        let references = [
            format!("quay.io/a/b@{digest}"),
            format!("quay.io/a/b:v1@{digest}"),
            "quay.io/a/b:v2".to_owned(),
        ]
        .map(|name| name.parse::<Reference>().unwrap());
        let (images, unpinned) = by_digest(references.to_vec(), &HashMap::new(), &store.inventory().unwrap());
        assert_eq!(images, [references[0].clone(), references[0].clone()]);
        let [warning] = &unpinned[..] else {
            panic!("{unpinned:?}")
        };
        assert!(
            warning.starts_with(&format!("`{}` is not pinned", references[2])),
            "{warning}"
        );
    }

    #[test]
    fn the_target_of_pins_is_api_or_a_file() {
        assert_eq!("api".parse(), Ok(PinTarget::Api));
        assert_eq!("./api".parse(), Ok(PinTarget::File("./api".into())));
    }
}
