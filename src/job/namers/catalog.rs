//! Reads the operator catalog of an index image in the store, for the requested operators.

use crate::cancel::Cancel;
use crate::catalog::{self, Catalog, CatalogError, CatalogLocation, PackageRequest};
use crate::exit_code::Failure;
use crate::oci::{Platform, Reference};
use crate::store::{Inventory, Store, StoreError};

use super::super::error::{Reason, TaskError};

/// Reads the catalog of the index image `index`, which is in the store. Takes seconds for a large one.
pub(in crate::job) fn catalog(
    index: &Reference,
    platform: &Platform,
    requests: &[PackageRequest],
    store: &Store,
    inventory: &Inventory,
    cancel: &Cancel,
) -> Result<Catalog, TaskError> {
    let unusable = |error: StoreError| {
        TaskError::Image(Reason {
            failure: Failure::Store,
            message: error.to_string(),
        })
    };
    let gone = || {
        TaskError::Image(Reason {
            failure: Failure::Incomplete,
            message: format!("the index image `{index}` was removed from the store before it was read"),
        })
    };
    let image = inventory.find(index, platform).map_err(unusable)?;
    let image = image.ok_or_else(gone)?;
    let chain = inventory.chain_of(image).ok_or_else(gone)?;
    let config = inventory
        .content(&image.id.config())
        .map_err(unusable)?
        .ok_or_else(gone)?;
    let tree = store.tree(&chain).map_err(unusable)?;
    let place = CatalogLocation::find(&tree, config.bytes());
    let read = place.and_then(|place| catalog::read(&tree, &place, requests, cancel));
    read.map_err(|error| match error {
        CatalogError::Stopped(_) => TaskError::Stopped,
        error @ (CatalogError::Store(_) | CatalogError::Io { .. }) => TaskError::Image(Reason {
            failure: Failure::Store,
            message: format!("the catalog of `{index}` cannot be read from the store: {error}"),
        }),
        error => TaskError::Image(Reason {
            failure: Failure::Payload,
            message: error.to_string(),
        }),
    })
}
