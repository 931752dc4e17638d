//! Reads and writes the files of a layer's directory `overlay/<id>`: `diff`, `link`, `lower`, `work`, `merged`,
//! `empty`.
//!
//! ```text
//! overlay/<id>/        0700
//!   diff/              the layer; 0555 for a base layer, the parent's owner and mode for another
//!   link        0644   26 characters, no newline: the link name, short because all mount options must fit in a page
//!   lower       0644   l/<parent's link>[:<parent's lower>], no newline; only with a parent
//!   work/ merged/      0700, empty, of the same owner as diff/ before its tar is unpacked
//!   empty/             0700, empty; only without a parent
//! overlay/l/<link>     → ../<id>/diff
//! ```
//!
//! An entry `./` in a tar does not affect `diff/`; an entry that is literally named `/` sets its owner, mode and
//! attributes. A layer above inherits from its parent as in containers/storage since 1.47 (podman since 4.6, CRI-O
//! since 1.28): owner and mode of the parent's `diff/` for `diff/`, and the owner for `work/` and `merged/`. Before
//! 1.47 only the mode was inherited, with owner 0:0. Both versions accept either: a mount for writing sets the owner
//! of its `diff/` to 0:0 anyway.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use super::atomic_file;
use super::error::{StoreError, io_error};
use super::layout::Layout;
use crate::oci::LayerId;

/// The alphabet of link names (base32).
const LINK_ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// The length of link names: 130 random bits.
const LINK_LEN: usize = 26;

/// The mode of the directory of link names.
pub(super) const LINKS_MODE: u32 = 0o755;

/// The longest `link` or `lower` that is read: 500 parents of 29 bytes are 14,500.
const TEXT_LIMIT: u64 = 1 << 20;

/// The deepest chain that containers/storage mounts (since 1.44; `overlay.go`: `maxDepth`).
pub(super) const DEPTH_LIMIT: usize = 500;

/// Files that only another kind of store creates in a layer's directory.
pub(super) const FOREIGN: [&str; 2] = ["additionallayer", "composefs-data"];

/// Describes why CRI-O could not mount a layer that its record calls complete; `None` if it could.
pub(super) fn find_flaw(
    layout: &Layout,
    id: &LayerId,
    has_parent: bool,
) -> Result<Option<String>, StoreError> {
    let missing = |name: &str| Ok(Some(format!("its `{name}` is missing or wrong")));
    let dir = layout.layer(id);
    if !is_dir(&dir.join("diff"))? {
        return missing("diff");
    }
    for foreign in FOREIGN {
        if exists(&dir.join(foreign))? {
            return Ok(Some(format!(
                "it has `{foreign}`, which only another kind of store creates"
            )));
        }
    }
    let Some(link) = link(layout, id)? else {
        return missing("link");
    };
    // Any program that needs a missing symlink recreates it (`overlay.go`: `recreateSymlinks`).
    if read_link(layout, &link)?.is_some_and(|target| target != link_target(id)) {
        return missing("../l/<link>");
    }
    if has_parent && lower(layout, id)?.is_none() {
        return missing("lower");
    }
    // `merged` is not required: containers/storage creates it before each mount, and up to 1.51 removes it
    // afterwards.
    let dirs: &[&str] = if has_parent { &["work"] } else { &["work", "empty"] };
    for name in dirs {
        if !is_dir(&dir.join(name))? {
            return missing(name);
        }
    }
    Ok(None)
}

/// The names in `lower` that lead to no layer in any of `stores`.
pub(super) fn unresolved_names(
    layout: &Layout,
    id: &LayerId,
    stores: &[&Layout],
) -> Result<Vec<String>, StoreError> {
    let lower = lower(layout, id)?.unwrap_or_default();
    let leads = |name: &str| stores.iter().any(|store| store.overlay().join(name).exists());
    let names = lower.split(':').filter(|name| !name.is_empty() && !leads(name));
    Ok(names.map(str::to_owned).collect())
}

/// Creates `work`, `merged` and, for a base layer, `empty`.
pub(super) fn make_empty_dirs(dir: &Path, is_base: bool) -> Result<(), StoreError> {
    for name in ["work", "merged", "empty"]
        .iter()
        .take(if is_base { 3 } else { 2 })
    {
        atomic_file::create_dir(&dir.join(name), 0o700)?;
    }
    Ok(())
}

/// A new random link name.
pub(super) fn new_link() -> String {
    (0..LINK_LEN)
        .map(|_| char::from(LINK_ALPHABET[usize::from(rand::random::<u8>() & 31)]))
        .collect()
}

/// The layer's link name; `None` if the file is missing or has no valid name.
pub(super) fn link(layout: &Layout, id: &LayerId) -> Result<Option<String>, StoreError> {
    link_in(&layout.layer(id))
}

/// The link name in a layer's directory anywhere.
pub(super) fn link_in(dir: &Path) -> Result<Option<String>, StoreError> {
    Ok(text(&dir.join("link"))?.filter(|link| is_link_name(link)))
}

/// Creates the symlink `l/<link>`; durable once `l` is synced.
pub(super) fn make_link(layout: &Layout, link: &str, id: &LayerId) -> Result<(), StoreError> {
    let path = layout.links().join(link);
    symlink(link_target(id), &path).map_err(io_error("create", &path))
}

/// The content of `lower` for a child of `parent`, nearest parent first. Needs the lock that guards `parent`.
pub(super) fn lower_on(layout: &Layout, parent: &LayerId) -> Result<String, StoreError> {
    lower_on_dir(&layout.layer(parent))
}

/// The same for a parent's directory anywhere.
pub(super) fn lower_on_dir(dir: &Path) -> Result<String, StoreError> {
    let link = link_in(dir)?.ok_or_else(|| StoreError::corrupt(dir, "its `link` is missing"))?;
    let lower = match lower_in(dir)? {
        Some(below) => format!("l/{link}:{below}"),
        None => format!("l/{link}"),
    };
    if lower.split(':').count() > DEPTH_LIMIT {
        return Err(StoreError::corrupt(
            dir,
            format_args!("a layer on top of it would be more than {DEPTH_LIMIT} deep"),
        ));
    }
    Ok(lower)
}

/// Creates `work`, `merged` and, for a base layer, an empty `empty`, and replaces anything else under these names.
pub(super) fn repair_empty_dirs(dir: &Path, is_base: bool) -> Result<(), StoreError> {
    let empty = dir.join("empty");
    if is_base && has_files(&empty)? {
        fs::remove_dir_all(&empty).map_err(io_error("remove", &empty))?;
    }
    for name in ["work", "merged", "empty"] {
        if exists(&dir.join(name))? && !is_dir(&dir.join(name))? {
            remove_if_there(&dir.join(name))?;
        }
    }
    make_empty_dirs(dir, is_base)
}

/// Whether [`repair_empty_dirs`] has nothing to change; mounts create and remove `merged`.
pub(super) fn has_empty_dirs(dir: &Path, is_base: bool) -> Result<bool, StoreError> {
    let (empty, merged) = (dir.join("empty"), dir.join("merged"));
    Ok(is_dir(&dir.join("work"))?
        && (is_dir(&merged)? || !exists(&merged)?)
        && (!is_base || is_dir(&empty)? && !has_files(&empty)?))
}

/// True for a directory that is not empty.
pub(super) fn has_files(dir: &Path) -> Result<bool, StoreError> {
    Ok(is_dir(dir)? && fs::read_dir(dir).map_err(io_error("list", dir))?.next().is_some())
}

/// Creates `l` if it is missing or not a directory. A crash may remove it with all link names; they are also in
/// `link` and `lower`.
pub(super) fn repair_links_dir(layout: &Layout) -> Result<(), StoreError> {
    let links = layout.links();
    // A symlink to a directory is accepted, as in containers/storage.
    if fs::metadata(&links).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    remove_if_there(&links)?;
    atomic_file::create_dir(&links, LINKS_MODE)?;
    atomic_file::sync_dir(&layout.overlay())
}

/// Removes a file or symlink.
pub(super) fn remove_if_there(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The content of `lower`, the link names of the parents; `None` if the file is missing or has none.
pub(super) fn lower(layout: &Layout, id: &LayerId) -> Result<Option<String>, StoreError> {
    lower_in(&layout.layer(id))
}

fn lower_in(dir: &Path) -> Result<Option<String>, StoreError> {
    Ok(text(&dir.join("lower"))?.filter(|lower| lower.starts_with("l/")))
}

/// Sets owner and mode that a layer's directories inherit from its parent, except for `diff/` if `has_root`: then its
/// own tar sets them. Returns whether `diff/` changed.
pub(super) fn inherit_root(parent: &Path, layer: &Path, has_root: bool) -> Result<bool, StoreError> {
    let examine = |path: &Path| fs::symlink_metadata(path).map_err(io_error("examine", path));
    let from = examine(&parent.join("diff"))?;
    let owner = (from.uid(), from.gid());
    let own = |path: &Path| -> Result<bool, StoreError> {
        let now = examine(path)?;
        let differs = (now.uid(), now.gid()) != owner;
        if differs {
            lchown(path, Some(owner.0), Some(owner.1)).map_err(io_error("set the owner of", path))?;
        }
        Ok(differs)
    };
    own(&layer.join("work"))?;
    own(&layer.join("merged"))?;
    if has_root {
        return Ok(false);
    }
    let diff = layer.join("diff");
    let mut changed = own(&diff)?;
    let mode = |metadata: &fs::Metadata| metadata.permissions().mode() & 0o7777;
    if mode(&examine(&diff)?) != mode(&from) {
        let mode = fs::Permissions::from_mode(mode(&from));
        fs::set_permissions(&diff, mode).map_err(io_error("set the mode of", &diff))?;
        changed = true;
    }
    Ok(changed)
}

/// The file's text; `None` if it has white space, because a newline there would break every child.
fn text(path: &Path) -> Result<Option<String>, StoreError> {
    let text = atomic_file::read(path, TEXT_LIMIT)?.and_then(|bytes| String::from_utf8(bytes).ok());
    Ok(text.filter(|text| !text.is_empty() && !text.contains(char::is_whitespace)))
}

/// True for a valid link name.
pub(super) fn is_link_name(link: &str) -> bool {
    link.len() == LINK_LEN && link.bytes().all(|byte| LINK_ALPHABET.contains(&byte))
}

fn link_target(id: &LayerId) -> PathBuf {
    PathBuf::from(format!("../{id}/diff"))
}

/// True if `l/<link>` leads to the layer.
pub(super) fn is_linked(layout: &Layout, link: &str, id: &LayerId) -> Result<bool, StoreError> {
    Ok(read_link(layout, link)?.is_some_and(|target| target == link_target(id)))
}

/// True if no other layer has this link name: `l/<link>` does not lead to another layer with this name in its `link`.
pub(super) fn is_free(layout: &Layout, name: &str, id: &LayerId) -> Result<bool, StoreError> {
    let Some(target) = read_link(layout, name)?.filter(|target| *target != link_target(id)) else {
        return Ok(true);
    };
    let other = target
        .parent()
        .and_then(Path::file_name)
        .and_then(|other| other.to_str());
    Ok(match other.and_then(LayerId::from_hex) {
        Some(other) => link(layout, &other)?.as_deref() != Some(name),
        None => true,
    })
}

/// Makes `l/<link>` lead to the layer, whatever it is before; durable once `l` is synced.
pub(super) fn repair_link(layout: &Layout, link: &str, id: &LayerId) -> Result<(), StoreError> {
    if is_linked(layout, link, id)? {
        return Ok(());
    }
    remove_if_there(&layout.links().join(link))?;
    make_link(layout, link, id)
}

/// Replaces `link` or `lower` if its content differs.
pub(super) fn repair_text(path: &Path, right: &str) -> Result<(), StoreError> {
    if text(path)?.as_deref() == Some(right) {
        return Ok(());
    }
    atomic_file::replace(path, 0o644, right.as_bytes())
}

/// The target of `l/<link>`: `None` if it is missing, an empty path if it is not a symlink.
fn read_link(layout: &Layout, link: &str) -> Result<Option<PathBuf>, StoreError> {
    let path = layout.links().join(link);
    match fs::read_link(&path) {
        Ok(target) => Ok(Some(target)),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(Some(PathBuf::new())),
        Err(error) => Err(io_error("read", &path)(error)),
    }
}

pub(super) fn is_dir(path: &Path) -> Result<bool, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(metadata.is_dir()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(io_error("examine", path)(error)),
    }
}

pub(super) fn exists(path: &Path) -> Result<bool, StoreError> {
    match fs::symlink_metadata(path) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(error) => Err(io_error("examine", path)(error)),
    }
}
