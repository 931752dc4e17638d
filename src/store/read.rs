//! Reads a file out of an image's layers as a container would see it, with nothing mounted.

use super::error::StoreError;
use super::store::Store;
use crate::oci::LayerId;

impl Store {
    /// The bytes of the regular file `path` in the image whose layers are `layers`, base layer first; `None`
    /// if the image has no such file.
    ///
    /// # Errors
    /// When it is something else than a regular file, longer than `limit` bytes, or when a layer is not there.
    pub fn read_file(
        &self,
        layers: &[LayerId],
        path: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        self.tree(layers)?.read_file(path, limit)
    }
}
