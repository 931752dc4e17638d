//! Defines the paths under the graph root of a containers/storage store with the overlay driver.
//!
//! ```text
//! <graph root>/overlay/<layer id>/{diff,link,lower,work,merged,empty}
//!              overlay/l/<link>                    → ../<layer id>/diff
//!              overlay-layers/{layers.json,layers.lock,<layer id>.tar-split.gz}
//!              overlay-images/{images.json,images.lock,<image id>/<big data>}
//!              .spoke-precache-stage-<random>/     this program's, see `stage.rs`
//! ```

use std::path::{Path, PathBuf};

use base64::Engine as _;

use crate::oci::{ImageId, LayerId};

/// The directory of all layers and of `l/`.
pub(super) const OVERLAY: &str = "overlay";
/// The directory of layer records.
pub(super) const LAYERS: &str = "overlay-layers";
/// The directory of image records.
pub(super) const IMAGES: &str = "overlay-images";

/// Paths of one store.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn overlay(&self) -> PathBuf {
        self.root.join(OVERLAY)
    }

    pub(super) fn links(&self) -> PathBuf {
        self.root.join(OVERLAY).join("l")
    }

    pub(super) fn layer(&self, id: &LayerId) -> PathBuf {
        self.root.join(OVERLAY).join(id.to_string())
    }

    pub(super) fn layers(&self) -> PathBuf {
        self.root.join(LAYERS)
    }

    pub(super) fn layers_json(&self) -> PathBuf {
        self.layers().join("layers.json")
    }

    pub(super) fn tar_split(&self, id: &LayerId) -> PathBuf {
        self.layers().join(format!("{id}.tar-split.gz"))
    }

    pub(super) fn images(&self) -> PathBuf {
        self.root.join(IMAGES)
    }

    pub(super) fn images_json(&self) -> PathBuf {
        self.images().join("images.json")
    }

    pub(super) fn image(&self, id: &ImageId) -> PathBuf {
        self.images().join(id.to_string())
    }

    pub(super) fn big_data(&self, id: &ImageId, key: &str) -> PathBuf {
        self.image(id).join(big_data_file_name(key))
    }
}

/// The file name of a big data item: the key itself if it has only harmless characters, otherwise `=` and its base64
/// (containers/storage `store.go`: `makeBigDataBaseName`).
pub(super) fn big_data_file_name(key: &str) -> String {
    let harmless = |byte: u8| byte == b'.' || byte.is_ascii_digit() || byte.is_ascii_lowercase();
    // `.` and `..` have only harmless characters; containers/storage never uses them as keys.
    if key.bytes().all(harmless) && !key.bytes().all(|byte| byte == b'.') {
        return key.to_owned();
    }
    format!("={}", base64::engine::general_purpose::STANDARD.encode(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn big_data_files_are_named_as_containers_storage_names_them() {
        assert_eq!(big_data_file_name("manifest"), "manifest");
        assert_eq!(big_data_file_name("signatures"), "signatures");
        assert_eq!(big_data_file_name("sha256:00"), "=c2hhMjU2OjAw");
        assert_eq!(
            big_data_file_name("manifest-sha256:00"),
            "=bWFuaWZlc3Qtc2hhMjU2OjAw"
        );
        assert_eq!(big_data_file_name(".."), "=Li4=");
    }
}
