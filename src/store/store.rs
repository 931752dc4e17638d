//! Opens a store: examines the graph root, refuses stores of another kind, creates the directories of a new one.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::additional_stores::AdditionalStores;
use super::conf::StorageConf;
use super::durable_layers::DurableLayers;
use super::error::{StoreError, io_error};
use super::images_json::ImageTable;
use super::layers_json::LayerTable;
use super::layout::{IMAGES, LAYERS, Layout, OVERLAY};
use super::{atomic_file, capabilities, layer_dir};
use crate::oci::LayerId;

/// Directories that indicate another storage driver.
const FOREIGN: [&str; 8] = [
    "aufs-layers",
    "btrfs-layers",
    "devicemapper-layers",
    "vfs-layers",
    "zfs-layers",
    // Docker's own stores.
    "overlay2",
    "image",
    "buildkit",
];

/// The longest `.has-mount-program` that is read; its content is `true` or `false`.
const MARK_LIMIT: u64 = 64;

/// A graph root with the overlay driver. The directory may not exist yet.
#[derive(Debug)]
pub struct Store {
    pub(super) layout: Layout,
    pub(super) additional: AdditionalStores,
    sweeps: Sweeps,
    pub(super) durable: DurableLayers,
}

/// Whether files of dead writers were removed; once per process is enough.
#[derive(Debug, Default)]
struct Sweeps {
    layers: AtomicBool,
    images: AtomicBool,
}

impl Store {
    /// Examines the store at `graph_root` and writes nothing. A graph root that does not exist is an empty store.
    ///
    /// # Errors
    /// If the caller is not root, if the store is of a kind that our writes would damage (another driver, a mount
    /// program, id mappings; storage-format.md section 4.8), or if its records do not parse.
    pub fn open(graph_root: &Path, conf: &StorageConf) -> Result<Self, StoreError> {
        capabilities::require_root()?;
        let root = match fs::canonicalize(graph_root) {
            Ok(root) => root,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                std::path::absolute(graph_root).map_err(io_error("find", graph_root))?
            }
            Err(error) => return Err(io_error("find", graph_root)(error)),
        };
        let mut store = Self {
            layout: Layout::new(root),
            additional: AdditionalStores::default(),
            sweeps: Sweeps::default(),
            durable: DurableLayers::default(),
        };
        store.refuse_foreign_conf(conf)?;
        store.additional = AdditionalStores::open(&conf.additional_image_stores, store.layout.root())?;
        if !store.exists()? {
            return Ok(store);
        }
        store.refuse_foreign_directories()?;
        LayerTable::read(&store.layout)?;
        ImageTable::read(&store.layout)?;
        Ok(store)
    }

    /// The graph root, without symlinks if it exists.
    pub fn graph_root(&self) -> &Path {
        self.layout.root()
    }

    /// All stores, in the order of the search.
    pub(super) fn layouts(&self) -> impl Iterator<Item = &Layout> {
        std::iter::once(&self.layout).chain(&self.additional.layouts)
    }

    /// Warnings about the additional image stores.
    pub fn warnings(&self) -> &[String] {
        &self.additional.warnings
    }

    /// The store from which the driver takes a layer's directory: the graph root if it has one, otherwise the first
    /// additional store that has one (containers/storage `overlay.go`: `dir2`).
    pub(super) fn layout_with(&self, id: &LayerId) -> &Layout {
        let has = |layout: &&Layout| layout.layer(id).exists();
        match has(&&self.layout) {
            true => &self.layout,
            false => self.additional.layouts.iter().find(has).unwrap_or(&self.layout),
        }
    }

    /// Creates the directories that containers/storage needs to find a store (section 1). Existing ones are left
    /// unchanged. Every write to a store starts with this call.
    ///
    /// # Errors
    /// If the caller lacks a capability that layers need, or a system call fails.
    pub fn create_if_missing(&self) -> Result<(), StoreError> {
        let root = self.layout.root();
        let missing = capabilities::missing().map_err(io_error("ask for the rights to write", root))?;
        if !missing.is_empty() {
            let root = root.to_owned();
            return Err(StoreError::Rights { root, missing });
        }
        if let Some(parent) = root.parent() {
            // The process has no umask. Directories above the root are not synced before the first commit: losing
            // them loses an empty store only.
            let created = DirBuilder::new().recursive(true).mode(0o755).create(parent);
            created.map_err(io_error("create", parent))?;
        }
        let dirs = [
            (root.to_owned(), 0o700),
            (self.layout.overlay(), 0o700),
            (self.layout.links(), layer_dir::LINKS_MODE),
            (self.layout.layers(), 0o700),
            (self.layout.images(), 0o700),
        ];
        for (dir, mode) in dirs {
            if atomic_file::create_dir(&dir, mode)? {
                tracing::debug!(path = %dir.display(), "created a directory of the store");
                if let Some(parent) = dir.parent() {
                    atomic_file::sync_dir(parent)?;
                }
            }
        }
        let (mark, records) = (self.mount_program_mark(), self.layout.layers_json());
        // Without records the store has no layer yet, and the program that created the directories may have died
        // before this.
        if !layer_dir::exists(&mark)? && !layer_dir::exists(&records)? {
            // If this file is missing, containers/storage looks for names like `.wh.x` in the layers, takes them for
            // whiteouts of fuse-overlayfs, and concludes that the store needs a mount program (observed with podman
            // 4.3.1 and 5.4.2).
            atomic_file::write(&mark, b"false")?;
        }
        self.refuse_foreign_directories()
    }

    /// Syncs stored `layers`, and everything that belongs to them, to the disk, whichever program stored them. Costs
    /// nothing if this program did.
    ///
    /// # Errors
    /// Also if the system failed to write anything else on this file system since the call began.
    pub fn make_durable(&self, layers: &[LayerId]) -> Result<(), StoreError> {
        if self.durable.has_all(layers) {
            return Ok(());
        }
        let root = self.layout.root();
        let opened = fs::File::open(root).map_err(io_error("open", root))?;
        rustix::fs::syncfs(opened).map_err(io_error("sync the file system of", root))?;
        self.durable.add(layers);
        Ok(())
    }

    /// True for the first caller, which then sweeps overlay-layers.
    pub(super) fn first_sweep_of_layers(&self) -> bool {
        !self.sweeps.layers.swap(true, Ordering::Relaxed)
    }

    /// True for the first caller, which then sweeps overlay-images.
    pub(super) fn first_sweep_of_images(&self) -> bool {
        !self.sweeps.images.swap(true, Ordering::Relaxed)
    }

    fn mount_program_mark(&self) -> PathBuf {
        self.layout.overlay().join(".has-mount-program")
    }

    fn exists(&self) -> Result<bool, StoreError> {
        let root = self.layout.root();
        match fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => Ok(true),
            Ok(_) => Err(self.unsupported("it is not a directory", "set the graph root, see `podman info`")),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error("examine", root)(error)),
        }
    }

    fn refuse_foreign_conf(&self, conf: &StorageConf) -> Result<(), StoreError> {
        if conf.unsupported.is_empty() {
            return Ok(());
        }
        Err(self.unsupported(
            conf.unsupported.join("; "),
            "layers written without these settings would differ from the node's",
        ))
    }

    fn refuse_foreign_directories(&self) -> Result<(), StoreError> {
        let root = self.layout.root();
        if !root.join(OVERLAY).exists() {
            let Some(foreign) = FOREIGN.iter().find(|name| root.join(name).exists()) else {
                return Ok(());
            };
            let reason =
                format!("it has `{foreign}` and no `{OVERLAY}`, so it belongs to another storage driver");
            return Err(self.unsupported(
                reason,
                "only the driver `overlay` of containers/storage is supported",
            ));
        }
        let mark = self.mount_program_mark();
        if atomic_file::read(&mark, MARK_LIMIT)?.is_some_and(|mark| mark.trim_ascii() == b"true") {
            let reason = format!("`{}` states that a mount program is used", mark.display());
            return Err(self.unsupported(reason, "only the kernel's overlayfs is supported"));
        }
        let device = fs::metadata(root).map_err(io_error("examine", root))?.dev();
        for name in [OVERLAY, LAYERS, IMAGES] {
            let path: PathBuf = root.join(name);
            let metadata = match fs::symlink_metadata(&path) {
                Ok(metadata) => metadata,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("examine", &path)(error)),
            };
            if !metadata.is_dir() {
                let reason = format!("`{}` is not a directory", path.display());
                return Err(self.unsupported(
                    reason,
                    "layers are renamed into this directory, so it must not be a symlink",
                ));
            }
            if metadata.dev() != device {
                let reason = format!(
                    "`{}` is on another file system than the graph root",
                    path.display()
                );
                return Err(self.unsupported(
                    reason,
                    "layers are renamed into this directory, so it must be on the same file system",
                ));
            }
        }
        Ok(())
    }

    fn unsupported(&self, reason: impl Into<String>, hint: &'static str) -> StoreError {
        StoreError::Unsupported {
            root: self.layout.root().to_owned(),
            reason: reason.into(),
            hint,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::type_complexity)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn open(root: &Path) -> Result<Store, StoreError> {
        Store::open(root, &StorageConf::default())
    }

    /// Every name under `dir`, to verify that nothing was written.
    fn names(dir: &Path) -> Vec<PathBuf> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            names.push(entry.path());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                names.extend(self::names(&entry.path()));
            }
        }
        names.sort();
        names
    }

    #[test]
    fn a_new_store_has_the_directories_and_modes_of_containers_storage() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("containers/storage");
        let store = open(&root).unwrap();
        assert!(!root.exists());
        store.create_if_missing().unwrap();
        store.create_if_missing().unwrap();
        let modes = ["", "overlay", "overlay/l", "overlay-layers", "overlay-images"]
            .map(|name| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777);
        assert_eq!(modes, [0o700, 0o700, 0o755, 0o700, 0o700]);
        assert_eq!(names(&root).len(), 5);
        let mark = root.join("overlay/.has-mount-program");
        assert_eq!(fs::read(&mark).unwrap(), b"false");
        // A run that is killed between the two steps leaves this state.
        fs::remove_file(&mark).unwrap();
        store.create_if_missing().unwrap();
        assert_eq!(fs::read(&mark).unwrap(), b"false");
    }

    #[test]
    fn a_store_that_we_cannot_write_is_refused_and_left_alone() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let cases: [(&str, fn(&Path)); 6] = [
            ("another storage driver", |root| {
                fs::create_dir(root.join("vfs-layers")).unwrap()
            }),
            ("mount program", |root| {
                fs::create_dir(root.join("overlay")).unwrap();
                fs::write(root.join("overlay/.has-mount-program"), "true").unwrap();
            }),
            ("is not a directory", |root| {
                std::os::unix::fs::symlink("/tmp", root.join("overlay")).unwrap()
            }),
            ("another file system", |root| {
                fs::create_dir(root.join("overlay")).unwrap();
                // proc is a file system that is always there, and nothing is written to it.
                let mounted = std::process::Command::new("mount")
                    .args(["-t", "proc", "proc"])
                    .arg(root.join("overlay"))
                    .status();
                assert!(mounted.unwrap().success());
            }),
            ("damaged", |root| {
                fs::create_dir_all(root.join("overlay-layers")).unwrap();
                fs::write(root.join("overlay-layers/layers.json"), r#"[{"id":"a"}"#).unwrap();
            }),
            ("damaged", |root| {
                fs::create_dir_all(root.join("overlay-images")).unwrap();
                fs::write(root.join("overlay-images/images.json"), r#"[{"id":1}]"#).unwrap();
            }),
        ];
        for (expected, arrange) in cases {
            let dir = tempfile::tempdir().unwrap();
            arrange(dir.path());
            let mounted = expected == "another file system";
            let before = if mounted { Vec::new() } else { names(dir.path()) };
            let refusal = open(dir.path())
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            if mounted {
                let unmounted = std::process::Command::new("umount")
                    .arg(dir.path().join("overlay"))
                    .status();
                assert!(unmounted.unwrap().success());
            } else {
                assert_eq!(names(dir.path()), before);
            }
            assert!(refusal.contains(expected), "{expected}: {refusal}");
        }
    }

    #[test]
    fn a_configuration_that_we_do_not_honour_is_refused() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        for text in [
            "[storage]\ndriver = \"vfs\"",
            "[storage]\nimagestore = \"/i\"",
            "[storage.options.overlay]\nmount_program = \"/usr/bin/fuse-overlayfs\"",
            "[storage.options.overlay]\nforce_mask = \"shared\"",
            "[storage.options.overlay]\nuse_composefs = \"true\"",
            "[storage.options.overlay]\nignore_chown_errors = \"true\"",
            "[storage.options]\nremap-user = \"storage\"",
        ] {
            let refused = Store::open(
                Path::new("/nonexistent/store"),
                &StorageConf::parse(text).unwrap(),
            );
            assert!(matches!(refused, Err(StoreError::Unsupported { .. })), "{text}");
        }
        let conf = StorageConf::parse("[storage]\ndriver = \"overlay2\"").unwrap();
        assert!(Store::open(Path::new("/nonexistent/store"), &conf).is_ok());
    }
}
