//! Collects what the store and the spool contain of the requested images at one moment.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::JobError;
use super::error::Reason;
use super::media_blobs::MediaBlobs;
use super::stored_signatures::{StoredSignatureChecker, StoredSignatures};
use crate::delta::DeltaOption;
use crate::exit_code::Failure;
use crate::oci::{Digest, ImageId, LayerId, Platform, Reference};
use crate::plan::{Present, TarLength};
use crate::spool::SpoolEntry;
use crate::store::{Damage, ExpectedLayer, Inventory, LayerBlob, Store, StoreLocation};

/// The store and the spool at the moment when it was taken; other programs may change them at any time after that.
pub(super) struct Snapshot {
    pub(super) inventory: Arc<Inventory>,
    /// Blobs in the spool, complete or partial, whose digests are not verified yet.
    pub(super) spooled: Vec<SpoolEntry>,
    /// Only the images of which the store has a record.
    images: HashMap<Reference, ImageInStore>,
}

/// What the store has under one reference, looked up as CRI-O does.
pub(super) struct ImageInStore {
    pub(super) id: ImageId,
    /// It is found by a name that stays: its own, or any name in an additional store, because no program removes names
    /// there. False if it is found by its digest under another name of the repository in the graph root.
    pub(super) keeps_name: bool,
    /// The additional image store that contains its record.
    pub(super) additional: Option<PathBuf>,
    /// Why it is incomplete or damaged, or why the signature policy refuses it.
    pub(super) flaw: Option<Reason>,
    /// Its signatures, and whether the signature policy accepts it with these.
    pub(super) signatures: StoredSignatures,
    /// Its layers that are present, base first.
    pub(super) layers: Vec<LayerId>,
    /// Damage of its big data. This and the following fields are filled when the image is verified.
    pub(super) data_damage: Vec<Damage>,
    /// Its layers, base first, as its config lists them.
    pub(super) expected_layers: Vec<ExpectedLayer>,
    /// The blob of each layer, as its manifest lists it.
    pub(super) blobs: Vec<LayerBlob>,
    /// Damage of each layer's files outside its tree; `None` for a missing layer.
    pub(super) link_damage: Vec<Option<Vec<Damage>>>,
    /// Its layers in the graph root that have to be unpacked again.
    pub(super) damaged: Vec<LayerId>,
    /// Describes a damaged layer of an additional store that is below a layer of the graph root.
    pub(super) damaged_below: Option<String>,
    /// Its layers of which only files outside the tree are damaged.
    pub(super) damaged_links: Vec<(ExpectedLayer, Option<LayerBlob>)>,
}

impl ImageInStore {
    /// Every damaged layer.
    pub(super) fn damaged_layers(&self) -> impl Iterator<Item = LayerId> {
        self.damaged
            .iter()
            .copied()
            .chain(self.damaged_links.iter().map(|(place, _)| place.id))
    }
}

impl Snapshot {
    /// Reads the records of each image and the sizes of its files, which is slow on a cold disk.
    pub(super) fn of(
        store: &Store,
        spooled: Vec<SpoolEntry>,
        references: &[Reference],
        platform: &Platform,
        checker: &StoredSignatureChecker,
    ) -> Result<Self, JobError> {
        let inventory = store.inventory()?;
        let mut images = HashMap::new();
        for reference in references {
            if let Some(image) = inventory.find(reference, platform)? {
                let signatures = checker.check(reference, image, &inventory);
                let flaw = inventory.find_flaw(image)?.map(|message| Reason {
                    failure: Failure::Incomplete,
                    message,
                });
                let found = ImageInStore {
                    id: image.id,
                    keeps_name: image.names.contains(&reference.to_string())
                        || image.location != StoreLocation::GraphRoot,
                    additional: inventory.additional_root(image.location).map(Path::to_owned),
                    flaw: flaw.or_else(|| signatures.refusal.clone()),
                    signatures,
                    layers: inventory.chain_of(image).unwrap_or_default(),
                    data_damage: Vec::new(),
                    expected_layers: Vec::new(),
                    blobs: Vec::new(),
                    link_damage: Vec::new(),
                    damaged: Vec::new(),
                    damaged_below: None,
                    damaged_links: Vec::new(),
                };
                images.insert(reference.clone(), found);
            }
        }
        Ok(Self {
            inventory: Arc::new(inventory),
            spooled,
            images,
        })
    }

    /// What the store has of the image.
    pub(super) fn image(&self, reference: &Reference) -> Option<&ImageInStore> {
        self.images.get(reference)
    }

    /// The additional image store that contains the image.
    pub(super) fn additional_store_of(&self, reference: &Reference) -> Option<PathBuf> {
        self.image(reference)?.additional.clone()
    }

    /// The layers of all these images that are in the graph root.
    pub(super) fn layers(&self) -> Vec<LayerId> {
        let layers = self.images.values().flat_map(|image| &image.layers).copied();
        layers.filter(|id| self.inventory.layer(id).is_some()).collect()
    }

    /// Every requested image of which the store has a record.
    pub(super) fn images(&self) -> impl Iterator<Item = &ImageInStore> {
        self.images.values()
    }

    /// The same, to add the results of a verification.
    pub(super) fn images_mut(&mut self) -> impl Iterator<Item = &mut ImageInStore> {
        self.images.values_mut()
    }

    /// Bytes in the spool by blob digest. If a blob is stored both complete and partial, the complete one counts.
    fn spooled_bytes(&self) -> HashMap<Digest, u64> {
        let mut bytes = HashMap::new();
        for entry in &self.spooled {
            let known = bytes.entry(entry.digest).or_insert(0);
            *known = entry.bytes.max(*known);
        }
        bytes
    }

    /// What a plan can reuse: those of `layers` that are in the graph root and undamaged, the content of all undamaged layers,
    /// and every spooled blob. `deltas` are those that were found, `media` what media have, and `tars` are the known lengths of tars.
    pub(super) fn here(
        &self,
        layers: impl Iterator<Item = LayerId>,
        damaged: &HashSet<LayerId>,
        deltas: &HashMap<Digest, Vec<Arc<DeltaOption>>>,
        media: &MediaBlobs,
        tars: &HashMap<Digest, TarLength>,
    ) -> Present {
        let mut stored = self.inventory.stored_layers();
        for layers in stored.values_mut() {
            layers.retain(|layer| !damaged.contains(&layer.id));
        }
        Present {
            deltas: deltas.clone(),
            media: media.found().clone(),
            medium_tars: media.tars().clone(),
            layers: layers
                .filter(|id| self.inventory.layer(id).is_some() && !damaged.contains(id))
                .collect(),
            stored,
            blobs: self.spooled_bytes(),
            tars: tars.clone(),
            chunked: HashMap::new(),
        }
    }
}
