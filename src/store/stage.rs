//! Provides a private directory in the graph root, where layers are unpacked before they are committed.
//!
//! ```text
//! <graph root>/.spoke-precache-stage-<random>/       0700, with the SELinux label of overlay/
//!   lock                                             held as long as the stage lives
//!   <n>-<layer id>/{diff,work,merged,empty}          becomes overlay/<layer id>
//!   <n>-<layer id>.tar-split.gz                      becomes overlay-layers/<layer id>.tar-split.gz
//!   <n>-<image id>/<big data>                        becomes overlay-images/<image id>
//!   <layer id>.layer, <image id>.image               empty; says what may be in the store without a record
//!   (no name)                                        scratch files, while deltas are applied
//! ```
//!
//! It is next to `overlay/` and not inside it, because every version of containers/storage removes unknown
//! directories from `overlay/` (storage-format.md section 9.1). The stage of a killed run is removed by the next run,
//! which finds its lock free; so are the layers and images that it was about to record (`unrecorded.rs`). Dropping a
//! layer removes it. Dropping the stage and all its layers removes the stage.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::error::{StoreError, io_error};
use super::stage_dir::{StageDir, sweep};
use super::store::Store;
use super::unpacked_layer::{Compression, LayerOrigin, UnpackedLayer};
use super::{atomic_file, layer_dir, tree_removal};
use crate::oci::Layer;
use crate::scratch_file;
use crate::write_back::WriteQueue;

/// How often a new name is tried. Each failure needs a run that removes dead stages in the microseconds between the
/// creation of the directory and its lock.
const ATTEMPTS: usize = 100;

/// A private directory of this run in the graph root. Threads may share it.
#[derive(Debug)]
pub struct Stage {
    dir: Arc<StageDir>,
    serial: AtomicU64,
}

/// A layer that is being unpacked.
#[derive(Debug)]
pub struct StagingLayer {
    entry: StageEntry,
    spec: Layer,
}

/// A layer that is unpacked, complete and verified. [`Store::commit_layers`] consumes it.
#[derive(Debug)]
pub struct StagedLayer {
    pub(super) entry: StageEntry,
    pub(super) spec: Layer,
    pub(super) unpacked: UnpackedLayer,
    /// What its record states about the blob.
    pub(super) origin: LayerOrigin,
    /// Whether the file system was synced after its last byte was written.
    pub(super) is_synced: bool,
}

/// The files of one layer in its stage; removes them when dropped.
#[derive(Debug)]
pub(super) struct StageEntry {
    dir: Arc<StageDir>,
    name: String,
}

impl Store {
    /// Removes the stages of dead runs, which may be as large as the layers they were about to store.
    pub(super) fn remove_dead_stages(&self) {
        sweep(&self.layout);
    }

    /// Creates a stage, and removes those of dead runs. The store must exist. Files of layers are added to the queue.
    pub fn stage(&self, write_queue: &WriteQueue) -> Result<Stage, StoreError> {
        let root = self.layout.root();
        self.remove_dead_stages();
        for _ in 0..ATTEMPTS {
            if let Some(dir) = StageDir::create(root, &self.layout.overlay(), write_queue)? {
                return Ok(Stage {
                    dir: Arc::new(dir),
                    serial: AtomicU64::new(0),
                });
            }
        }
        Err(io_error("create a stage in", root)(Errno::AGAIN))
    }
}

impl Stage {
    /// Creates the directory for a layer. Every call creates another one, also for the same layer.
    pub fn layer(&self, spec: Layer) -> Result<StagingLayer, StoreError> {
        let entry = self.entry(&spec.id().to_string());
        let path = entry.path();
        atomic_file::create_dir(&path, 0o700)?;
        atomic_file::create_dir(&path.join("diff"), BASE_MODE)?;
        layer_dir::make_empty_dirs(&path, spec.parent().is_none())?;
        Ok(StagingLayer { entry, spec })
    }

    pub(super) fn entry(&self, id: &str) -> StageEntry {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        StageEntry {
            dir: Arc::clone(&self.dir),
            name: format!("{serial}-{id}"),
        }
    }

    /// A scratch file on the file system of the store.
    pub fn scratch_file(&self) -> io::Result<File> {
        scratch_file::create(&self.dir.fd)
    }
}

/// The mode of `diff` in a base layer, whatever the tar's `./` entry states. The mode of other layers is set at the
/// commit (`layer_dir.rs`).
pub(super) const BASE_MODE: u32 = 0o555;

impl StagingLayer {
    /// The layer's description.
    pub fn spec(&self) -> &Layer {
        &self.spec
    }

    /// The directory to unpack into.
    pub fn open_diff(&self) -> Result<OwnedFd, StoreError> {
        self.entry.open_diff()
    }

    /// Where to add the files of the layer.
    pub fn write_queue(&self) -> &WriteQueue {
        &self.entry.dir.write_queue
    }

    /// Creates the file for the tar-split, empty.
    pub fn create_tar_split(&self) -> Result<File, StoreError> {
        let path = self.entry.tar_split_path();
        let created = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path);
        created.map_err(io_error("create", &path))
    }

    /// Accepts the layer if its tar has the diffID from the image's config.
    pub fn finish(self, unpacked: UnpackedLayer) -> Result<StagedLayer, StoreError> {
        if unpacked.diff_id != self.spec.diff_id() {
            return Err(StoreError::ContentMismatch {
                layer: self.spec.id(),
                expected: self.spec.diff_id(),
                found: unpacked.diff_id,
            });
        }
        Ok(StagedLayer {
            entry: self.entry,
            spec: self.spec,
            origin: LayerOrigin::Blob(unpacked.compression),
            unpacked,
            is_synced: false,
        })
    }
}

impl StagedLayer {
    /// The layer's description.
    pub fn spec(&self) -> &Layer {
        &self.spec
    }

    /// Notes that the layer was made without its blob, for instance from a delta: only the manifest states the blob's
    /// digest, length and compression. If the manifest is authenticated, the record repeats them. Otherwise it omits them:
    /// they could name a blob of another image, which then would get this layer instead of its own.
    pub fn with_unseen_blob(self, is_authenticated: bool) -> Self {
        let origin = match is_authenticated {
            true => LayerOrigin::Blob(Compression::of_media_type(&self.spec.media_type)),
            false => LayerOrigin::Unknown,
        };
        Self { origin, ..self }
    }

    /// The directory of its contents, for reading. It stays the same directory when the layer is committed.
    pub fn open_diff(&self) -> Result<OwnedFd, StoreError> {
        self.entry.open_diff()
    }
}

impl StageEntry {
    pub(super) fn path(&self) -> PathBuf {
        self.dir.path.join(&self.name)
    }

    fn diff_path(&self) -> PathBuf {
        self.path().join("diff")
    }

    fn open_diff(&self) -> Result<OwnedFd, StoreError> {
        let path = self.diff_path();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty()).map_err(io_error("open", &path))
    }

    pub(super) fn tar_split_path(&self) -> PathBuf {
        self.dir.path.join(self.tar_split_name())
    }

    /// The layer's directory, relative to the graph root.
    pub(super) fn relative_path(&self) -> PathBuf {
        Path::new(&self.dir.name).join(&self.name)
    }

    /// The tar-split, relative to the graph root.
    pub(super) fn relative_tar_split(&self) -> PathBuf {
        Path::new(&self.dir.name).join(self.tar_split_name())
    }

    /// Notes that the entry is about to be moved into the store, where it has no record at first. The note must be
    /// durable before the move. It stays as long as the stage, because several entries may have the same id.
    pub(super) fn announce(&self, note: &str) -> Result<(), StoreError> {
        let path = self.dir.path.join(note);
        match atomic_file::create(&path, 0o600, b"") {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => created.map(|_| ()),
        }
    }

    /// A new path in the stage to move a directory to, so that it can be removed after the lock is released; relative
    /// to the graph root.
    pub(super) fn make_trash_path(&self) -> Result<PathBuf, StoreError> {
        atomic_file::create_dir(&self.dir.path.join(self.trash_name()), 0o700)?;
        let trash = format!("{:016x}", rand::random::<u64>());
        Ok([self.dir.name.as_str(), &self.trash_name(), &trash]
            .iter()
            .collect())
    }

    /// Syncs the whole file system. One call for many layers is faster than a sync of each file (0.35 s for 591 MB),
    /// but it also waits for the writes of all other programs.
    pub(super) fn sync_file_system(&self) -> Result<(), StoreError> {
        let written = self.dir.write_queue.drain();
        written.map_err(io_error("write the files of", &self.dir.path))?;
        rustix::fs::syncfs(&self.dir.fd).map_err(io_error("sync the file system of", &self.dir.path))
    }

    fn tar_split_name(&self) -> String {
        format!("{}.tar-split.gz", self.name)
    }

    fn trash_name(&self) -> String {
        format!("{}.removed", self.name)
    }
}

impl Drop for StageEntry {
    fn drop(&mut self) {
        self.clear();
    }
}

impl StageEntry {
    /// Removes what is left of the layer.
    pub(super) fn clear(&self) {
        for name in [self.name.clone(), self.tar_split_name(), self.trash_name()] {
            let removed = CString::new(name.as_str()).map_err(|_| Errno::INVAL);
            if let Err(error) = removed.and_then(|name| tree_removal::remove_tree(self.dir.fd.as_fd(), &name))
            {
                tracing::warn!(stage = %self.dir.path.display(), name, %error, "cannot remove a staged layer");
            }
        }
    }
}
