//! Making a staged layer visible.
//!
//! The protocol of storage-format.md section 9.2, P2 and P3. For each layer, under the layers lock, for milliseconds:
//! a record that says `incomplete`; `link` and `lower`; one rename into `overlay/`; the symlink; the tar-split; syncs;
//! the record without the flag. Whoever dies on the way leaves an incomplete record, which any program that reads the
//! store next deletes with all that belongs to it. An error on the way is undone here, under the same lock.
//!
//! Renames go through a private clone of the graph root's mount: containers/storage may have bind-mounted `overlay/` on
//! itself, and between two mounts a rename is EXDEV although the file system is one.

use std::fs::{self, File, Permissions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::OpenTreeFlags;

use super::error::{StoreError, io_error};
use super::layer_dir::{self, Flaw, find_flaw};
use super::layers::{LayerTable, NewLayer};
use super::layout::{LAYERS, OVERLAY};
use super::lock::LayersLock;
use super::stage::{BASE_MODE, StagedLayer};
use super::store::Store;
use super::{atomic, time};
use crate::cancel::Cancel;
use crate::oci::LayerId;

/// What became of a layer.
#[derive(Debug)]
pub enum LayerCommit {
    /// It is in the store now.
    Committed,
    /// Somebody else had put it there before; the staged copy was dropped.
    AlreadyThere,
    /// The layer below is not in the store, or no longer. It is to be staged and committed first; then this one, which
    /// is given back.
    ParentMissing(Box<StagedLayer>),
}

impl Store {
    /// Puts layers into the store, in the order given, parents before children. The batch is made durable at once; each
    /// layer is whole and visible as soon as its turn is over.
    ///
    /// `cancel` ends the wait for the lock and nothing else.
    ///
    /// # Errors
    /// At the first layer that cannot be committed. Those before it are in the store, it and those after it are not, and
    /// the store is sound.
    pub fn commit_layers(
        &self,
        layers: Vec<StagedLayer>,
        cancel: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, StoreError> {
        let Some(first) = layers.first() else {
            return Ok(Vec::new());
        };
        first.entry.sync_file_system()?;
        let root = clone_mount(self.layout.root())?;
        let commit = |layer: StagedLayer| Ok((layer.spec.id(), self.commit_layer(layer, &root, cancel)?));
        layers.into_iter().map(commit).collect()
    }

    fn commit_layer(
        &self,
        layer: StagedLayer,
        root: &OwnedFd,
        cancel: &Cancel,
    ) -> Result<LayerCommit, StoreError> {
        let id = layer.spec.id();
        let lock = LayersLock::acquire(&self.layout, cancel)?;
        if self.first_sweep_of_layers() {
            atomic::sweep(&self.layout.layers(), "layers.json");
        }
        let mut table = LayerTable::read(&self.layout)?;
        let recorded = self.examine(&table, &layer)?;
        if recorded == Recorded::Whole {
            return Ok(LayerCommit::AlreadyThere);
        }
        if let Some(parent) = layer.spec.parent()
            && !self.is_usable(&table, &parent)?
        {
            return Ok(LayerCommit::ParentMissing(Box::new(layer)));
        }
        if recorded == Recorded::WithoutFrame {
            tracing::warn!(layer = %id, "mending a layer of the store that could not have been mounted");
            layer_dir::mend(&self.layout, &id, layer.spec.parent())?;
            return Ok(LayerCommit::AlreadyThere);
        }
        let mut placement = Placement::new(self, &layer, root);
        let placed = match recorded {
            // The record stays as it is: children and images rely on it, and a crash leaves no more damage than there is.
            Recorded::WithoutDiff => {
                tracing::warn!(layer = %id, "putting back the files of a layer that the store had lost");
                placement.place(true)
            }
            _ => placement.record_and_place(&lock, &mut table),
        };
        if let Err(error) = placed {
            placement.undo();
            if recorded == Recorded::No {
                table.remove(&id);
                if let Err(error) = table.save(&lock, &self.layout) {
                    // An incomplete record is deleted by whoever reads the store next.
                    tracing::warn!(layer = %id, %error, "cannot take back the record of a layer that could not be stored");
                }
            }
            return Err(error);
        }
        // The point of no return was the last save; dropping `layer` removes what was in the way, without the lock.
        drop(lock);
        Ok(LayerCommit::Committed)
    }

    /// True if `id` is recorded, complete and such that a child can be mounted on it.
    pub(super) fn is_usable(&self, table: &LayerTable, id: &LayerId) -> Result<bool, StoreError> {
        let Some(view) = table
            .find(id)
            .filter(|view| view.is_complete() && !view.is_mapped())
        else {
            return Ok(false);
        };
        Ok(find_flaw(&self.layout, id, view.parent().is_some())?.is_none())
    }

    fn examine(&self, table: &LayerTable, layer: &StagedLayer) -> Result<Recorded, StoreError> {
        let id = layer.spec.id();
        let conflict = |reason: String| StoreError::Conflict {
            what: format!("layer {id}"),
            reason,
        };
        if table.is_volatile(&id) {
            return Err(conflict("a container's layer has this id".into()));
        }
        // An incomplete one is a dead writer's, for we hold the lock.
        let Some(view) = table.find(&id).filter(|view| view.is_complete()) else {
            return Ok(Recorded::No);
        };
        if view.is_mapped() {
            return Err(conflict("its files have mapped owners".into()));
        }
        let parent = layer.spec.parent().map(|parent| parent.to_string());
        if view.parent() != parent.as_deref() {
            return Err(conflict(format!(
                "its parent is {}",
                view.parent().unwrap_or("none")
            )));
        }
        match find_flaw(&self.layout, &id, parent.is_some())? {
            None => Ok(Recorded::Whole),
            Some(Flaw::Diff) => Ok(Recorded::WithoutDiff),
            Some(Flaw::Frame(_)) => Ok(Recorded::WithoutFrame),
            Some(flaw @ Flaw::Foreign(_)) => Err(conflict(flaw.to_string())),
        }
    }
}

/// What the store has of a layer that is to be committed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Recorded {
    /// No record, or that of a dead writer.
    No,
    /// Everything.
    Whole,
    /// The record and the files, but nothing to mount them by.
    WithoutFrame,
    /// The record alone.
    WithoutDiff,
}

/// One layer on its way, and how far it got.
struct Placement<'p> {
    store: &'p Store,
    layer: &'p StagedLayer,
    root: &'p OwnedFd,
    /// The symlink that was made.
    link: Option<PathBuf>,
    /// Where the directory went that was in the way.
    replaced: Option<PathBuf>,
    moved: bool,
    tar_split: bool,
}

impl<'p> Placement<'p> {
    fn new(store: &'p Store, layer: &'p StagedLayer, root: &'p OwnedFd) -> Self {
        Self {
            store,
            layer,
            root,
            link: None,
            replaced: None,
            moved: false,
            tar_split: false,
        }
    }

    fn record_and_place(&mut self, lock: &LayersLock, table: &mut LayerTable) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let spec = &self.layer.spec;
        self.bury_incomplete(table)?;
        let created = time::now();
        let mut record = NewLayer::new(
            spec.id(),
            spec.parent(),
            spec.blob(),
            spec.blob_size(),
            &self.layer.unpacked,
            created,
        );
        let json = |error| StoreError::corrupt(&layout.layers_json(), error);
        table.put(&record).map_err(json)?;
        table.save(lock, layout)?;
        self.place(false)?;
        record.flags = None;
        table.put(&record).map_err(json)?;
        table.save(lock, layout)
    }

    /// Deletes the layers of dead writers, as containers/storage does when it reads the file. Left beside our own
    /// incomplete record, they would be misread by versions before 1.57, which handle one at a time.
    fn bury_incomplete(&self, table: &mut LayerTable) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let dead: Vec<LayerId> = table
            .views()
            .filter(|view| !view.is_complete())
            .filter_map(|view| LayerId::from_hex(&view.id))
            .collect();
        for id in dead {
            tracing::info!(layer = %id, "deleting a layer whose writer died");
            if let Some(link) = layer_dir::link(layout, &id)? {
                layer_dir::remove_if_there(&layout.links().join(link))?;
            }
            layer_dir::remove_if_there(&layout.tar_split(&id))?;
            for dir in [OVERLAY, LAYERS].map(|dir| Path::new(dir).join(id.to_string())) {
                if layer_dir::exists(&layout.root().join(&dir))? {
                    self.rename(&dir, &self.layer.entry.make_grave()?, "move a dead layer to")?;
                }
            }
            table.remove(&id);
        }
        Ok(())
    }

    /// Puts the files in their place, complete and durable. `known`: others may refer to the layer, by the link that it
    /// had.
    fn place(&mut self, known: bool) -> Result<(), StoreError> {
        let layout = &self.store.layout;
        let id = self.layer.spec.id();
        let staged = self.layer.entry.path();
        let overlay_id = Path::new(OVERLAY).join(id.to_string());

        let mut link = layer_dir::link(layout, &id)?;
        if link.is_none() && known {
            link = layer_dir::find_link(layout, &id)?;
        }
        let link = link.unwrap_or_else(layer_dir::new_link);
        layer_dir::remove_if_there(&staged.join("link"))?;
        atomic::create(&staged.join("link"), 0o644, link.as_bytes())?;
        if let Some(parent) = self.layer.spec.parent() {
            layer_dir::remove_if_there(&staged.join("lower"))?;
            atomic::create(
                &staged.join("lower"),
                0o644,
                layer_dir::lower_on(layout, &parent)?.as_bytes(),
            )?;
            inherit_mode(&layout.layer(&parent).join("diff"), &staged.join("diff"))?;
        }
        if layer_dir::exists(&layout.layer(&id))? {
            let grave = self.layer.entry.make_grave()?;
            self.rename(&overlay_id, &grave, "move what was in the way to")?;
            self.replaced = Some(grave);
        }
        self.rename(
            &self.layer.entry.relative_path(),
            &overlay_id,
            "rename a staged layer to",
        )?;
        self.moved = true;
        if !layer_dir::link_leads_to(layout, &link, &id)? {
            let path = layout.links().join(&link);
            layer_dir::remove_if_there(&path)?;
            layer_dir::make_link(layout, &link, &id)?;
            self.link = Some(path);
        }
        let tar_split = Path::new(LAYERS).join(format!("{id}.tar-split.gz"));
        self.rename(
            &self.layer.entry.relative_tar_split(),
            &tar_split,
            "rename a staged tar-split to",
        )?;
        self.tar_split = true;
        for dir in [
            layout.layer(&id),
            layout.overlay(),
            layout.links(),
            layout.layers(),
        ] {
            atomic::sync_dir(&dir)?;
        }
        Ok(())
    }

    /// Takes everything out of others' sight again. What fails here is removed with the incomplete record by others.
    fn undo(&self) {
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
            undone.push(self.rename(&overlay_id, &self.layer.entry.relative_path(), "take back"));
        }
        if let Some(replaced) = &self.replaced {
            undone.push(self.rename(replaced, &overlay_id, "put back"));
        }
        for error in undone.into_iter().filter_map(Result::err) {
            tracing::warn!(layer = %id, %error, "cannot undo a commit that failed");
        }
    }

    fn rename(&self, from: &Path, to: &Path, action: &'static str) -> Result<(), StoreError> {
        rustix::fs::renameat(self.root, from, self.root, to)
            .map_err(io_error(action, &self.store.layout.root().join(to)))
    }
}

/// A child's root has the mode of its parent's, unless its tar has an entry `/` of its own, which changed it.
fn inherit_mode(parent: &Path, child: &Path) -> Result<(), StoreError> {
    let mode = |path: &Path| match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.permissions().mode() & 0o7777),
        Err(error) => Err(io_error("examine", path)(error)),
    };
    let inherited = mode(parent)?;
    if mode(child)? != BASE_MODE || inherited == BASE_MODE {
        return Ok(());
    }
    fs::set_permissions(child, Permissions::from_mode(inherited))
        .map_err(io_error("set the mode of", child))?;
    File::open(child)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("sync", child))
}

/// The graph root in a mount of its own that nobody else sees, without whatever is mounted below it.
fn clone_mount(root: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    rustix::mount::open_tree(rustix::fs::CWD, root, flags).map_err(io_error("clone the mount of", root))
}
