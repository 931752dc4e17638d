//! One look at the node: what the store and the spool have of the wanted images. It ages from then on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::JobError;
use super::failure::Reason;
use crate::exit_code::Failure;
use crate::oci::{Digest, ImageId, LayerId, Platform, Reference};
use crate::spool::SpoolEntry;
use crate::store::{Damage, ExpectedLayer, Inventory, LayerBlob, Store, StoreLocation};

/// What was seen.
pub(super) struct Snapshot {
    pub(super) inventory: Arc<Inventory>,
    /// Blobs that nobody has looked into, whole or not.
    pub(super) spooled: Vec<SpoolEntry>,
    /// Only of images that the store has something of.
    images: HashMap<Reference, Seen>,
}

/// What the store has under one reference, as CRI-O looks it up.
pub(super) struct Seen {
    pub(super) id: ImageId,
    /// It is found by a name that stays: its own, or one in an additional store, from which nobody takes names. Not by the
    /// digest under another name of the repository in the graph root.
    pub(super) keeps_name: bool,
    /// The additional image store that has its record.
    pub(super) additional: Option<PathBuf>,
    /// What is wrong with it, if anything is.
    pub(super) flaw: Option<Reason>,
    /// Its layers, base first, as far as they are there.
    pub(super) layers: Vec<LayerId>,
    /// What is wrong with its big data. This and what follows is known once the image was read.
    pub(super) data: Vec<Damage>,
    /// Its layers, base first, as its config has them.
    pub(super) places: Vec<ExpectedLayer>,
    /// The blob of each, as its manifest has it.
    pub(super) blobs: Vec<LayerBlob>,
    /// What is wrong around the tree of each of them; `None` for one that is not there.
    pub(super) frames: Vec<Option<Vec<Damage>>>,
    /// Those of them in the graph root that have to be unpacked anew.
    pub(super) damaged: Vec<LayerId>,
    /// A damaged layer of an additional store on which one of the graph root was built, in words.
    pub(super) unmendable: Option<String>,
    /// Those of which only the surroundings are damaged.
    pub(super) unframed: Vec<(ExpectedLayer, Option<LayerBlob>)>,
}

impl Seen {
    /// Every layer that is not as it should be.
    pub(super) fn damaged_layers(&self) -> impl Iterator<Item = LayerId> {
        self.damaged
            .iter()
            .copied()
            .chain(self.unframed.iter().map(|(place, _)| place.id))
    }
}

impl Snapshot {
    /// Reads the records of each image and the sizes of its files: slow on a cold disk.
    pub(super) fn of(
        store: &Store,
        spooled: Vec<SpoolEntry>,
        references: &[Reference],
        platform: &Platform,
    ) -> Result<Self, JobError> {
        let inventory = store.inventory()?;
        let mut images = HashMap::new();
        for reference in references {
            if let Some(image) = inventory.find(reference, platform)? {
                let seen = Seen {
                    id: image.id,
                    keeps_name: image.names.contains(&reference.to_string())
                        || image.location != StoreLocation::GraphRoot,
                    additional: inventory.additional_root(image.location).map(Path::to_owned),
                    flaw: inventory.find_flaw(image)?.map(|message| Reason {
                        failure: Failure::Incomplete,
                        message,
                    }),
                    layers: inventory.chain_of(image).unwrap_or_default(),
                    data: Vec::new(),
                    places: Vec::new(),
                    blobs: Vec::new(),
                    frames: Vec::new(),
                    damaged: Vec::new(),
                    unmendable: None,
                    unframed: Vec::new(),
                };
                images.insert(reference.clone(), seen);
            }
        }
        Ok(Self {
            inventory: Arc::new(inventory),
            spooled,
            images,
        })
    }

    /// What there is of the image.
    pub(super) fn image(&self, reference: &Reference) -> Option<&Seen> {
        self.images.get(reference)
    }

    /// The additional image store that an image is in.
    pub(super) fn additional_store_of(&self, reference: &Reference) -> Option<PathBuf> {
        self.image(reference)?.additional.clone()
    }

    /// The layers of all images that are there, as far as they are in the graph root.
    pub(super) fn layers(&self) -> Vec<LayerId> {
        let layers = self.images.values().flat_map(|seen| &seen.layers).copied();
        layers.filter(|id| self.inventory.layer(id).is_some()).collect()
    }

    /// All that there is of images.
    pub(super) fn images(&self) -> impl Iterator<Item = &Seen> {
        self.images.values()
    }

    /// The same, to be added to.
    pub(super) fn images_mut(&mut self) -> impl Iterator<Item = &mut Seen> {
        self.images.values_mut()
    }

    /// Bytes in the spool, by the digest of the blob. Of a blob that lies there both whole and begun, the whole.
    pub(super) fn spooled_bytes(&self) -> HashMap<Digest, u64> {
        let mut bytes = HashMap::new();
        for entry in &self.spooled {
            let known = bytes.entry(entry.digest).or_insert(0);
            *known = entry.bytes.max(*known);
        }
        bytes
    }
}
