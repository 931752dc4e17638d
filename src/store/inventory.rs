//! Takes a snapshot of the layers and images in the store, without a lock.
//!
//! layers.json and images.json are only ever replaced as a whole, so reading one needs no lock. If one is replaced
//! during the snapshot, both are read again. A snapshot is soon out of date: a commit checks again under the locks.
//!
//! The additional image stores are included; `additional_stores.rs` describes the order of the search.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use bytes::Bytes;

use super::atomic_file;
use super::error::{StoreError, io_error};
use super::image_record::MANIFEST;
use super::images_json::{ImageTable, ImageView};
use super::layer_dir::{find_flaw, is_linked, link};
use super::layers_json::{LayerTable, LayerView};
use super::layout::Layout;
use super::store::Store;
use super::store_location::StoreLocation;
use crate::oci::{Content, DiffId, Digest, ImageId, LayerId};

/// How often a snapshot is repeated while other programs write. The last one is used in any case.
const ATTEMPTS: usize = 5;

/// The largest item of big data that is read. Registries limit manifests and configs to 4 MiB.
pub(super) const ITEM_LIMIT: u64 = 64 << 20;

/// The layers and images of a store at one moment.
#[derive(Debug)]
pub struct Inventory {
    pub(super) layout: Layout,
    /// The raw records, including those of layers that cannot be mounted.
    pub(super) records: LayerTable,
    layers: HashMap<LayerId, LayerRecord>,
    images: Vec<StoredImage>,
    stored_bytes: u64,
    /// The snapshots of the additional stores.
    additional: Vec<Inventory>,
}

/// A layer that CRI-O can mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerRecord {
    /// Its id.
    pub id: LayerId,
    /// The layer below.
    pub parent: Option<LayerId>,
    /// Digest of the blob that it was unpacked from; unknown for a layer that was built on the node.
    pub blob: Option<Digest>,
    /// SHA-256 of its tar.
    pub diff_id: Option<DiffId>,
    /// Length of its tar in bytes.
    pub diff_size: Option<u64>,
}

/// The record of an image. [`Inventory::find_flaw`] checks whether the image is usable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Its id.
    pub id: ImageId,
    /// The store that has its record.
    pub location: StoreLocation,
    /// Its names, as lookups compare them.
    pub names: Vec<String>,
    /// The digests of its manifests and manifest lists.
    pub digests: BTreeSet<Digest>,
    /// Its top layer, as recorded. This field and the next ones may be damaged.
    pub(super) layer: Option<String>,
    /// The digest in its `digest` field.
    pub(super) digest: Option<String>,
    pub(super) metadata: Option<String>,
    pub(super) created: Option<String>,
    pub(super) items: BTreeMap<String, BigDataRecord>,
}

/// A file of big data as the image's record describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BigDataRecord {
    pub(super) size: Option<u64>,
    pub(super) digest: Option<Digest>,
    /// Whether `big-data-names` lists it.
    pub(super) is_named: bool,
}

impl Store {
    /// Takes a snapshot. A store that does not exist is empty.
    pub fn inventory(&self) -> Result<Inventory, StoreError> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let before = self.generation()?;
            let stores: Vec<&Layout> = self.layouts().collect();
            let mut inventory = Inventory::read(&self.layout, StoreLocation::GraphRoot, &stores)?;
            for (index, layout) in self.additional.layouts.iter().enumerate() {
                let location = StoreLocation::Additional(index);
                inventory
                    .additional
                    .push(Inventory::read(layout, location, &stores)?);
            }
            if attempt == ATTEMPTS || self.generation()? == before {
                return Ok(inventory);
            }
        }
    }

    fn generation(&self) -> Result<Vec<Option<Generation>>, StoreError> {
        self.layouts()
            .flat_map(|layout| [layout.layers_json(), layout.images_json()])
            .map(|path| Generation::of(&path))
            .collect()
    }
}

/// A value that changes whenever a file is replaced.
#[derive(PartialEq, Eq)]
struct Generation {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

impl Generation {
    fn of(path: &Path) -> Result<Option<Self>, StoreError> {
        match std::fs::metadata(path) {
            Ok(metadata) => Ok(Some(Self {
                inode: metadata.ino(),
                seconds: metadata.mtime(),
                nanoseconds: metadata.mtime_nsec(),
            })),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("examine", path)(error)),
        }
    }
}

impl Inventory {
    fn read(layout: &Layout, location: StoreLocation, stores: &[&Layout]) -> Result<Self, StoreError> {
        // Images first: a commit stores the layers before the image, so an image in this snapshot has its layers in
        // it too.
        let images = ImageTable::read(layout)?;
        let layers = LayerTable::read(layout)?;
        let mut known = HashMap::new();
        let mut stored_bytes = 0_u64;
        for view in layers.views() {
            stored_bytes = stored_bytes.saturating_add(unsigned(view.diff_size).unwrap_or(0));
            let Some(id) = LayerId::from_hex(&view.id) else {
                continue;
            };
            if known.contains_key(&id) || !view.is_complete() || !view.is_filled() || view.is_mapped() {
                continue;
            }
            let mut flaw = find_flaw(layout, &id, view.parent().is_some())?;
            if flaw.is_none() && location != StoreLocation::GraphRoot {
                flaw = flaw_of_link_name(layout, &id)?;
            }
            if flaw.is_none() {
                flaw = layers.unresolved_lower(layout, view, &id, stores)?;
            }
            match flaw {
                None => {
                    known.insert(id, LayerRecord::new(id, view));
                }
                Some(flaw) => tracing::debug!(layer = %id, %flaw, "skipping a layer that cannot be mounted"),
            }
        }
        Ok(Self {
            layout: layout.clone(),
            records: layers,
            layers: known,
            images: images
                .views()
                .filter_map(|view| StoredImage::new(view, location))
                .collect(),
            stored_bytes,
            additional: Vec::new(),
        })
    }

    /// The snapshot of one of the stores.
    pub(super) fn at(&self, location: StoreLocation) -> &Self {
        match location {
            StoreLocation::GraphRoot => self,
            StoreLocation::Additional(index) => &self.additional[index],
        }
    }

    /// The stores in the order of the search.
    pub(super) fn locations(&self) -> impl Iterator<Item = StoreLocation> {
        let additional = (0..self.additional.len()).map(StoreLocation::Additional);
        std::iter::once(StoreLocation::GraphRoot).chain(additional)
    }

    /// Whether there are additional image stores.
    pub fn has_additional(&self) -> bool {
        !self.additional.is_empty()
    }

    /// The root of an additional store.
    pub fn additional_root(&self, location: StoreLocation) -> Option<&Path> {
        (location != StoreLocation::GraphRoot).then(|| self.at(location).layout.root())
    }

    /// The store whose record of this layer counts for any image: the first that has one.
    pub(super) fn location_of(&self, id: &LayerId) -> Option<StoreLocation> {
        self.locations().find(|location| {
            let store = self.at(*location);
            store.layers.contains_key(id) || store.records.find(id).is_some()
        })
    }

    /// The layer for a stored image, from any store, if it is complete and can be mounted on its parents.
    pub fn mountable(&self, id: &LayerId) -> Option<&LayerRecord> {
        // First, because the search below reads all records for a missing layer.
        self.layer(id).or_else(|| {
            let location = self.location_of(id)?;
            // The driver uses the first directory of this name, even without a record (`overlay.go`: `dir2`).
            let mut before = self.locations().take_while(|it| *it != location);
            let is_hidden = before.any(|it| self.at(it).layout.layer(id).exists());
            self.at(location).layer(id).filter(|_| !is_hidden)
        })
    }

    /// The layer, if it is in the graph root, complete and mountable on its parents.
    pub fn layer(&self, id: &LayerId) -> Option<&LayerRecord> {
        self.layers.get(id)
    }

    /// Length of the tar of a layer in one of the stores, as recorded.
    pub fn tar_size(&self, location: StoreLocation, id: &LayerId) -> Option<u64> {
        self.at(location).layer(id)?.diff_size
    }

    /// Every layer of the graph root that is complete and mountable, in no order.
    pub fn layers(&self) -> impl Iterator<Item = &LayerRecord> {
        self.layers.values()
    }

    /// Every image's record in the graph root, in the order of the file.
    pub fn images(&self) -> &[StoredImage] {
        &self.images
    }

    /// The image of this id.
    pub fn image(&self, id: &ImageId) -> Option<&StoredImage> {
        self.all_images().find(|image| image.id == *id)
    }

    /// The images of all stores, in the order of the search.
    pub fn all_images(&self) -> impl Iterator<Item = &StoredImage> {
        self.locations().flat_map(|location| &self.at(location).images)
    }

    /// Σ uncompressed bytes of all layers of the graph root, as recorded.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// A manifest, list or config with this digest, if an image has one. Damaged content is not returned.
    pub fn content(&self, digest: &Digest) -> Result<Option<Content>, StoreError> {
        for image in self.all_images() {
            for (key, item) in &image.items {
                if item.digest != Some(*digest) {
                    continue;
                }
                match self.read_item(image, key)? {
                    Some(content) if content.digest() == *digest => return Ok(Some(content)),
                    _ => {
                        tracing::warn!(image = %image.id, item = key, "an item of the store is missing or damaged")
                    }
                }
            }
        }
        Ok(None)
    }

    /// The image's record as it is now, if another program replaced it since the snapshot.
    pub(super) fn replaced(&self, image: &StoredImage) -> Result<Option<StoredImage>, StoreError> {
        let table = ImageTable::read(&self.at(image.location).layout)?;
        let now = table
            .find(&image.id)
            .and_then(|view| StoredImage::new(view, image.location));
        Ok(now.filter(|now| now != image))
    }

    pub(super) fn read_item(&self, image: &StoredImage, key: &str) -> Result<Option<Content>, StoreError> {
        let bytes = atomic_file::read(
            &self.at(image.location).layout.big_data(&image.id, key),
            ITEM_LIMIT,
        )?;
        Ok(bytes.map(|bytes| Content::new(Bytes::from(bytes))))
    }
}

/// containers/storage recreates a lost link name in the graph root only (`overlay.go`: `recreateSymlinks`).
fn flaw_of_link_name(layout: &Layout, id: &LayerId) -> Result<Option<String>, StoreError> {
    let is_linked = match link(layout, id)? {
        Some(link) => is_linked(layout, &link, id)?,
        None => false,
    };
    Ok((!is_linked).then(|| "its `../l/<link>` is missing or wrong".to_owned()))
}

impl LayerRecord {
    fn new(id: LayerId, view: &LayerView) -> Self {
        let digest = |text: &Option<String>| text.as_deref().and_then(|text| text.parse::<Digest>().ok());
        Self {
            id,
            parent: view.parent().and_then(LayerId::from_hex),
            blob: digest(&view.compressed_diff_digest),
            diff_id: view.diff_id(),
            diff_size: unsigned(view.diff_size),
        }
    }
}

impl StoredImage {
    /// The top layer; `None` for an image without layers.
    pub fn top_layer(&self) -> Option<LayerId> {
        self.layer.as_deref().and_then(LayerId::from_hex)
    }

    /// The digest of the manifest that the image was pulled by last, which containers/image uses if none is requested.
    pub fn manifest(&self) -> Option<Digest> {
        self.items.get(MANIFEST)?.digest
    }

    fn new(view: &ImageView, location: StoreLocation) -> Option<Self> {
        let (sizes, digests) = (
            view.big_data_sizes.iter().flatten(),
            view.big_data_digests.iter().flatten(),
        );
        let mut items: BTreeMap<String, BigDataRecord> = BTreeMap::new();
        for key in view.big_data_names.iter().flatten() {
            items.entry(key.clone()).or_default().is_named = true;
        }
        for (key, size) in sizes {
            items.entry(key.clone()).or_default().size = unsigned(Some(*size));
        }
        for (key, digest) in digests {
            items.entry(key.clone()).or_default().digest = digest.parse().ok();
        }
        Some(Self {
            // Images that are pulled have ids of 64 digits. No pod uses an image with another id, which was built by
            // hand.
            id: ImageId::from_hex(&view.id)?,
            location,
            names: view.names.clone().unwrap_or_default(),
            digests: view.digests(),
            layer: view.layer.clone().filter(|layer| !layer.is_empty()),
            digest: view.digest.clone(),
            metadata: view.metadata.clone(),
            created: view.created.clone(),
            items,
        })
    }
}

fn unsigned(number: Option<i64>) -> Option<u64> {
    number.and_then(|number| u64::try_from(number).ok())
}
