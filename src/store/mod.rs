//! containers/storage with the overlay driver: the store that CRI-O and podman share.
//!
//! ```text
//! Store::open → Inventory                        what is there; no lock, nothing written
//! Store::stage → StagingLayer → StagedLayer      unpacking, no lock, nobody can see it
//! Store::commit_layers, commit_image             visible at once and as a whole, locks for milliseconds
//! Store::add_names                               further names of images that are there
//! Store::read_file, tree                         files and directories out of an image's layers, nothing mounted
//! Inventory::check_layer, check_data             everything read again and compared; each damage by name
//! Store::repair_layers, repair_links                 what is damaged, put right in its place
//! ```
//!
//! Additional image stores (`home.rs`) are read and never written.
//!
//! Other programs of other versions use the store at the same time. They see the old state or the new one,
//! also after `kill -9` and after power loss; the format and the protocol are in shared/storage-format.md.

mod additional_stores;
mod atomic_file;
mod capabilities;
mod check;
mod commit_image;
mod commit_layer;
mod completeness;
mod conf;
mod durable_layers;
mod error;
mod escaped_name;
mod expected_layer;
mod go_time;
mod image_lookup;
mod image_names;
mod image_tree;
mod images_json;
mod inventory;
mod json_record;
mod layer_chain;
mod layer_dir;
mod layer_placement;
mod layer_repair;
mod layer_tar;
mod layers_in_use;
mod layers_json;
mod layout;
mod leftovers;
mod lock;
mod lower_file;
mod remove_tree;
mod stage;
mod stage_dir;
#[expect(clippy::module_inception, reason = "the file holds the type of this name")]
mod store;
mod store_location;
mod sync_staged;
pub mod tar_split;
pub mod unpack;
mod unpacked_layer;

pub use capabilities::require_root;
pub use check::{Damage, LayerDamage, LayerState};
pub use commit_image::ImageCommit;
pub use commit_layer::LayerCommit;
pub(crate) use conf::lowered;
pub use conf::{Setting, StorageConf, StorageConfError, StoreOptions};
pub use error::StoreError;
pub use escaped_name::EscapedName;
pub use expected_layer::{ExpectedLayer, LayerBlob};
pub use image_tree::{Directory, DirectoryEntry, FileKind, Node, Tree};
pub use inventory::{Inventory, LayerRecord, StoredImage};
pub use layer_tar::LayerTar;
pub use layers_in_use::{HostState, LayersInUse};
pub use stage::{Stage, StagedLayer, StagingLayer};
pub use stage_dir::await_removal;
pub use store::Store;
pub use store_location::StoreLocation;
pub use unpacked_layer::{Compression, Owners, UnpackedLayer};
