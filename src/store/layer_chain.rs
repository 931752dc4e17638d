//! Walks the layers of an image from the top layer to the base, across the graph root and the additional image stores.

use super::error::StoreError;
use super::expected_layer::ExpectedLayer;
use super::inventory::{Inventory, StoredImage};
use super::layer_dir;
use super::store_location::StoreLocation;
use crate::oci::{DiffId, LayerId};

impl Inventory {
    /// The image's layers, base layer first, if all of them are stored and mountable.
    pub fn chain_of(&self, image: &StoredImage) -> Option<Vec<LayerId>> {
        let mut chain = Vec::new();
        let mut next = image.top_layer();
        while let Some(id) = next {
            // A chain with a cycle is damaged.
            if chain.contains(&id) {
                return None;
            }
            chain.push(id);
            next = self.mountable(&id)?.parent;
        }
        chain.reverse();
        Some(chain)
    }

    /// The parent in the record that counts, also of a layer that cannot be mounted.
    pub(super) fn parent_of(&self, id: &LayerId) -> Option<LayerId> {
        let view = self.at(self.location_of(id)?).records.find(id)?;
        view.parent().and_then(LayerId::from_hex)
    }

    /// The layers that the image's config describes, base layer first, under their ids in this store; `None` if
    /// manifest or config cannot be read.
    pub fn expected_layers(&self, image: &StoredImage) -> Result<Option<Vec<ExpectedLayer>>, StoreError> {
        let Some(diff_ids) = self.diff_ids(image)? else {
            return Ok(None);
        };
        let ids = self
            .foreign_chain(image, &diff_ids)
            .unwrap_or_else(|| LayerId::chain(diff_ids.iter().copied()));
        let parents = std::iter::once(None).chain(ids.iter().copied().map(Some));
        let layers = ids.iter().zip(parents).zip(diff_ids);
        let locations = self.locations_of(&ids)?;
        let expected = |(((id, parent), diff_id), location): (((&LayerId, _), _), _)| ExpectedLayer {
            id: *id,
            parent,
            diff_id,
            location,
        };
        Ok(Some(layers.zip(locations).map(expected).collect()))
    }

    /// The image's layers, if the program that stored them assigned other ids. A record may also name a wrong layer
    /// by mistake, and layers of other images are neither checked nor repaired for it.
    pub(super) fn foreign_chain(&self, image: &StoredImage, diff_ids: &[DiffId]) -> Option<Vec<LayerId>> {
        let (mut chain, mut next) = (Vec::new(), image.top_layer());
        for diff_id in diff_ids.iter().rev() {
            let id = next?;
            let view = self.at(self.location_of(&id)?).records.find(&id)?;
            if view.diff_id().is_some_and(|found| found != *diff_id) {
                return None;
            }
            chain.push(id);
            next = self.parent_of(&id);
        }
        chain.reverse();
        next.is_none().then_some(chain)
    }

    /// The store in which a mount of the last layer of `chain` finds each layer: the store of its record for the last
    /// one, the target of the names in its `lower` for the others.
    fn locations_of(&self, chain: &[LayerId]) -> Result<Vec<StoreLocation>, StoreError> {
        // A layer without a record counts as missing in the graph root.
        let mut locations: Vec<StoreLocation> = chain
            .iter()
            .map(|id| self.location_of(id).unwrap_or_default())
            .collect();
        let (Some((top, below)), Some(location)) = (chain.split_last(), locations.last()) else {
            return Ok(locations);
        };
        let lower = layer_dir::lower(&self.at(*location).layout, top)?.unwrap_or_default();
        let names = lower.split(':').filter_map(|name| name.strip_prefix("l/"));
        for ((id, location), name) in below.iter().zip(&mut locations).rev().zip(names) {
            *location = self.location_by_link(name, id)?.unwrap_or(*location);
        }
        Ok(locations)
    }

    /// The store in which the link name belongs to the layer. A layer that was built on a layer of an additional
    /// store keeps using that one.
    pub(super) fn location_by_link(
        &self,
        name: &str,
        id: &LayerId,
    ) -> Result<Option<StoreLocation>, StoreError> {
        for location in self.locations() {
            let layout = &self.at(location).layout;
            let own = layer_dir::link(layout, id)?;
            // Of a damaged layer only the symlink may be left.
            if own.as_deref() == Some(name) || layer_dir::is_linked(layout, name, id)? {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }
}
