//! Reads the payload of a release image in the store: the images that it names, without the excluded and the unused ones.

use std::sync::Arc;

use crate::exit_code::Failure;
use crate::image_request::Requester;
use crate::oci::{Platform, Reference};
use crate::plan::ExcludedImage;
use crate::release::manifests::ReleaseManifests;
use crate::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA, Selection, select};
use crate::spec::Excludes;
use crate::store::{Inventory, Store, StoreError, Tree};

use super::super::config::ClusterView;
use super::super::error::Reason;
use super::super::release_manifests::included;
use super::super::used_images::OnlyUsed;

/// Far above every real payload file; `image-references` has about 100 KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The images of a release.
pub(in crate::job) struct ReleaseImages {
    pub(in crate::job) payload: Payload,
    /// Without the unused images, if those are left out.
    pub(in crate::job) selection: Selection,
    /// Images that no pattern excludes and this node does not use.
    pub(in crate::job) unused: Vec<ExcludedImage>,
    /// What the cluster includes of the manifests, or why that is unknown; `None` if nobody asked.
    pub(in crate::job) manifests: Option<Result<ReleaseManifests, String>>,
}

/// Which images of a release are pulled.
#[derive(Clone)]
pub(in crate::job) struct Filter {
    pub(in crate::job) excludes: Arc<Excludes>,
    /// Applied after the patterns.
    pub(in crate::job) only_used: Option<Arc<OnlyUsed>>,
}

/// Reads the payload of the release image `release`, which is in the store, and selects the images to pull. Reads the manifests
/// too, as this `cluster` includes them.
pub(in crate::job) fn images(
    release: &Reference,
    platform: &Platform,
    filter: &Filter,
    cluster: Option<&ClusterView>,
    store: &Store,
    inventory: &Inventory,
) -> Result<ReleaseImages, Reason> {
    let image = inventory.find(release, platform).map_err(unusable)?;
    let chain = image.and_then(|image| inventory.chain_of(image));
    let gone = || Reason {
        failure: Failure::Incomplete,
        message: format!("the release image `{release}` was removed from the store before it was read"),
    };
    let tree = store.tree(&chain.ok_or_else(gone)?).map_err(unusable)?;
    let missing = |file: &str| {
        unexpected(format!(
            "the release image `{release}` has no `{file}`\nhint: check that `platform.image` is a release image"
        ))
    };
    let references = read(&tree, IMAGE_REFERENCES)?.ok_or_else(|| missing(IMAGE_REFERENCES))?;
    let metadata = read(&tree, RELEASE_METADATA)?.ok_or_else(|| missing(RELEASE_METADATA))?;
    let mut images = parse(&references, &metadata, filter)?;
    images.manifests = cluster.map(|cluster| {
        let manifests = included(&tree, &images.payload, cluster, store, inventory);
        manifests.map_err(|error| error.to_string())
    });
    Ok(images)
}

/// The images to pull of a release image of which only the upper layers are available. `None` if its payload is not in
/// these.
pub(in crate::job) fn selection_of_upper_layers(upper: &Tree, filter: &Filter) -> Option<Selection> {
    let references = read(upper, IMAGE_REFERENCES).ok()??;
    let metadata = read(upper, RELEASE_METADATA).ok()??;
    Some(parse(&references, &metadata, filter).ok()?.selection)
}

fn read(tree: &Tree, file: &str) -> Result<Option<Vec<u8>>, Reason> {
    tree.read_file(file, FILE_LIMIT).map_err(|error| match error {
        error @ StoreError::Unreadable { .. } => unexpected(error.to_string()),
        error => unusable(error),
    })
}

fn parse(references: &[u8], metadata: &[u8], filter: &Filter) -> Result<ReleaseImages, Reason> {
    let payload = Payload::parse(references, metadata).map_err(|error| unexpected(error.to_string()))?;
    let selection = select(&payload, &filter.excludes);
    let mut selection = selection.map_err(|error| unexpected(error.to_string()))?;
    let unused = match &filter.only_used {
        Some(only_used) => only_used.cut(&payload, &mut selection),
        None => Vec::new(),
    };
    Ok(ReleaseImages {
        payload,
        selection,
        unused,
        manifests: None,
    })
}

fn unusable(error: StoreError) -> Reason {
    Reason {
        failure: Failure::Store,
        message: error.to_string(),
    }
}

fn unexpected(message: String) -> Reason {
    Reason {
        failure: Failure::Payload,
        message,
    }
}

/// The excluded and the unused images as the plan lists them.
pub(in crate::job) fn excluded(images: &ReleaseImages) -> Vec<ExcludedImage> {
    let ReleaseImages {
        payload,
        selection,
        unused,
        ..
    } = images;
    let names = payload.tags.iter().map(|tag| (tag.name.as_str(), &tag.reference));
    let references: std::collections::HashMap<_, _> = names.collect();
    let excluded = selection.excluded.iter().filter_map(|image| {
        Some(ExcludedImage {
            reference: Reference::clone(references.get(image.name.as_str())?),
            requester: Requester::Release {
                tag: image.name.clone(),
            },
            reason: format!("pattern `{}`", image.pattern),
            bytes: None,
        })
    });
    excluded.chain(unused.iter().cloned()).collect()
}
