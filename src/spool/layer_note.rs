//! Notes on a spooled blob which layer it makes, so that a later run can remove a delta whose layer is stored.
//!
//! The store records the blob of a layer, but no delta. The note is an extended attribute of the file. Without it, for instance
//! on a file system without such attributes, a delta that a killed run left is removed when it is too old.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{XattrFlags, fsetxattr, lgetxattr};

use crate::oci::LayerId;

/// The name of the attribute. Its value is the layer's id: 64 hexadecimal digits.
const NAME: &str = "user.spoke-precache.layer";

/// Writes the note.
pub(super) fn write(blob: &File, layer: LayerId) -> io::Result<()> {
    let value = layer.to_string();
    Ok(fsetxattr(blob, NAME, value.as_bytes(), XattrFlags::empty())?)
}

/// Reads the note of the file at `path`.
pub(super) fn read(path: &Path) -> Option<LayerId> {
    let mut value = [0; 64];
    let length = lgetxattr(path, NAME, &mut value[..]).ok()?;
    LayerId::from_hex(std::str::from_utf8(value.get(..length)?).ok()?)
}
