//! Reads a file out of an image's layers as a container would see it, with nothing mounted.

use std::io::Read as _;
use std::path::Path;

use super::error::{StoreError, io_error};
use super::store::Store;
use super::tree::Node;
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
        let unreadable = |reason: String| StoreError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let file = match self.tree(layers)?.open(Path::new(path))? {
            None => return Ok(None),
            Some(Node::File(file)) => file,
            Some(Node::Directory(_)) => {
                return Err(unreadable("it is a directory, not a regular file".into()));
            }
            Some(Node::Other(kind)) => {
                return Err(unreadable(format!("it is {kind}, not a regular file")));
            }
        };
        let len = file
            .metadata()
            .map_err(io_error("examine a layer's", Path::new(path)))?
            .len();
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(io_error("read a layer's", Path::new(path)))?;
        if bytes.len() as u64 > limit {
            return Err(unreadable(format!("it has {len} bytes, more than {limit}")));
        }
        Ok(Some(bytes))
    }
}
