//! Opens or creates the parent directory of an entry, below the layer's root and nowhere else.
//!
//! The kernel resolves a path as if the layer's directory were the root of the file system (`RESOLVE_IN_ROOT`,
//! `openat2(2)`): symbolic links of the layer are followed, and absolute ones and `..` end inside. Entries are
//! usually sorted, so the last directory is kept open.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::entry_name::split;

/// Directories are opened for reading and not with `O_PATH`, because attributes are set through the descriptor.
pub(in crate::store) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The mode with which containers/storage creates a parent without an entry: 0777 under its umask of 022.
pub(in crate::store) const IMPLICIT_MODE: u32 = 0o755;

/// The kernel returns `EAGAIN` if a rename anywhere on the machine may have affected the resolution of a `..`
/// (`openat2(2)`).
const RESOLVE_ATTEMPTS: usize = 1000;

/// An open directory of the layer.
#[derive(Clone)]
pub(super) struct ParentDir {
    fd: Rc<OwnedFd>,
    /// Whether the path in the tar has no symbolic link.
    pub(super) plain: bool,
}

impl AsFd for ParentDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens parents, and creates missing ones.
pub(super) struct ParentDirs {
    root: ParentDir,
    last: Option<(Vec<u8>, ParentDir)>,
}

impl ParentDirs {
    pub(super) fn new(diff: BorrowedFd<'_>) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(diff, c".", DIRECTORY, Mode::empty())?;
        let (fd, plain) = (Rc::new(fd), true);
        Ok(Self {
            root: ParentDir { fd, plain },
            last: None,
        })
    }

    /// The layer's root.
    pub(super) fn root(&self) -> &ParentDir {
        &self.root
    }

    /// The directory at `path`, created if it is missing; `None` if something else than a directory has the path.
    pub(super) fn resolve(&mut self, path: &[u8]) -> Result<Option<ParentDir>, Errno> {
        if path.is_empty() {
            return Ok(Some(self.root.clone()));
        }
        match &self.last {
            Some((last, parent)) if last == path => return Ok(Some(parent.clone())),
            _ => {}
        }
        let parent = match self.open(path) {
            Err(Errno::NOENT) => match self.make_missing(path) {
                Err(Errno::NOTDIR) => return Ok(None),
                made => made?,
            },
            Err(Errno::NOTDIR) => return Ok(None),
            opened => opened?,
        };
        self.remember(path, parent.clone());
        Ok(Some(parent))
    }

    /// Keeps a directory open for the entries in it.
    pub(super) fn remember(&mut self, path: &[u8], parent: ParentDir) {
        self.last = Some((path.to_vec(), parent));
    }

    /// Closes the last directory, because its path may have another target now.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    fn open(&self, path: &[u8]) -> Result<ParentDir, Errno> {
        let (fd, plain) = match open_in(self.root.as_fd(), path, DIRECTORY, ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP) => (
                open_in(self.root.as_fd(), path, DIRECTORY, ResolveFlags::empty())?,
                false,
            ),
            opened => (opened?, true),
        };
        let fd = Rc::new(fd);
        Ok(ParentDir { fd, plain })
    }

    /// Finds the nearest existing directory upwards, and creates the missing ones below it. A dangling symbolic link
    /// is an error, as in containers/storage: as the parent itself it leads to no directory, further up `mkdir`
    /// fails.
    fn make_missing(&self, path: &[u8]) -> Result<ParentDir, Errno> {
        let (mut existing, _) = split(path);
        let mut parent = loop {
            if existing.is_empty() {
                break self.root.clone();
            }
            match self.open(existing) {
                Err(Errno::NOENT) => existing = split(existing).0,
                opened => break opened?,
            }
        };
        let missing = path[existing.len()..].split(|&byte| byte == b'/');
        let mut missing = missing.filter(|name| !name.is_empty()).peekable();
        while let Some(name) = missing.next() {
            match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(IMPLICIT_MODE)) {
                Err(Errno::EXIST) if missing.peek().is_none() => return Err(Errno::NOENT),
                made => made?,
            }
            parent = parent.child(name)?;
            let stat = rustix::fs::fstat(&parent)?;
            // A directory inside a setgid directory inherits its group, which containers/storage resets, and the
            // setgid bit, which it keeps.
            if (stat.st_uid, stat.st_gid) != (0, 0) {
                rustix::fs::fchown(&parent, Some(rustix::fs::Uid::ROOT), Some(rustix::fs::Gid::ROOT))?;
            }
            if stat.st_mode & 0o777 != IMPLICIT_MODE {
                let mode = IMPLICIT_MODE | stat.st_mode & 0o7000;
                rustix::fs::fchmod(&parent, Mode::from_raw_mode(mode))?;
            }
        }
        Ok(parent)
    }
}

impl ParentDir {
    /// Opens a directory in this one.
    pub(super) fn child(&self, name: &[u8]) -> Result<Self, Errno> {
        let fd = rustix::fs::openat(self, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        let (fd, plain) = (Rc::new(fd), self.plain);
        Ok(Self { fd, plain })
    }
}

/// Opens `path`, empty for `root` itself, with `root` as the root of the file system.
pub(in crate::store) fn open_in(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { b"." } else { path };
    let resolve = resolve | ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    for _ in 0..RESOLVE_ATTEMPTS {
        match rustix::fs::openat2(root, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::AGAIN)
}
