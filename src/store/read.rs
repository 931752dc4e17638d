//! Reads a file out of an image's layers as a container would see it, with nothing mounted.
//!
//! The path is walked one component at a time. At each step the same directory of all layers is open, topmost
//! first: the first layer that has the name decides; a whiteout (character device 0:0) hides what is below; a
//! directory merges with those below it down to the first opaque one (`trusted.overlay.opaque` = `y`).
//! Symlinks are followed inside this view, never by the kernel: every name is opened beneath its directory
//! with RESOLVE_NO_SYMLINKS.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
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

impl Store {
    /// The bytes of the regular file `path` in the image whose layers are `layers`, base layer first; `None`
    /// if the image has no such file.
    ///
    /// # Errors
    /// When it is something else than a regular file, longer than `limit` bytes, or when a layer is not there.
    pub fn read_file(
        &self,
        layers: &[LayerId],
        path: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let root = || -> Result<Vec<OwnedFd>, StoreError> {
            let open = |id: &LayerId| {
                let diff = self.layout.layer(id).join("diff");
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::open(&diff, flags, Mode::empty()).map_err(io_error("open", &diff))
            };
            layers.iter().rev().map(open).collect()
        };
        let unreadable = |reason: String| StoreError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let system = |errno: Errno| io_error("read a layer's", Path::new(path))(errno);

        let mut todo: VecDeque<OsString> = components(Path::new(path));
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
                    let Some(Found::Directory(next)) = step(&dirs, name).map_err(system)? else {
                        return Ok(None);
                    };
                    dirs = next;
                }
                continue;
            }
            match step(&dirs, &name).map_err(system)? {
                None => return Ok(None),
                Some(Found::Directory(next)) => {
                    walked.push(name);
                    dirs = next;
                }
                Some(Found::Symlink(target)) => {
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
                Some(Found::Regular(_)) if !todo.is_empty() => return Ok(None),
                Some(Found::Regular(file)) => {
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
                    return Ok(Some(bytes));
                }
                Some(Found::Other(kind)) => {
                    return Err(unreadable(format!("it is {kind}, not a regular file")));
                }
            }
        }
        Err(unreadable("it is a directory, not a regular file".into()))
    }
}

/// What a name is in the merged view.
enum Found {
    /// The directories that merge, topmost first.
    Directory(Vec<OwnedFd>),
    Regular(File),
    Symlink(std::path::PathBuf),
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

fn step(dirs: &[OwnedFd], name: &OsStr) -> Result<Option<Found>, Errno> {
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
            FileType::RegularFile => Some(Found::Regular(
                open(dir, name, OFlags::RDONLY | OFlags::NONBLOCK)?.into(),
            )),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
                Some(Found::Symlink(OsString::from_vec(target.into_bytes()).into()))
            }
            FileType::CharacterDevice | FileType::BlockDevice => Some(Found::Other("a device")),
            FileType::Fifo => Some(Found::Other("a pipe")),
            _ => Some(Found::Other("of an unknown type")),
        });
    }
    Ok((!merged.is_empty()).then_some(Found::Directory(merged)))
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
