//! From a release image in the store to the images that its payload names.

use crate::exit::Failure;
use crate::oci::{Platform, Reference};
use crate::plan::ExcludedImage;
use crate::sources::Source;
use crate::sources::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA, Selection, select};
use crate::spec::Excludes;
use crate::store::{Inventory, Store, StoreError};

use super::failure::Reason;

/// No file of a payload comes near; real image-references have about 100 KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// Reads the payload of the release image `release`, which is in the store, and divides what it names.
pub(super) fn payload(
    release: &Reference,
    platform: &Platform,
    excludes: &Excludes,
    store: &Store,
    inventory: &Inventory,
) -> Result<(Payload, Selection), Reason> {
    let unexpected = |message: String| Reason {
        failure: Failure::Payload,
        message,
    };
    let read = |file: &'static str| {
        let unusable = |error: StoreError| Reason {
            failure: Failure::Store,
            message: error.to_string(),
        };
        let image = inventory.find(release, platform).map_err(unusable)?;
        let chain = image.and_then(|image| inventory.chain_of(image));
        let gone = || Reason {
            failure: Failure::Incomplete,
            message: format!("the release image `{release}` was removed from the store before it was read"),
        };
        let chain = chain.ok_or_else(gone)?;
        match store.read_file(&chain, file, FILE_LIMIT) {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(unexpected(format!(
                "the release image `{release}` has no `{file}`\nhint: is `platform.image` a release image?"
            ))),
            Err(error @ StoreError::Unreadable { .. }) => Err(unexpected(error.to_string())),
            Err(error) => Err(unusable(error)),
        }
    };
    let payload = Payload::parse(&read(IMAGE_REFERENCES)?, &read(RELEASE_METADATA)?)
        .map_err(|error| unexpected(error.to_string()))?;
    let selection = select(&payload, excludes).map_err(|error| unexpected(error.to_string()))?;
    Ok((payload, selection))
}

/// The excluded images as the plan lists them.
pub(super) fn excluded(payload: &Payload, selection: &Selection) -> Vec<ExcludedImage> {
    let names = payload.tags.iter().map(|tag| (tag.name.as_str(), &tag.reference));
    let references: std::collections::HashMap<_, _> = names.collect();
    let excluded = selection.excluded.iter().filter_map(|image| {
        Some(ExcludedImage {
            name: references.get(image.name.as_str())?.to_string(),
            source: Source::Release {
                tag: image.name.clone(),
            },
            reason: format!("pattern `{}`", image.pattern),
        })
    });
    excluded.collect()
}
