//! Reads the payload of a release image in the store: the images that it names, without the excluded ones.

use crate::exit_code::Failure;
use crate::image_request::Requester;
use crate::oci::{Platform, Reference};
use crate::plan::ExcludedImage;
use crate::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA, Selection, select};
use crate::spec::Excludes;
use crate::store::{Inventory, Store, StoreError, Tree};

use super::super::error::Reason;

/// Far above every real payload file; `image-references` has about 100 KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// Reads the payload of the release image `release`, which is in the store, and selects the images to pull.
pub(in crate::job) fn payload(
    release: &Reference,
    platform: &Platform,
    excludes: &Excludes,
    store: &Store,
    inventory: &Inventory,
) -> Result<(Payload, Selection), Reason> {
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
    parse(&references, &metadata, excludes)
}

/// The images to pull of a release image of which only the upper layers are available. `None` if its payload is not in
/// these.
pub(in crate::job) fn selection_of_upper_layers(upper: &Tree, excludes: &Excludes) -> Option<Selection> {
    let references = read(upper, IMAGE_REFERENCES).ok()??;
    let metadata = read(upper, RELEASE_METADATA).ok()??;
    let (_, selection) = parse(&references, &metadata, excludes).ok()?;
    Some(selection)
}

fn read(tree: &Tree, file: &str) -> Result<Option<Vec<u8>>, Reason> {
    tree.read_file(file, FILE_LIMIT).map_err(|error| match error {
        error @ StoreError::Unreadable { .. } => unexpected(error.to_string()),
        error => unusable(error),
    })
}

fn parse(references: &[u8], metadata: &[u8], excludes: &Excludes) -> Result<(Payload, Selection), Reason> {
    let payload = Payload::parse(references, metadata).map_err(|error| unexpected(error.to_string()))?;
    let selection = select(&payload, excludes).map_err(|error| unexpected(error.to_string()))?;
    Ok((payload, selection))
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

/// The excluded images as the plan lists them.
pub(in crate::job) fn excluded(payload: &Payload, selection: &Selection) -> Vec<ExcludedImage> {
    let names = payload.tags.iter().map(|tag| (tag.name.as_str(), &tag.reference));
    let references: std::collections::HashMap<_, _> = names.collect();
    let excluded = selection.excluded.iter().filter_map(|image| {
        Some(ExcludedImage {
            reference: Reference::clone(references.get(image.name.as_str())?),
            requester: Requester::Release {
                tag: image.name.clone(),
            },
            reason: format!("pattern `{}`", image.pattern),
        })
    });
    excluded.collect()
}
