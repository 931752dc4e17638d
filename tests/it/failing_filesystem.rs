//! Mounts a FUSE file system that passes one flat directory through and fails on request.
//!
//! FUSE, mounted by the test itself. Each file is kept open from the moment it is looked up, so that one that was removed
//! answers as on any disk. Locks are the kernel's, nothing is cached, and every write arrives here one by one.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
};

/// What is asked of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Lookup,
    Open,
    Create,
    Read,
    Write,
    Sync,
    Rename,
    Unlink,
    List,
    Statfs,
}

/// Which operations fail: those on a name that contains `name`, except the first `after`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) op: Op,
    pub(crate) name: &'static str,
    pub(crate) after: u64,
    pub(crate) errno: i32,
}

#[derive(Debug, Default)]
struct Rules {
    rule: Option<Rule>,
    seen: u64,
    failed: u64,
    /// Bytes that cannot be read, of files whose names contain this.
    damaged: Option<(String, Range<u64>)>,
    /// How many reads still succeed. After the last one nothing does.
    reads_left: Option<u64>,
}

/// A mounted file system; unmounted when dropped.
pub(crate) struct Failing {
    rules: Arc<Mutex<Rules>>,
    _session: BackgroundSession,
}

impl Failing {
    /// Shows the directory `backing` at `at`; both are made.
    pub(crate) fn mount(backing: &Path, at: &Path) -> Self {
        for dir in [backing, at] {
            fs::create_dir_all(dir).unwrap();
        }
        let rules = Arc::<Mutex<Rules>>::default();
        let passthrough = Passthrough {
            dir: backing.into(),
            rules: Arc::clone(&rules),
            nodes: HashMap::new(),
        };
        let options = [MountOption::FSName("failing".into())];
        let session = fuser::spawn_mount2(passthrough, at, &options).expect("mounting a FUSE file system");
        Self {
            rules,
            _session: session,
        }
    }

    /// Fails from now on.
    pub(crate) fn fail(&self, rule: Rule) {
        *self.rules.lock().unwrap() = Rules {
            rule: Some(rule),
            ..Rules::default()
        };
    }

    /// From now on the bytes at `range` of files whose names contain `name` cannot be read.
    pub(crate) fn damage(&self, name: &str, range: Range<u64>) {
        self.rules.lock().unwrap().damaged = Some((name.to_owned(), range));
    }

    /// Answers so many reads, and after that every operation with EIO: a disk that somebody has unplugged.
    pub(crate) fn unplug_after(&self, reads: u64) {
        self.rules.lock().unwrap().reads_left = Some(reads);
    }

    /// Ends the failures. Returns how many operations failed.
    pub(crate) fn end_faults(&self) -> u64 {
        std::mem::take(&mut *self.rules.lock().unwrap()).failed
    }
}

struct Node {
    file: File,
    name: String,
}

struct Passthrough {
    dir: PathBuf,
    rules: Arc<Mutex<Rules>>,
    /// By inode number.
    nodes: HashMap<u64, Node>,
}

/// The kernel asks each time.
const TTL: Duration = Duration::ZERO;

/// The inode of the directory itself.
const ROOT: u64 = 1;

impl Passthrough {
    fn check(&self, op: Op, name: &str) -> io::Result<()> {
        let mut rules = self.rules.lock().unwrap();
        match &mut rules.reads_left {
            Some(0) => {
                rules.failed += 1;
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            Some(left) if op == Op::Read => *left -= 1,
            _ => {}
        }
        let Some(rule) = rules
            .rule
            .filter(|rule| rule.op == op && name.contains(rule.name))
        else {
            return Ok(());
        };
        rules.seen += 1;
        if rules.seen <= rule.after {
            return Ok(());
        }
        rules.failed += 1;
        Err(io::Error::from_raw_os_error(rule.errno))
    }

    /// Fails if the file has damaged bytes here.
    fn check_bytes(&self, name: &str, range: Range<u64>) -> io::Result<()> {
        let mut rules = self.rules.lock().unwrap();
        let is_damaged = rules.damaged.as_ref().is_some_and(|(damaged, bytes)| {
            name.contains(damaged) && bytes.start < range.end && range.start < bytes.end
        });
        if !is_damaged {
            return Ok(());
        }
        rules.failed += 1;
        Err(io::Error::from_raw_os_error(libc::EIO))
    }

    fn node(&self, inode: u64) -> io::Result<&Node> {
        self.nodes
            .get(&inode)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn name(&self, inode: u64) -> &str {
        self.nodes.get(&inode).map_or("", |node| &node.name)
    }

    fn attr(&self, inode: u64) -> io::Result<FileAttr> {
        let metadata = match inode {
            ROOT => fs::metadata(&self.dir)?,
            inode => self.node(inode)?.file.metadata()?,
        };
        let time = |seconds: i64, nanoseconds: i64| {
            let since = Duration::new(seconds.try_into().unwrap(), nanoseconds.try_into().unwrap());
            SystemTime::UNIX_EPOCH + since
        };
        let kind = match metadata.is_dir() {
            true => FileType::Directory,
            false => FileType::RegularFile,
        };
        Ok(FileAttr {
            ino: inode,
            size: metadata.len(),
            blocks: metadata.blocks(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: (metadata.mode() & 0o7777) as u16,
            nlink: metadata.nlink().try_into().unwrap(),
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn enter(&mut self, name: &OsStr, options: &OpenOptions) -> io::Result<FileAttr> {
        let file = options.open(self.dir.join(name))?;
        let inode = file.metadata()?.ino();
        let name = name.to_string_lossy().into_owned();
        let node = self.nodes.entry(inode).or_insert_with(|| Node {
            file,
            name: name.clone(),
        });
        node.name = name;
        self.attr(inode)
    }

    fn list(&self) -> io::Result<Vec<(u64, String)>> {
        let entries = fs::read_dir(&self.dir)?.flatten();
        let known = |entry: fs::DirEntry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (entry.metadata().map_or(0, |metadata| metadata.ino()), name)
        };
        Ok(entries.map(known).collect())
    }
}

fn errno(error: &io::Error) -> i32 {
    let of_kind = match error.kind() {
        io::ErrorKind::NotFound => libc::ENOENT,
        _ => libc::EIO,
    };
    error.raw_os_error().unwrap_or(of_kind)
}

fn read_write() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn reply_empty(reply: ReplyEmpty, result: io::Result<()>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(errno(&error)),
    }
}

impl Filesystem for Passthrough {
    fn lookup(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEntry) {
        let checked = self.check(Op::Lookup, &name.to_string_lossy());
        match checked.and_then(|()| self.enter(name, &read_write())) {
            Ok(attr) => reply.entry(&TTL, &attr, 0),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn getattr(&mut self, _: &Request<'_>, inode: u64, _handle: Option<u64>, reply: ReplyAttr) {
        match self.attr(inode) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &mut self,
        _: &Request<'_>,
        inode: u64,
        mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<u64>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<u32>,
        reply: ReplyAttr,
    ) {
        let set = || {
            if let Some(mode) = mode {
                let path = match inode {
                    ROOT => self.dir.clone(),
                    inode => self.dir.join(self.name(inode)),
                };
                fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
            }
            if let Some(size) = size {
                self.node(inode)?.file.set_len(size)?;
            }
            if let Some(TimeOrNow::SpecificTime(time)) = mtime {
                self.node(inode)?.file.set_modified(time)?;
            }
            self.attr(inode)
        };
        match set() {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(
        &mut self,
        _: &Request<'_>,
        _parent: u64,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let mut options = read_write();
        match flags & libc::O_EXCL {
            0 => options.create(true).truncate(false),
            _ => options.create_new(true),
        };
        options.mode(mode);
        let checked = self.check(Op::Create, &name.to_string_lossy());
        match checked.and_then(|()| self.enter(name, &options)) {
            Ok(attr) => reply.created(&TTL, &attr, 0, 0, 0),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&mut self, _: &Request<'_>, inode: u64, _flags: i32, reply: ReplyOpen) {
        match self.check(Op::Open, self.name(inode)) {
            Ok(()) => reply.opened(0, 0),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        inode: u64,
        _handle: u64,
        offset: i64,
        size: u32,
        _flags: i32,
        _owner: Option<u64>,
        reply: ReplyData,
    ) {
        let (mut bytes, begin) = (vec![0; size as usize], offset as u64);
        let read = self
            .check(Op::Read, self.name(inode))
            .and_then(|()| self.check_bytes(self.name(inode), begin..begin + u64::from(size)))
            .and_then(|()| self.node(inode)?.file.read_at(&mut bytes, begin));
        match read {
            Ok(length) => reply.data(&bytes[..length]),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn write(
        &mut self,
        _: &Request<'_>,
        inode: u64,
        _handle: u64,
        offset: i64,
        bytes: &[u8],
        _write_flags: u32,
        _flags: i32,
        _owner: Option<u64>,
        reply: ReplyWrite,
    ) {
        let written = self
            .check(Op::Write, self.name(inode))
            .and_then(|()| self.node(inode)?.file.write_all_at(bytes, offset as u64));
        match written {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn flush(&mut self, _: &Request<'_>, _inode: u64, _handle: u64, _owner: u64, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&mut self, _: &Request<'_>, inode: u64, _handle: u64, _data: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.check(Op::Sync, self.name(inode)));
    }

    fn fsyncdir(&mut self, _: &Request<'_>, _inode: u64, _handle: u64, _data: bool, reply: ReplyEmpty) {
        reply_empty(reply, self.check(Op::Sync, "."));
    }

    fn unlink(&mut self, _: &Request<'_>, _parent: u64, name: &OsStr, reply: ReplyEmpty) {
        let checked = self.check(Op::Unlink, &name.to_string_lossy());
        reply_empty(reply, checked.and_then(|()| fs::remove_file(self.dir.join(name))));
    }

    fn rename(
        &mut self,
        _: &Request<'_>,
        _parent: u64,
        name: &OsStr,
        _new_parent: u64,
        new_name: &OsStr,
        _flags: u32,
        reply: ReplyEmpty,
    ) {
        let renamed = self
            .check(Op::Rename, &name.to_string_lossy())
            .and_then(|()| fs::rename(self.dir.join(name), self.dir.join(new_name)));
        if renamed.is_ok() {
            for node in self.nodes.values_mut().filter(|node| *node.name == *name) {
                node.name = new_name.to_string_lossy().into_owned();
            }
        }
        reply_empty(reply, renamed);
    }

    fn readdir(
        &mut self,
        _: &Request<'_>,
        _inode: u64,
        _handle: u64,
        offset: i64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.check(Op::List, ".").and_then(|()| self.list());
        match listed {
            Ok(names) => {
                let names = names.iter().enumerate().skip(offset as usize);
                for (position, (inode, name)) in names {
                    if reply.add(*inode, position as i64 + 1, FileType::RegularFile, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&mut self, _: &Request<'_>, _inode: u64, reply: ReplyStatfs) {
        let checked = self.check(Op::Statfs, ".");
        match checked.and_then(|()| Ok(rustix::fs::statvfs(&self.dir)?)) {
            Ok(disk) => reply.statfs(
                disk.f_blocks,
                disk.f_bfree,
                disk.f_bavail,
                disk.f_files,
                disk.f_ffree,
                disk.f_bsize as u32,
                disk.f_namemax as u32,
                disk.f_frsize as u32,
            ),
            Err(error) => reply.error(errno(&error)),
        }
    }
}
