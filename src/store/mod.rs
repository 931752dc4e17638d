//! containers/storage with the overlay driver: the store that CRI-O and podman share.

mod conf;
mod unpacked;

pub use conf::{StorageConf, StorageConfError};
pub use unpacked::{Compression, Unpacked};
