//! Reads and writes the containers/storage store (overlay driver) that CRI-O and podman share on the node.
//!
//! ```text
//! Store::open → Inventory                        a snapshot of layers and images; takes no lock, writes nothing
//! Store::stage → StagingLayer → StagedLayer      unpacks layers outside of the store's directories, without a lock
//! Stage::image → StagedImage                     writes the data of an image there too
//! Store::commit_layers_of, commit_images         makes them visible at once and complete; holds locks for milliseconds
//! Store::add_names                               adds names to stored images
//! Store::put_signatures, Inventory::signatures   adds signatures to a stored image; reads them
//! OldImageFiles                                  the files of stored images that deltas read
//! Store::tree                                    reads files and directories of an image without a mount
//! Store::pod_container_image                     the image of a container that CRI-O has created
//! Store::container_records                       the containers of CRI-O and podman, running or ended
//! Inventory::check_layer, check_links, check_data   reads everything again and reports each damage
//! Store::repair_layers, repair_links, repair_image  replaces damaged parts under the same ids
//! ```
//!
//! Additional image stores (`additional_stores.rs`) are read and never written.
//!
//! Other programs, of other versions, use the store at the same time. They see either the old or the new state, also
//! after `kill -9` and after a power loss. Section numbers in comments (`section 9.2, P3`) refer to the project's
//! notes on the format, storage-format.md.

mod additional_stores;
mod atomic_file;
mod capabilities;
mod check;
mod conf;
mod container_records;
mod durable_layers;
mod error;
mod escaped_name;
mod expected_layer;
mod go_time;
mod host_state;
mod image_batch;
mod image_commit;
mod image_completeness;
mod image_lookup;
mod image_names;
mod image_record;
mod image_signatures;
mod image_tree;
mod images_json;
mod inventory;
mod json_record;
mod layer_batch;
mod layer_chain;
mod layer_commit;
mod layer_dir;
mod layer_placement;
mod layer_removal;
mod layer_repair;
mod layer_tar;
mod layers_in_use;
mod layers_json;
mod layout;
mod leftovers;
mod lock;
mod old_image_files;
mod pod_container;
mod root_mount;
mod signature_item;
mod signature_lengths;
mod stage;
mod stage_dir;
mod stage_sync;
mod staged_image;
#[expect(clippy::module_inception, reason = "the file holds the type of this name")]
mod store;
mod store_location;
pub mod tar_split;
mod tree_removal;
pub mod unpack;
mod unpacked_layer;
mod unrecorded;
mod unresolved_lower;

pub use capabilities::require_root;
pub use check::{Damage, LayerDamage, LayerState};
pub(crate) use conf::lowered;
pub use conf::{Setting, StorageConf, StorageConfError, StoreOptions};
pub use container_records::{ContainerRecord, ContainerRecords, PodContainer};
pub use error::StoreError;
pub use escaped_name::EscapedName;
pub use expected_layer::{ExpectedLayer, LayerBlob};
pub use host_state::HostState;
pub use image_batch::ImageToCommit;
pub use image_commit::ImageCommit;
pub use image_tree::{Directory, DirectoryEntry, FileKind, Node, Tree};
pub use inventory::{Inventory, LayerRecord, StoredImage};
pub use layer_commit::{CommittedLayers, LayerCommit};
pub use layer_tar::{LayerTar, StoredLayer};
pub use layers_in_use::LayersInUse;
pub use old_image_files::OldImageFiles;
pub use stage::{Stage, StagedLayer, StagingLayer};
pub use stage_dir::await_removal;
pub use staged_image::StagedImage;
pub use store::Store;
pub use store_location::StoreLocation;
pub use unpacked_layer::{Compression, LayerOrigin, Owners, UnpackedLayer};
