//! What each inode of a layer's tree must be, learnt from the entries of its tar in their order.
//!
//! Kept by inode number and not by name: hard links share what the last of them says, an entry may reach a directory
//! through a symbolic link of the layer, and one that takes another's place has the last word. So each entry is looked up
//! in the tree as it is, and what was expected of that inode before is replaced. What cannot be found is a
//! [`PossibleDamage`] until all entries are known: a later one may have removed it.

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

/// As many possible are kept; beyond that a layer is damaged for certain, whatever becomes of each.
const MAX_POSSIBLE: usize = 10_000;

/// The attribute that a change of owner takes away.
const CAPABILITY: &[u8] = b"security.capability";

/// Something that is not as an entry says, unless a later entry changed it.
pub(super) struct PossibleDamage {
    number: u64,
    pub(super) path: Vec<u8>,
    pub(super) reason: String,
    /// The bytes of a file are concerned, so that the tar cannot be right.
    pub(super) is_content: bool,
    /// Inodes that a later entry may have made.
    inodes: Vec<u64>,
}

/// An entry's place in the tree.
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

/// All that is expected of a tree.
pub(super) struct ExpectedTree {
    diff: Arc<OwnedFd>,
    pub(super) root: u64,
    inodes: HashMap<u64, ExpectedInode>,
    /// Inode of the directory and name.
    names: NameSet,
    last: Option<(Vec<u8>, Arc<OwnedFd>, u64)>,
    possible: Vec<PossibleDamage>,
    /// Names of whiteouts and global headers, with their numbers: containers/storage removes what bears them.
    removed: Vec<(u64, Vec<u8>)>,
    /// Times of directories that something else has replaced: they are set on that, or where it leads.
    late: HashMap<u64, Timespec>,
    /// Parents that were reached through a symbolic link, and the first entry in each.
    linked: Vec<(u64, Vec<u8>)>,
    /// An entry took another's place, so that the tree cannot tell what became of everything.
    pub(super) is_odd: bool,
}

impl ExpectedTree {
    /// Nothing is expected of the tree at `diff` yet.
    pub(super) fn new(diff: Arc<OwnedFd>) -> Result<Self, Errno> {
        let root = rustix::fs::fstat(&diff)?.st_ino;
        Ok(Self {
            diff,
            root,
            inodes: HashMap::new(),
            names: NameSet::default(),
            last: None,
            possible: Vec::new(),
            removed: Vec::new(),
            late: HashMap::new(),
            linked: Vec::new(),
            is_odd: false,
        })
    }

    /// What the inode must be, if the tar has it or needs it as a parent.
    pub(super) fn of(&self, inode: u64) -> Option<&ExpectedInode> {
        self.inodes.get(&inode)
    }

    /// Whether the tar has the name in the directory.
    pub(super) fn has_name(&self, directory: u64, base: &[u8]) -> bool {
        self.names.contains(&key(directory, base))
    }

    /// Takes note of the next entry; says where it is, if it is there and something to look at.
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
            // It makes nothing there, or is superfluous.
            Err(_) if entry.kind == TarEntryKind::GlobalHeader => return None,
            Err(Errno::NOTDIR) if base == OPAQUE => {
                self.add_opaque_file(directory);
                return None;
            }
            Err(Errno::NOTDIR) if hidden.is_some() => return None,
            Err(errno) => {
                self.miss(entry, errno);
                return None;
            }
        };
        if base == OPAQUE {
            // Any but the root is known: as an implicit one at least.
            let expected = self.inodes.entry(inode).or_insert_with(ExpectedInode::root);
            merge(&mut expected.xattrs, vec![opaque()]);
            return None;
        }
        if entry.kind == TarEntryKind::GlobalHeader && hidden.is_none() {
            // What is there by now was made later.
            if let Ok(stat) = rustix::fs::statat(&parent, base, AtFlags::SYMLINK_NOFOLLOW) {
                self.inodes.remove(&stat.st_ino);
                self.is_odd = true;
            }
            return None;
        }
        let base = hidden.unwrap_or(base);
        let stat = match rustix::fs::statat(&parent, base, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(errno) => {
                self.miss(entry, errno);
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
                    self.note_time(entry.path(), &stat, expected.mtime);
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

    /// Something is wrong with the content that an entry describes.
    pub(super) fn add_content_damage(&mut self, entry: &TarEntry, reason: String, file: Option<&FoundFile>) {
        // A file that is missing was noticed before.
        if self
            .possible
            .last()
            .is_none_or(|last| last.number != entry.number)
        {
            self.add_possible(
                entry,
                reason,
                file.map(|file| file.stat.st_ino).into_iter().collect(),
            );
        }
        if let Some(suspect) = self.possible.last_mut() {
            suspect.is_content = true;
        }
    }

    /// What is wrong for certain, when every entry was added.
    pub(super) fn take_confirmed(&mut self) -> Vec<PossibleDamage> {
        for (inode, time) in self.late.drain() {
            if let Some(expected) = self.inodes.get_mut(&inode) {
                expected.mtime = Some(time);
            }
        }
        let linked = std::mem::take(&mut self.linked);
        self.is_odd |=
            !self.late.is_empty() || linked.iter().any(|(number, path)| self.is_moved(*number, path));
        let mut possible = std::mem::take(&mut self.possible);
        let all = possible.len();
        possible.retain(|suspect| !self.is_replaced(suspect));
        self.is_odd |= possible.len() < all;
        // Of what is only missing nothing can be said then; of content the tar itself says it.
        possible.retain(|suspect| suspect.is_content || !self.is_odd);
        possible
    }

    /// Whether a later entry made one of the suspect's inodes, or something on the way to it: as long as that is what it
    /// was, nothing below can have gone by itself.
    fn is_replaced(&self, suspect: &PossibleDamage) -> bool {
        let is_later = |inode: &u64| self.of(*inode).is_some_and(|it| it.made > suspect.number);
        let is_removed = |(number, path): &(u64, Vec<u8>)| {
            let rest = suspect.path.strip_prefix(&path[..]);
            *number > suspect.number && rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
        };
        if suspect.inodes.iter().any(is_later) || self.removed.iter().any(is_removed) {
            return true;
        }
        self.is_moved(suspect.number, &suspect.path)
    }

    /// Whether an entry after this one made something on the way to a path.
    fn is_moved(&self, number: u64, path: &[u8]) -> bool {
        let is_later = |inode: &u64| self.of(*inode).is_some_and(|it| it.made > number);
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for (end, _) in slashes {
            for flags in [OFlags::NOFOLLOW, OFlags::empty()] {
                let (path, flags) = (&path[..end], flags | OFlags::PATH | OFlags::CLOEXEC);
                let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
                let Ok(stat) = opened.and_then(rustix::fs::fstat) else {
                    return false;
                };
                // A hard link has its number from its target.
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

    /// Times of directories are set when all is made, in the order of the tar, and on what is there then.
    fn note_time(&mut self, path: &[u8], stat: &Stat, time: Option<Timespec>) {
        self.late.remove(&stat.st_ino);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
            if let (Ok(stat), Some(time)) = (opened.and_then(rustix::fs::fstat), time) {
                self.late.insert(stat.st_ino, time);
            }
        }
    }

    /// An opaque mark for what is no directory goes to whatever it is.
    fn add_opaque_file(&mut self, path: &[u8]) {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let opened = open_in(self.diff.as_fd(), path, flags, ResolveFlags::empty());
        if let Ok(stat) = opened.and_then(rustix::fs::fstat)
            && let Some(expected) = self.inodes.get_mut(&stat.st_ino)
        {
            merge(&mut expected.xattrs, vec![opaque()]);
        }
    }

    /// The attributes are those of the last link, and each adds its extended ones.
    fn add_hard_link(&mut self, entry: &TarEntry, inode: Option<u64>) {
        let target = clean(&entry.link);
        let (directory, base) = split(in_root(&target));
        let found = self
            .directory(directory, entry.number)
            .and_then(|(directory, _)| rustix::fs::statat(&directory, base, AtFlags::SYMLINK_NOFOLLOW));
        let target_inode = found.map(|stat| stat.st_ino).ok();
        if let Some(inode) = inode.filter(|_| target_inode != inode) {
            let reason = format!("it is no hard link to `/{}`", EscapedName::new(in_root(&target)));
            self.add_possible(entry, reason, target_inode.into_iter().chain([inode]).collect());
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

    /// A directory that is made twice, by two names, keeps its extended attributes.
    fn expect(&mut self, inode: u64, mut expected: ExpectedInode) {
        if let Some(known) = self.inodes.get_mut(&inode)
            && (known.kind, expected.kind) == (FileType::Directory, FileType::Directory)
        {
            expected.made = expected.made.min(known.made);
            let mut xattrs = std::mem::take(&mut known.xattrs);
            merge(&mut xattrs, std::mem::take(&mut expected.xattrs));
            expected.xattrs = xattrs;
        }
        let earlier = self.inodes.insert(inode, expected);
        self.is_odd |= earlier.is_some_and(|earlier| {
            // A whiteout and then the same name is an ordinary thing, and nothing is below a whiteout.
            !earlier.is_whiteout() && earlier.kind != self.inodes[&inode].kind
        });
    }

    /// Opens a parent. It and those above it are expected from now on, whether or not the tar has them too.
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
                // With a slash, so that the last component is on the way as well.
                self.linked.push((number, [path, b"/"].concat()));
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

    /// The entry's place is not to be found. What a hard link says of its target holds nevertheless.
    fn miss(&mut self, entry: &TarEntry, errno: Errno) {
        self.add_possible(entry, missing(errno), Vec::new());
        let is_whiteout = split(entry.path()).1.starts_with(WHITEOUT_PREFIX);
        if entry.kind == TarEntryKind::HardLink && !is_whiteout {
            self.add_hard_link(entry, None);
        }
    }

    fn add_possible(&mut self, entry: &TarEntry, reason: String, inodes: Vec<u64>) {
        if self.possible.len() < MAX_POSSIBLE {
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
            self.possible.push(PossibleDamage {
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
        errno => format!("it cannot be found: {errno}"),
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
