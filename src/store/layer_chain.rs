//! Walks the layers of an image from the top layer to the base, across the graph root and the additional image stores.

use super::error::StoreError;
use super::expected_layer::ExpectedLayer;
use super::inventory::{Inventory, StoredImage};
use super::layer_dir;
use super::store_location::StoreLocation;
use crate::oci::{DiffId, LayerId};

impl Inventory {
    /// The image's layers, base first, if every one of them is there.
    pub fn chain_of(&self, image: &StoredImage) -> Option<Vec<LayerId>> {
        let mut chain = Vec::new();
        let mut next = image.top_layer();
        while let Some(id) = next {
            // A record that names itself as its ancestor is no chain.
            if chain.contains(&id) {
                return None;
            }
            chain.push(id);
            next = self.mountable(&id)?.parent;
        }
        chain.reverse();
        Some(chain)
    }

    /// What the record that counts says; also that of a layer which cannot be mounted.
    pub(super) fn parent_of(&self, id: &LayerId) -> Option<LayerId> {
        let view = self.at(self.location_of(id)?).records.find(id)?;
        view.parent().and_then(LayerId::from_hex)
    }

    /// The layers that the image's config asks for, base layer first, under the ids that they have here; `None` if
    /// that cannot be told.
    pub fn expected_layers(&self, image: &StoredImage) -> Result<Option<Vec<ExpectedLayer>>, StoreError> {
        let Some(diff_ids) = self.diff_ids(image)? else {
            return Ok(None);
        };
        let ids = self
            .foreign_chain(image, &diff_ids)
            .unwrap_or_else(|| LayerId::chain(diff_ids.iter().copied()));
        let parents = std::iter::once(None).chain(ids.iter().copied().map(Some));
        let places = ids.iter().zip(parents).zip(diff_ids);
        let locations = self.locations_of(&ids)?;
        let place = |(((id, parent), diff_id), location): (((&LayerId, _), _), _)| ExpectedLayer {
            id: *id,
            parent,
            diff_id,
            location,
        };
        Ok(Some(places.zip(locations).map(place).collect()))
    }

    /// The image's layers, if somebody made them who gives other ids. A record may also name a layer by mistake, and others'
    /// layers are neither checked nor mended for that.
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

    /// Where a mount of the last of `chain` finds each layer: the last where its record is, the others where its `lower`
    /// leads.
    fn locations_of(&self, chain: &[LayerId]) -> Result<Vec<StoreLocation>, StoreError> {
        // One that is nowhere is missing in the graph root.
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

    /// The store in which the short name is the layer's: a layer may have been built on one that lay in an additional store
    /// only, and keeps to that.
    pub(super) fn location_by_link(
        &self,
        name: &str,
        id: &LayerId,
    ) -> Result<Option<StoreLocation>, StoreError> {
        for location in self.locations() {
            let layout = &self.at(location).layout;
            let own = layer_dir::link(layout, id)?;
            // Of a damaged one only the symlink may be left.
            if own.as_deref() == Some(name) || layer_dir::is_linked(layout, name, id)? {
                return Ok(Some(location));
            }
        }
        Ok(None)
    }
}
