//! The images of a run by digest, for whoever is to keep them.

use super::{JobError, Order, Outcome};
use crate::oci::{Digest, Manifest, Reference};
use crate::store::{Inventory, Store};

/// A reference by digest for each image of the plan that is in the store. One that is asked for by tag has the digest that
/// it was stored with; of several that of the list, which the registry has for every platform.
pub fn by_digest(order: &Order, outcome: &Outcome) -> Result<Vec<String>, JobError> {
    let store = Store::open(&order.graph_root, &order.storage_conf)?;
    let inventory = store.inventory()?;
    let references = outcome.plan.images.iter().filter_map(|image| {
        let reference: Reference = image.name.parse().ok()?;
        let digest = match reference.digest() {
            Some(digest) => digest,
            None => digest_of(&image.name, &inventory)?,
        };
        Some(format!("{}@{digest}", reference.repository()))
    });
    Ok(references.collect())
}

fn digest_of(name: &str, inventory: &Inventory) -> Option<Digest> {
    let digests = &inventory.image_by_name(name)?.digests;
    let is_list = |digest: &&Digest| {
        let content = inventory.content(digest).ok().flatten();
        content.is_some_and(|content| {
            Manifest::parse(content.bytes(), None)
                .is_ok_and(|manifest| matches!(manifest, Manifest::Index(_)))
        })
    };
    digests.iter().find(is_list).or(digests.first()).copied()
}
