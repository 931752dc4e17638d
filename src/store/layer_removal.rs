//! Takes layers out of the store that have no valid record. Needs the layers lock.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use super::error::StoreError;
use super::layer_dir;
use super::layers_json::LayerTable;
use super::layout::{LAYERS, Layout, OVERLAY};
use super::root_mount::rename;
use crate::oci::LayerId;

/// Deletes the layers of dead writers, as containers/storage does when it reads the file.
pub(super) fn delete_incomplete(
    layout: &Layout,
    root: &OwnedFd,
    trash: impl Fn() -> Result<PathBuf, StoreError>,
    table: &mut LayerTable,
) -> Result<(), StoreError> {
    let dead: Vec<LayerId> = table
        .views()
        .filter(|view| !view.is_complete())
        .filter_map(|view| LayerId::from_hex(&view.id))
        .collect();
    for id in dead {
        tracing::info!(layer = %id, "deleting a layer whose writer died");
        take_out(layout, root, &id, &trash)?;
        table.remove(&id);
    }
    Ok(())
}

/// Moves everything that belongs to a layer out of the store, whose record does not count.
pub(super) fn take_out(
    layout: &Layout,
    root: &OwnedFd,
    id: &LayerId,
    trash: impl Fn() -> Result<PathBuf, StoreError>,
) -> Result<(), StoreError> {
    if let Some(link) = layer_dir::link(layout, id)?
        && layer_dir::is_linked(layout, &link, id)?
    {
        layer_dir::remove_if_there(&layout.links().join(link))?;
    }
    layer_dir::remove_if_there(&layout.tar_split(id))?;
    for dir in [OVERLAY, LAYERS].map(|dir| Path::new(dir).join(id.to_string())) {
        if layer_dir::exists(&layout.root().join(&dir))? {
            rename(layout, root, &dir, &trash()?, "move a dead layer to")?;
        }
    }
    Ok(())
}
