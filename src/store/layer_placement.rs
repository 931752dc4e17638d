//! Moves one staged layer into the store, step by step, and undoes the steps after an error.
//!
//! Every step needs the layers lock, which `layer_commit.rs` holds. Renames use a private clone of the graph root's
//! mount: containers/storage may have bind-mounted `overlay/` onto itself, and a rename between two mounts fails with
//! EXDEV although the file system is the same (`rename(2)`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use rustix::mount::OpenTreeFlags;

use super::error::{StoreError, io_error};
use super::layers_json::{LayerTable, LayerView, NewLayer};
use super::layout::{LAYERS, OVERLAY};
use super::lock::LayersLock;
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

    /// The layer's record, with the flag `incomplete`.
    pub(super) fn record(&self, created: String) -> NewLayer<'p> {
        let layer = self.layer;
        NewLayer::new(&layer.spec, &layer.unpacked, layer.origin, created)
    }

    /// Deletes the layers of dead writers, as containers/storage does when it reads the file. Versions before 1.57
    /// handle one incomplete record at a time, so a second one next to ours would be misread.
    pub(super) fn delete_incomplete(&self, table: &mut LayerTable) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let dead: Vec<LayerId> = table
            .views()
            .filter(|view| !view.is_complete())
            .filter_map(|view| LayerId::from_hex(&view.id))
            .collect();
        for id in dead {
            tracing::info!(layer = %id, "deleting a layer whose writer died");
            if let Some(link) = layer_dir::link(layout, &id)?
                && layer_dir::is_linked(layout, &link, &id)?
            {
                layer_dir::remove_if_there(&layout.links().join(link))?;
            }
            layer_dir::remove_if_there(&layout.tar_split(&id))?;
            for dir in [OVERLAY, LAYERS].map(|dir| Path::new(dir).join(id.to_string())) {
                if layer_dir::exists(&layout.root().join(&dir))? {
                    self.rename(&dir, &self.layer.entry.make_trash_path()?, "move a dead layer to")?;
                }
            }
            table.remove(&id);
        }
        Ok(())
    }

    /// Moves the files into the store, complete and durable.
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
        self.sync_names()
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
        self.sync_names()
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

    /// Syncs the directories with the names of a new layer. The first sync does the work, because the directories
    /// share one journal of the file system.
    fn sync_names(&self) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        for dir in [layout.overlay(), layout.links(), layout.layers()] {
            atomic_file::sync_dir(&dir)?;
        }
        Ok(())
    }

    /// Moves the files out of the store again. Files that cannot be removed here are removed with the incomplete
    /// record by the next program that reads the store.
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

    /// Removes the staged files to free their space.
    pub(super) fn discard(&self) {
        self.layer.entry.clear();
    }

    fn rename(&self, from: &Path, to: &Path, action: &'static str) -> Result<(), StoreError> {
        rustix::fs::renameat(self.root, from, self.root, to)
            .map_err(io_error(action, &self.store.layout.root().join(to)))
    }
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

/// Clones the mount of the graph root, without the mounts below it. No other process sees the clone.
pub(super) fn clone_mount(root: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match rustix::mount::open_tree(rustix::fs::CWD, root, flags) {
        Ok(clone) => Ok(clone),
        // Before Linux 5.2, or without CAP_SYS_ADMIN. If `overlay/` is mounted onto itself, the first rename fails.
        Err(error @ (Errno::NOSYS | Errno::PERM)) => {
            tracing::warn!(%error, "cannot clone the mount of the graph root, renaming in the existing mounts");
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(root, flags, Mode::empty()).map_err(io_error("open", root))
        }
        Err(error) => Err(io_error("clone the mount of", root)(error)),
    }
}
