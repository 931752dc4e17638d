//! containers/storage with the overlay driver: the store that CRI-O and podman share.

mod unpacked;

pub use unpacked::{Compression, Unpacked};
