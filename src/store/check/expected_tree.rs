//! Derives what each inode of a layer's tree must be from the entries of its tar, in their order.
//!
//! Keyed by inode number and not by name: all hard links have the attributes of the last one, an entry may reach a
//! directory through a symbolic link of the layer, and a later entry may replace an earlier one. So each entry is
//! looked up in the existing tree, and replaces what was expected of that inode. An entry that is not found is a
//! [`PossibleDamage`] until all entries are known, because a later one may have removed it.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec};
use rustix::io::Errno;

use super::expected_inode::{ExpectedInode, file_type, opaque};
use crate::store::escaped_name::EscapedName;
use crate::store::unpack::{
    NameSet, OPAQUE, TarEntry, TarEntryKind, WHITEOUT_PREFIX, clean, in_root, open_in, split,
};

/// The most possible damages that are kept. A layer with more is certainly damaged.
const MAX_POSSIBLE_DAMAGES: usize = 10_000;

/// The attribute that a change of owner removes.
const CAPABILITY: &[u8] = b"security.capability";

/// A difference between an entry and the tree, unless a later entry caused it.
pub(super) struct PossibleDamage {
    number: u64,
    pub(super) path: Vec<u8>,
    pub(super) reason: String,
    /// The content of a file differs, so the tar cannot match its diffID.
    pub(super) is_content: bool,
    /// Inodes that a later entry may have created.
    inodes: Vec<u64>,
}

/// The file that an entry has in the tree.
pub(super) struct FoundFile {
    directory: Arc<OwnedFd>,
    base: Vec<u8>,
    pub(super) stat: Stat,
}

impl FoundFile {
    /// Opens the regular file.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.directory, &self.base[..], flags, Mode::empty())
    }
}

/// The expected inodes and names of a tree.
pub(super) struct ExpectedTree {
    diff: Arc<OwnedFd>,
    pub(super) root: u64,
    inodes: HashMap<u64, ExpectedInode>,
    /// Pairs of directory inode and name.
    names: NameSet,
    last: Option<(Vec<u8>, Arc<OwnedFd>, u64)>,
    possible_damages: Vec<PossibleDamage>,
    /// Names of whiteouts and global headers with their entry numbers: containers/storage removes existing files with
    /// these names.
    removed: Vec<(u64, Vec<u8>)>,
    /// Times of directories that another entry has replaced: they are set on the replacement, or on its target.
    late_times: HashMap<u64, Timespec>,
    /// Parents that are reached through a symbolic link, with the first entry in each.
    linked_parents: Vec<(u64, Vec<u8>)>,
    /// An entry replaced another one, so the tree does not show what became of every entry.
    pub(super) has_replacements: bool,
}

impl ExpectedTree {
    /// An empty expectation for the tree at `diff`.
    pub(super) fn new(diff: Arc<OwnedFd>) -> Result<Self, Errno> {
        let root = rustix::fs::fstat(&diff)?.st_ino;
        Ok(Self {
            diff,
            root,
            inodes: HashMap::new(),
            names: NameSet::default(),
            last: None,
            possible_damages: Vec::new(),
            removed: Vec::new(),
            late_times: HashMap::new(),
            linked_parents: Vec::new(),
            has_replacements: false,
        })
    }

    /// The expectation for an inode, if the tar has it or needs it as a parent.
    pub(super) fn of(&self, inode: u64) -> Option<&ExpectedInode> {
        self.inodes.get(&inode)
    }

    /// Whether the tar has the name in the directory.
    pub(super) fn has_name(&self, directory: u64, base: &[u8]) -> bool {
        self.names.contains(&key(directory, base))
    }

    /// Adds the next entry. Returns its file, if it exists and has content or attributes to compare.
    pub(super) fn add(&mut self, entry: &TarEntry) -> Option<FoundFile> {
        if entry.is_dot() {
            return None;
        }
        if entry.path().is_empty() {
            self.expect(self.root, ExpectedInode::of(entry, FileType::Directory));
            return None;
        }
        let (directory, base) = split(entry.path());
        let hidden = base.strip_prefix(WHITEOUT_PREFIX);
        if entry.kind == TarEntryKind::GlobalHeader || hidden.is_some() {
            self.removed.push((entry.number, entry.path().to_vec()));
        }
        let (parent, inode) = match self.directory(directory, entry.number) {
            Ok(found) => found,
            // A global header creates nothing, and the entry may be redundant.
            Err(_) if entry.kind == TarEntryKind::GlobalHeader => return None,
            Err(Errno::NOTDIR) if base == OPAQUE => {
                self.add_opaque_file(directory);
                return None;
            }
            Err(Errno::NOTDIR) if hidden.is_some() => return None,
            Err(errno) => {
                self.add_missing(entry, errno);
                return None;
            }
        };
        if base == OPAQUE {
            // Every directory but the root is known, at least as an implicit parent.
            let expected = self.inodes.entry(inode).or_insert_with(ExpectedInode::root);
            merge(&mut expected.xattrs, vec![opaque()]);
            return None;
        }
        if entry.kind == TarEntryKind::GlobalHeader && hidden.is_none() {
            // A later entry created the existing file.
            if let Ok(stat) = rustix::fs::statat(&parent, base, AtFlags::SYMLINK_NOFOLLOW) {
                self.inodes.remove(&stat.st_ino);
                self.has_replacements = true;
            }
            return None;
        }
        let base = hidden.unwrap_or(base);
        let stat = match rustix::fs::statat(&parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => {
                self.add_missing(entry, errno);
                return None;
            }
        };
        self.names.insert(&key(inode, base));
        match (hidden, entry.kind) {
            (Some(_), _) => self.expect(stat.st_ino, ExpectedInode::whiteout(entry)),
            (None, TarEntryKind::HardLink) => self.add_hard_link(entry, Some(stat.st_ino)),
            (None, kind) => {
                let expected = ExpectedInode::of(entry, file_type(kind));
                if kind == TarEntryKind::Directory {
                    self.expect_time(entry.path(), &stat, expected.mtime);
                }
                self.expect(stat.st_ino, expected);
            }
        }
        let base = base.to_vec();
        Some(FoundFile {
            directory: parent,
            base,
            stat,
        })
    }

    /// Adds a possible damage of the content that an entry describes.
    pub(super) fn add_content_damage(&mut self, entry: &TarEntry, reason: String, file: Option<&FoundFile>) {
        // A missing file was added before.
        if self
            .possible_damages
            .last()
            .is_none_or(|last| last.number != entry.number)
        {
            self.add_possible_damage(
                entry,
                reason,
                file.map(|file| file.stat.st_ino).into_iter().collect(),
            );
        }
        if let Some(damage) = self.possible_damages.last_mut() {
            damage.is_content = true;
        }
    }

    /// The confirmed damages, after every entry was added.
    pub(super) fn take_confirmed(&mut self) -> Vec<PossibleDamage> {
        for (inode, time) in self.late_times.drain() {
            if let Some(expected) = self.inodes.get_mut(&inode) {
                expected.mtime = Some(time);
            }
        }
        let linked = std::mem::take(&mut self.linked_parents);
        self.has_replacements |=
            !self.late_times.is_empty() || linked.iter().any(|(number, path)| self.is_moved(*number, path));
        let mut possible_damages = std::mem::take(&mut self.possible_damages);
        let all = possible_damages.len();
        possible_damages.retain(|damage| !self.is_replaced(damage));
        self.has_replacements |= possible_damages.len() < all;
        // Then a missing file proves nothing, but a wrong content still does.
        possible_damages.retain(|damage| damage.is_content || !self.has_replacements);
        possible_damages
    }

    /// Whether a later entry created one of the inodes, or something on the path to it. Otherwise nothing on the path
    /// changed, and the file cannot have been removed by an entry.
    fn is_replaced(&self, damage: &PossibleDamage) -> bool {
        let is_later = |inode: &u64| self.of(*inode).is_some_and(|it| it.created_by > damage.number);
        let is_removed = |(number, path): &(u64, Vec<u8>)| {
            let rest = damage.path.strip_prefix(&path[..]);
            *number > damage.number && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        };
        if damage.inodes.iter().any(is_later) || self.removed.iter().any(is_removed) {
            return true;
        }
        self.is_moved(damage.number, &damage.path)
    }

    /// Whether an entry after this one created something on the path.
    fn is_moved(&self, number: u64, path: &[u8]) -> bool {
        let is_later = |inode: &u64| self.of(*inode).is_some_and(|it| it.created_by > number);
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes {
            for flags in [OFlags::NOFOLLOW, OFlags::empty()] {
                let (path, flags) = (&path[..end], flags | OFlags::PATH | OFlags::CLOEXEC);
                let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
                let Ok(stat) = opened.and_then(rustix::fs::fstat) else {
                    return false;
                };
                // A hard link has the entry number of its target.
                let kind = FileType::from_raw_mode(stat.st_mode);
                let is_known_file = !matches!(kind, FileType::Directory | FileType::Symlink)
                    && self.of(stat.st_ino).is_some_and(|it| it.kind == kind);
                if is_known_file || is_later(&stat.st_ino) {
                    return true;
                }
            }
        }
        false
    }

    /// Times of directories are set at the end, in the order of the tar, on whatever has the path then.
    fn expect_time(&mut self, path: &[u8], stat: &Stat, time: Option<Timespec>) {
        self.late_times.remove(&stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
            if let (Ok(stat), Some(time)) = (opened.and_then(rustix::fs::fstat), time) {
                self.late_times.insert(stat.st_ino, time);
            }
        }
    }

    /// An opaque marker for a path that is not a directory is set on whatever has the path.
    fn add_opaque_file(&mut self, path: &[u8]) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
        if let Ok(stat) = opened.and_then(rustix::fs::fstat)
            && let Some(expected) = self.inodes.get_mut(&stat.st_ino)
        {
            merge(&mut expected.xattrs, vec![opaque()]);
        }
    }

    /// The last link sets the attributes, and each adds its extended ones.
    fn add_hard_link(&mut self, entry: &TarEntry, inode: Option<u64>) {
        let target = clean(&entry.link);
        let (directory, base) = split(in_root(&target));
        let found = self
            .directory(directory, entry.number)
            .and_then(|(directory, _)| rustix::fs::statat(&directory, base, AtFlags::SYMLINK_NOFOLLOW));
        let target_inode = found.map(|stat| stat.st_ino).ok();
        if let Some(inode) = inode.filter(|_| target_inode != inode) {
            let reason = format!(
                "it is not a hard link to `/{}`",
                EscapedName::new(in_root(&target))
            );
            self.add_possible_damage(entry, reason, target_inode.into_iter().chain([inode]).collect());
        }
        let Some(inode) = inode.or(target_inode) else {
            return;
        };
        let known = self.inodes.get(&inode);
        let Some(known) = known.or_else(|| self.inodes.get(&target_inode?)) else {
            return;
        };
        let mut expected = known.clone();
        let own = ExpectedInode::of(entry, expected.kind);
        (expected.uid, expected.gid) = (own.uid.or(expected.uid), own.gid.or(expected.gid));
        if expected.kind != FileType::Symlink {
            (expected.mode, expected.mtime) = (own.mode, own.mtime);
        }
        expected.loose_capability = !own.xattrs.iter().any(|(name, _)| name == CAPABILITY);
        merge(&mut expected.xattrs, own.xattrs);
        self.inodes.insert(inode, expected);
    }

    /// A directory that two entries create under two names keeps its extended attributes.
    fn expect(&mut self, inode: u64, mut expected: ExpectedInode) {
        if let Some(known) = self.inodes.get_mut(&inode)
            && (known.kind, expected.kind) == (FileType::Directory, FileType::Directory)
        {
            expected.created_by = expected.created_by.min(known.created_by);
            let mut xattrs = std::mem::take(&mut known.xattrs);
            merge(&mut xattrs, std::mem::take(&mut expected.xattrs));
            expected.xattrs = xattrs;
        }
        let earlier = self.inodes.insert(inode, expected);
        self.has_replacements |= earlier.is_some_and(|earlier| {
            // A whiteout followed by the same name is normal, and nothing is below a whiteout.
            !earlier.is_whiteout() && earlier.kind != self.inodes[&inode].kind
        });
    }

    /// Opens a parent. It and its parents are expected from now on, whether or not the tar has entries for them.
    fn directory(&mut self, path: &[u8], number: u64) -> Result<(Arc<OwnedFd>, u64), Errno> {
        if path.is_empty() {
            return Ok((Arc::clone(&self.diff), self.root));
        }
        if let Some((last, fd, inode)) = &self.last
            && last == path
        {
            return Ok((Arc::clone(fd), *inode));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = match open_in(self.diff.as_fd(), path, flags, ResolveFlags::NO_SYMLINKS) {
            Err(Errno::LOOP) => {
                // With a slash, so that the last component counts as part of the path.
                self.linked_parents.push((number, [path, b"/"].concat()));
                open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty())?
            }
            opened => opened?,
        };
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        let (mut above, mut next) = (None, inode);
        let is_known = |inodes: &HashMap<u64, ExpectedInode>, inode: &u64| {
            inodes.get(inode).is_some_and(|it| it.kind == FileType::Directory)
        };
        while next != self.root && !is_known(&self.inodes, &next) {
            self.inodes.insert(next, ExpectedInode::implicit(number));
            let up = rustix::fs::openat(above.as_ref().unwrap_or(&fd), c"..", flags, Mode::empty())?;
            next = rustix::fs::fstat(&up)?.st_ino;
            above = Some(up);
        }
        let fd = Arc::new(fd);
        self.last = Some((path.to_vec(), Arc::clone(&fd), inode));
        Ok((fd, inode))
    }

    /// The entry's file is missing. What a hard link states about its target still counts.
    fn add_missing(&mut self, entry: &TarEntry, errno: Errno) {
        self.add_possible_damage(entry, missing(errno), Vec::new());
        let is_whiteout = split(entry.path()).1.starts_with(WHITEOUT_PREFIX);
        if entry.kind == TarEntryKind::HardLink && !is_whiteout {
            self.add_hard_link(entry, None);
        }
    }

    fn add_possible_damage(&mut self, entry: &TarEntry, reason: String, inodes: Vec<u64>) {
        if self.possible_damages.len() < MAX_POSSIBLE_DAMAGES {
            let (directory, base) = split(entry.path());
            let (number, path, reason) = match base.strip_prefix(WHITEOUT_PREFIX) {
                Some(hidden) if base != OPAQUE => {
                    let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
                    let path = [directory, slash, hidden].concat();
                    (entry.number, path, format!("the whiteout: {reason}"))
                }
                _ => (entry.number, entry.path().to_vec(), reason),
            };
            let is_content = false;
            self.possible_damages.push(PossibleDamage {
                number,
                path,
                reason,
                is_content,
                inodes,
            });
        }
    }
}

fn missing(errno: Errno) -> String {
    match errno {
        Errno::NOENT | Errno::NOTDIR => "it is missing".to_owned(),
        errno => format!("cannot look it up: {errno}"),
    }
}

fn merge(xattrs: &mut Vec<(Vec<u8>, Vec<u8>)>, more: Vec<(Vec<u8>, Vec<u8>)>) {
    for (name, value) in more {
        match xattrs.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => xattrs.push((name, value)),
        }
    }
}

fn key(directory: u64, base: &[u8]) -> Vec<u8> {
    [&directory.to_le_bytes()[..], base].concat()
}
