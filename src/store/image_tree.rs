//! Reads files and directories of an image as a container would see them, from its layers and without a mount.
//!
//! A path is resolved one component at a time. At each step the same directory of all layers is open, topmost first.
//! The first layer that has the name decides. A whiteout (character device 0:0) hides the layers below it. A
//! directory merges with those below it, down to the first opaque one (`trusted.overlay.opaque` = `y`). Symlinks are
//! resolved inside this view and never by the kernel: every name is opened beneath its directory with
//! RESOLVE_NO_SYMLINKS (`openat2(2)`).

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

/// The attribute of a directory that hides the layers below it.
const OPAQUE: &str = "trusted.overlay.opaque";

/// The most symlinks in one path, as in the kernel (`path_resolution(7)`).
const SYMLINK_LIMIT: usize = 40;

/// The most components in a path after its symlinks are resolved. The paths that we read have three.
const COMPONENT_LIMIT: usize = 256;

/// The merged view of an image's layers.
#[derive(Debug)]
pub struct Tree {
    /// The root of each layer, topmost first.
    roots: Vec<OwnedFd>,
}

/// The target of a path.
#[derive(Debug)]
pub enum Node {
    /// A regular file, open for reading.
    File(File),
    /// A directory.
    Directory(Directory),
    /// Anything else, described in words: `a device`.
    Other(&'static str),
}

/// A directory of the merged view.
#[derive(Debug)]
pub struct Directory {
    /// The same directory in each layer that has it, topmost first.
    layers: Vec<OwnedFd>,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The name, without a directory.
    pub name: OsString,
    /// Its kind; a symlink is not followed.
    pub kind: FileKind,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symlink to any target.
    Symlink,
    /// A device, a pipe or a socket.
    Other,
}

/// What to do with a symlink in the last component of a path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LastSymlink {
    Follow,
    Keep,
}

impl Store {
    /// The tree of the image whose layers are `layers`, base layer first.
    ///
    /// # Errors
    /// If a layer is missing.
    pub fn tree(&self, layers: &[LayerId]) -> Result<Tree, StoreError> {
        let diffs: Vec<PathBuf> = layers
            .iter()
            .map(|id| self.layout_with(id).layer(id).join("diff"))
            .collect();
        Tree::of_directories(&diffs)
    }
}

impl Tree {
    /// The tree of these directories, each with the contents of one layer, base layer first.
    ///
    /// # Errors
    /// If one is missing or not a directory.
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

    /// The tree of the layers with these root directories, topmost first. If they are only the upper layers of an
    /// image, a path that is found is final, because lower layers cannot change it. A path that is not found may
    /// exist in a lower layer.
    pub fn of_roots(roots: Vec<OwnedFd>) -> Self {
        Self { roots }
    }

    /// The content of the regular file at `path`; `None` if the path does not exist.
    ///
    /// # Errors
    /// If it is not a regular file, or longer than `limit` bytes.
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

    /// The entries of the directory at `path`, sorted by the bytes of their names; `None` if the path does not exist. The
    /// kernel limits a name to 255 bytes.
    ///
    /// # Errors
    /// If it is not a directory, or has more than `limit` entries, hidden ones included.
    pub fn read_directory(
        &self,
        path: &str,
        limit: usize,
    ) -> Result<Option<Vec<DirectoryEntry>>, StoreError> {
        let reason = match self.open(Path::new(path))? {
            None => return Ok(None),
            Some(Node::Directory(directory)) => return directory.entries(Path::new(path), limit).map(Some),
            Some(Node::File(_)) => "it is a regular file, not a directory".to_owned(),
            Some(Node::Other(kind)) => format!("it is {kind}, not a directory"),
        };
        Err(StoreError::Unreadable {
            path: path.to_owned(),
            reason,
        })
    }

    /// Opens the target of `path` and follows a symlink in its last component; `None` if the path does not exist.
    ///
    /// # Errors
    /// If the path has too many symlinks or components, or a system call fails.
    pub fn open(&self, path: &Path) -> Result<Option<Node>, StoreError> {
        self.resolve(path, LastSymlink::Follow)
    }

    /// Opens the regular file at `path`. `None` if the path does not exist or is something else, for instance a symlink to
    /// a regular file.
    ///
    /// # Errors
    /// As [`Tree::open`].
    pub fn open_file(&self, path: &Path) -> Result<Option<File>, StoreError> {
        match self.resolve(path, LastSymlink::Keep)? {
            Some(Node::File(file)) => Ok(Some(file)),
            None | Some(Node::Directory(_) | Node::Other(_)) => Ok(None),
        }
    }

    fn resolve(&self, path: &Path, last: LastSymlink) -> Result<Option<Node>, StoreError> {
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
                    // All of them are directories, because the walk passed through them.
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
                Some(MergedNode::Symlink(_)) if todo.is_empty() && last == LastSymlink::Keep => {
                    return Ok(Some(Node::Other("a symlink")));
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
    /// The entries, sorted by the bytes of their names; `path` is for messages.
    ///
    /// # Errors
    /// If there are more than `limit`, hidden ones included, or a system call fails.
    pub fn entries(&self, path: &Path, limit: usize) -> Result<Vec<DirectoryEntry>, StoreError> {
        let system = |errno: Errno| io_error("read a layer's", path)(errno);
        // `None` is a name with a whiteout.
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

/// The kind of the name in this layer; `None` for a whiteout.
fn kind(layer: &OwnedFd, name: &OsStr, known: FileType) -> Result<Option<FileKind>, Errno> {
    let mut kind = known;
    // Not every file system returns types in listings, and only the device number distinguishes a whiteout from a
    // device.
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

/// The node that a name has in the merged view.
enum MergedNode {
    /// The merged directories, topmost first.
    Directory(Vec<OwnedFd>),
    Regular(File),
    Symlink(PathBuf),
    Other(&'static str),
}

/// The components to resolve, without `.` and the root.
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
        // A directory in an upper layer hides anything but directories below.
        if !merged.is_empty() {
            break;
        }
        return Ok(match kind {
            FileType::CharacterDevice if stat.st_rdev == 0 => None,
            // Opened for reading only after it is known not to be a device or a pipe.
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
    // RESOLVE_NO_SYMLINKS would also reject the symlink itself, which O_PATH | O_NOFOLLOW opens.
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
