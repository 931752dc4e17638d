//! An image's layers as one tree, as a container would see them, with nothing mounted.
//!
//! The path is walked one component at a time. At each step the same directory of all layers is open, topmost
//! first: the first layer that has the name decides; a whiteout (character device 0:0) hides what is below; a
//! directory merges with those below it down to the first opaque one (`trusted.overlay.opaque` = `y`).
//! Symlinks are followed inside this view, never by the kernel: every name is opened beneath its directory
//! with RESOLVE_NO_SYMLINKS.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::error::{StoreError, io_error};
use super::store::Store;
use crate::oci::LayerId;

/// The marker of a directory that hides what is below it.
const OPAQUE: &str = "trusted.overlay.opaque";

/// As many symlinks as the kernel follows in one path.
const SYMLINK_LIMIT: usize = 40;

/// As many components as a path may have once its symlinks are resolved. The paths that we read have three.
const COMPONENT_LIMIT: usize = 256;

/// The merged view of an image's layers.
#[derive(Debug)]
pub struct Tree {
    /// The root of each layer, topmost first.
    roots: Vec<OwnedFd>,
}

/// What a path leads to.
#[derive(Debug)]
pub enum Node {
    /// A regular file, open for reading.
    File(File),
    /// A directory.
    Directory(Directory),
    /// Something that is neither, in words: `a device`.
    Other(&'static str),
}

/// A directory of the merged view.
#[derive(Debug)]
pub struct Directory {
    /// The same directory in each layer that has it, topmost first.
    layers: Vec<OwnedFd>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name, without a directory before it.
    pub name: OsString,
    /// What it is; a symlink is not followed.
    pub kind: FileKind,
}

/// What a name in a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink, to whatever.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

impl Store {
    /// The tree of the image whose layers are `layers`, base layer first.
    ///
    /// # Errors
    /// When a layer is not there.
    pub fn tree(&self, layers: &[LayerId]) -> Result<Tree, StoreError> {
        let diffs: Vec<PathBuf> = layers
            .iter()
            .map(|id| self.layout_with(id).layer(id).join("diff"))
            .collect();
        Tree::of_directories(&diffs)
    }
}

impl Tree {
    /// The tree of these directories, each the contents of a layer, base layer first.
    ///
    /// # Errors
    /// When one is not there or is no directory.
    pub fn of_directories(layers: &[impl AsRef<Path>]) -> Result<Self, StoreError> {
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).map_err(io_error("open", path))
        };
        let roots = layers.iter().rev().map(|path| open(path.as_ref()));
        Ok(Self {
            roots: roots.collect::<Result<_, _>>()?,
        })
    }

    /// The tree of the layers whose contents these directories are, topmost first. If they are only the upper layers of
    /// an image, what is found is the image's, for no lower layer can change it; what is not found may still lie below.
    pub fn of_roots(roots: Vec<OwnedFd>) -> Self {
        Self { roots }
    }

    /// The bytes of the regular file at `path`; `None` if nothing is there.
    ///
    /// # Errors
    /// When it is something else than a regular file, or longer than `limit` bytes.
    pub fn read_file(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let unreadable = |reason: String| StoreError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let file = match self.open(Path::new(path))? {
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

    /// What `path` leads to, its last component followed as well; `None` if nothing is there.
    ///
    /// # Errors
    /// When it leads through too many symlinks or components, or the system refuses.
    pub fn open(&self, path: &Path) -> Result<Option<Node>, StoreError> {
        let unreadable = |reason: String| StoreError::Unreadable {
            path: path.display().to_string(),
            reason,
        };
        let system = |errno: Errno| io_error("read a layer's", path)(errno);
        let root = || -> Result<Vec<OwnedFd>, StoreError> {
            let again = |root: &OwnedFd| root.try_clone().map_err(io_error("read a layer's", path));
            self.roots.iter().map(again).collect()
        };

        let mut todo: VecDeque<OsString> = components(path);
        let mut walked: Vec<OsString> = Vec::new();
        let mut dirs = root()?;
        let mut symlinks = 0;
        while let Some(name) = todo.pop_front() {
            if walked.len() + todo.len() > COMPONENT_LIMIT {
                return Err(unreadable(format!(
                    "it has more than {COMPONENT_LIMIT} components"
                )));
            }
            if name == ".." {
                walked.pop();
                dirs = root()?;
                for name in &walked {
                    // Directories all of them, or we would not have come through.
                    let Some(MergedNode::Directory(next)) = step(&dirs, name).map_err(system)? else {
                        return Ok(None);
                    };
                    dirs = next;
                }
                continue;
            }
            match step(&dirs, &name).map_err(system)? {
                None => return Ok(None),
                Some(MergedNode::Directory(next)) => {
                    walked.push(name);
                    dirs = next;
                }
                Some(MergedNode::Symlink(target)) => {
                    symlinks += 1;
                    if symlinks > SYMLINK_LIMIT {
                        return Err(unreadable(format!(
                            "it leads through more than {SYMLINK_LIMIT} symlinks"
                        )));
                    }
                    if target.is_absolute() {
                        walked.clear();
                        dirs = root()?;
                    }
                    for name in components(&target).into_iter().rev() {
                        todo.push_front(name);
                    }
                }
                Some(MergedNode::Regular(_) | MergedNode::Other(_)) if !todo.is_empty() => return Ok(None),
                Some(MergedNode::Regular(file)) => return Ok(Some(Node::File(file))),
                Some(MergedNode::Other(kind)) => return Ok(Some(Node::Other(kind))),
            }
        }
        Ok(Some(Node::Directory(Directory { layers: dirs })))
    }
}

impl Directory {
    /// The names in it, in the order of their bytes; `path` is for messages.
    ///
    /// # Errors
    /// When there are more than `limit`, whited out ones included, or the system refuses.
    pub fn entries(&self, path: &Path, limit: usize) -> Result<Vec<DirectoryEntry>, StoreError> {
        let system = |errno: Errno| io_error("read a layer's", path)(errno);
        // `None` is a name that a whiteout hides.
        let mut names: HashMap<OsString, Option<FileKind>> = HashMap::new();
        for layer in &self.layers {
            for item in Dir::read_from(layer).map_err(system)? {
                let item = item.map_err(system)?;
                let name = OsStr::from_bytes(item.file_name().to_bytes());
                if name == "." || name == ".." || names.contains_key(name) {
                    continue;
                }
                if names.len() == limit {
                    return Err(StoreError::Unreadable {
                        path: path.display().to_string(),
                        reason: format!("it has more than {limit} entries"),
                    });
                }
                let kind = kind(layer, name, item.file_type()).map_err(system)?;
                names.insert(name.to_owned(), kind);
            }
        }
        let visible = names.into_iter();
        let visible = visible.filter_map(|(name, kind)| Some(DirectoryEntry { name, kind: kind? }));
        let mut entries: Vec<DirectoryEntry> = visible.collect();
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }
}

/// What the name is in this layer; `None` for a whiteout.
fn kind(layer: &OwnedFd, name: &OsStr, known: FileType) -> Result<Option<FileKind>, Errno> {
    let mut kind = known;
    // Not every file system tells types, and only the number tells a device from a whiteout.
    if matches!(known, FileType::Unknown | FileType::CharacterDevice) {
        let stat = rustix::fs::statat(layer, name, AtFlags::SYMLINK_NOFOLLOW)?;
        kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::CharacterDevice && stat.st_rdev == 0 {
            return Ok(None);
        }
    }
    Ok(Some(match kind {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }))
}

/// What a name is in the merged view.
enum MergedNode {
    /// The directories that merge, topmost first.
    Directory(Vec<OwnedFd>),
    Regular(File),
    Symlink(PathBuf),
    Other(&'static str),
}

/// The names to walk; `.` and the root are none.
fn components(path: &Path) -> VecDeque<OsString> {
    let name = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(name).collect()
}

fn step(dirs: &[OwnedFd], name: &OsStr) -> Result<Option<MergedNode>, Errno> {
    let mut merged = Vec::new();
    for dir in dirs {
        let found = match open(dir, name, OFlags::PATH) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error),
        };
        let stat = rustix::fs::fstat(&found)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let directory = open(dir, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
            let opaque = is_opaque(&directory)?;
            merged.push(directory);
            if opaque {
                break;
            }
            continue;
        }
        // A directory above hides anything else below.
        if !merged.is_empty() {
            break;
        }
        return Ok(match kind {
            FileType::CharacterDevice if stat.st_rdev == 0 => None,
            // Not to be opened for reading before it is known to be no device and no pipe.
            FileType::RegularFile => Some(MergedNode::Regular(
                open(dir, name, OFlags::RDONLY | OFlags::NONBLOCK)?.into(),
            )),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                Some(MergedNode::Symlink(
                    OsString::from_vec(target.into_bytes()).into(),
                ))
            }
            FileType::CharacterDevice | FileType::BlockDevice => Some(MergedNode::Other("a device")),
            FileType::Fifo => Some(MergedNode::Other("a pipe")),
            _ => Some(MergedNode::Other("of an unknown type")),
        });
    }
    Ok((!merged.is_empty()).then_some(MergedNode::Directory(merged)))
}

fn open(dir: &OwnedFd, name: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // RESOLVE_NO_SYMLINKS would also refuse the symlink that O_PATH | O_NOFOLLOW is to open.
    let resolve = if flags.contains(OFlags::PATH) {
        ResolveFlags::BENEATH
    } else {
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS
    };
    rustix::fs::openat2(dir, name.as_bytes(), flags, Mode::empty(), resolve)
}

fn is_opaque(dir: &OwnedFd) -> Result<bool, Errno> {
    let mut value = [0_u8; 2];
    match rustix::fs::fgetxattr(dir, OPAQUE, &mut value) {
        Ok(len) => Ok(&value[..len] == b"y"),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::RANGE) => Ok(false),
        Err(error) => Err(error),
    }
}
