//! Moves one staged layer into the store, step by step, and undoes the steps after an error.
//!
//! Every step needs the layers lock. Renames use a private clone of the graph root's mount (`root_mount.rs`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::RenameFlags;

use super::error::{StoreError, io_error};
use super::layers_json::{LayerTable, LayerView, NewLayer};
use super::layout::{LAYERS, Layout, OVERLAY};
use super::lock::LayersLock;
use super::root_mount::rename;
use super::stage::StagedLayer;
use super::store::Store;
use super::{atomic_file, layer_dir};
use crate::oci::LayerId;

/// The move of one layer, with the steps that are done.
pub(super) struct LayerPlacement<'p> {
    store: &'p Store,
    layer: &'p StagedLayer,
    root: &'p OwnedFd,
    /// The symlink `l/<link>`, created or found.
    link: Option<PathBuf>,
    moved: bool,
    tar_split: bool,
}

impl<'p> LayerPlacement<'p> {
    pub(super) fn new(store: &'p Store, layer: &'p StagedLayer, root: &'p OwnedFd) -> Self {
        Self {
            store,
            layer,
            root,
            link: None,
            moved: false,
            tar_split: false,
        }
    }

    /// The layer's id.
    pub(super) fn id(&self) -> LayerId {
        self.layer.spec.id()
    }

    /// The layer's record.
    pub(super) fn record(&self, created: String) -> NewLayer<'p> {
        let layer = self.layer;
        NewLayer::new(&layer.spec, &layer.unpacked, layer.origin, created)
    }

    /// Moves the files into the store, complete; durable once [`sync_names`] has returned.
    pub(super) fn move_into_store(&mut self) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let id = self.layer.spec.id();
        let staged = self.layer.entry.path();
        let overlay_id = Path::new(OVERLAY).join(id.to_string());

        // A directory without a record may exist under this name, with a symlink that leads to it.
        let link = layer_dir::link(layout, &id)?.unwrap_or_default();
        let is_linked = layer_dir::is_linked(layout, &link, &id)?;
        let link = match is_linked {
            true => link,
            false => layer_dir::link_in(&staged)?.unwrap_or_else(layer_dir::new_link),
        };
        let written = self.write_links(&staged, &link)?;
        if layer_dir::exists(&layout.layer(&id))? {
            let trash = self.layer.entry.make_trash_path()?;
            self.rename(&overlay_id, &trash, "move an unrecorded layer to")?;
        }
        self.rename(
            &self.layer.entry.relative_path(),
            &overlay_id,
            "rename a staged layer to",
        )?;
        self.moved = true;
        self.link = Some(layout.links().join(&link));
        if !is_linked {
            layer_dir::make_link(layout, &link, &id)?;
        }
        let tar_split = Path::new(LAYERS).join(format!("{id}.tar-split.gz"));
        self.rename(
            &self.layer.entry.relative_tar_split(),
            &tar_split,
            "rename a staged tar-split to",
        )?;
        self.tar_split = true;
        if written {
            atomic_file::sync_dir(&layout.layer(&id))?;
        }
        Ok(())
    }

    /// Exchanges the layer's directory and tar-split with the staged ones. The old directory ends up in the stage and
    /// is removed with it.
    pub(super) fn replace(&mut self, link: &str) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let id = self.layer.spec.id();
        let staged = self.layer.entry.path();
        self.write_links(&staged, link)?;
        let overlay_id = Path::new(OVERLAY).join(id.to_string());
        let from = self.layer.entry.relative_path();
        if layer_dir::exists(&layout.layer(&id))? {
            rustix::fs::renameat_with(self.root, &from, self.root, &overlay_id, RenameFlags::EXCHANGE)
                .map_err(io_error("exchange a staged layer for", &layout.layer(&id)))?;
        } else {
            self.rename(&from, &overlay_id, "rename a staged layer to")?;
        }
        layer_dir::repair_link(layout, link, &id)?;
        let tar_split = Path::new(LAYERS).join(format!("{id}.tar-split.gz"));
        self.rename(
            &self.layer.entry.relative_tar_split(),
            &tar_split,
            "rename a staged tar-split to",
        )?;
        atomic_file::sync_dir(&layout.layer(&id))?;
        sync_names(layout)
    }

    /// Corrects the record if it differs from the unpacked layer.
    pub(super) fn correct_record(
        &self,
        view: &LayerView,
        lock: &LayersLock,
        table: &mut LayerTable,
    ) -> Result<(), StoreError> {
        let (spec, unpacked) = (&self.layer.spec, &self.layer.unpacked);
        // A record may omit the size.
        let has_size = view.size().is_none_or(|size| size == unpacked.diff_size);
        if view.has_matching_id(&spec.id()) && has_size && view.has_owners(&unpacked.owners) {
            return Ok(());
        }
        let layout = &self.store.layout;
        let json = |error| StoreError::corrupt(&layout.layers_json(), error);
        table.correct(&spec.id(), spec.parent(), unpacked).map_err(json)?;
        table.save(lock, layout)
    }

    /// Writes `link` and `lower` into the staged directory, and sets owner and mode that its root inherits, unless
    /// [`Store::sync_staged`] has done so. Returns whether anything was written.
    fn write_links(&self, staged: &Path, link: &str) -> Result<bool, StoreError> {
        let layout = &self.store.layout;
        let mut written = write_text(&staged.join("link"), link)?;
        if let Some(parent) = self.layer.spec.parent() {
            written |= write_text(&staged.join("lower"), &layer_dir::lower_on(layout, &parent)?)?;
            if layer_dir::inherit_root(&layout.layer(&parent), staged, self.layer.unpacked.has_root)? {
                atomic_file::sync_dir(&staged.join("diff"))?;
            }
        }
        Ok(written)
    }

    /// Moves the files out of the store again. CRI-O removes those that cannot be moved when it starts.
    pub(super) fn undo(&self) {
        let layout = &self.store.layout;
        let id = self.layer.spec.id();
        let overlay_id = Path::new(OVERLAY).join(id.to_string());
        let mut undone = Vec::new();
        if let Some(link) = &self.link {
            undone.push(layer_dir::remove_if_there(link));
        }
        if self.tar_split {
            undone.push(layer_dir::remove_if_there(&layout.tar_split(&id)));
        }
        if self.moved {
            undone.push(self.rename(&overlay_id, &self.layer.entry.relative_path(), "move back"));
        }
        for error in undone.into_iter().filter_map(Result::err) {
            tracing::warn!(layer = %id, %error, "cannot undo a commit that failed");
        }
    }

    fn rename(&self, from: &Path, to: &Path, action: &'static str) -> Result<(), StoreError> {
        rename(&self.store.layout, self.root, from, to, action)
    }
}

/// Syncs the directories with the names of new layers. The first sync does the work, because the directories share
/// one journal of the file system.
pub(super) fn sync_names(layout: &Layout) -> Result<(), StoreError> {
    for dir in [layout.overlay(), layout.links(), layout.layers()] {
        atomic_file::sync_dir(&dir)?;
    }
    Ok(())
}

/// Writes a file in the stage durably. A file that has this text already was written before the sync, or by this
/// function.
fn write_text(path: &Path, text: &str) -> Result<bool, StoreError> {
    if matches!(atomic_file::read(path, text.len() as u64), Ok(Some(bytes)) if bytes == text.as_bytes()) {
        return Ok(false);
    }
    layer_dir::remove_if_there(path)?;
    let file = atomic_file::create(path, 0o644, text.as_bytes())?;
    file.sync_all().map_err(io_error("sync", path))?;
    Ok(true)
}
