//! containers/storage with the overlay driver: the store that CRI-O and podman share.
//!
//! ```text
//! Store::open → Inventory                        what is there; no lock, nothing written
//! Store::stage → StagingLayer → StagedLayer      unpacking, no lock, nobody can see it
//! Store::commit_layers, commit_image             visible at once and as a whole, locks for milliseconds
//! Store::add_names                               further names of images that are there
//! Store::read_file, tree                         files and directories out of an image's layers, nothing mounted
//! Inventory::check_layer, check_data             everything read again and compared; each damage by name
//! Store::mend_layers, mend_frame                 what is damaged, put right in its place
//! ```
//!
//! Additional image stores (`home.rs`) are read and never written.
//!
//! Other programs of other versions use the store at the same time. They see the old state or the new one,
//! also after `kill -9` and after power loss; the format and the protocol are in shared/storage-format.md.

mod atomic;
mod check;
mod commit_image;
mod commit_layer;
mod conf;
mod error;
mod home;
mod images;
mod inventory;
mod layer_dir;
mod layer_tar;
mod layers;
mod layout;
mod leftovers;
mod lock;
mod mend;
mod names;
mod placement;
mod read;
mod record;
mod remove;
mod rights;
mod stage;
mod stage_dir;
#[expect(clippy::module_inception, reason = "the file holds the type of this name")]
mod store;
mod sync_staged;
mod synced;
pub mod tar_split;
mod time;
mod tree;
pub mod unpack;
mod unpacked;
mod users;
mod wholeness;

pub use check::{Damage, LayerBlob, LayerDamage, LayerPlace, LayerState};
pub use commit_image::ImageCommit;
pub use commit_layer::LayerCommit;
pub(crate) use conf::lowered;
pub use conf::{Setting, StorageConf, StorageConfError, StoreOptions};
pub use error::StoreError;
pub use home::Home;
pub use inventory::{Inventory, LayerRecord, StoredImage};
pub use layer_tar::LayerTar;
pub use rights::require_root;
pub use stage::{LayerSpec, Stage, StagedLayer, StagingLayer};
pub use stage_dir::await_removal;
pub use store::Store;
pub use tree::{Directory, Entry, EntryKind, Node, Tree};
pub use unpacked::{Compression, Owners, Unpacked};
pub use users::{HostState, Users};
