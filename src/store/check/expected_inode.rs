//! What one inode of a layer's tree must be: kind, mode, owner, size, time, link target and extended attributes.

use rustix::fs::{FileType, Timespec};

use crate::store::unpack::{IMPLICIT_MODE, OPAQUE_XATTR, TarEntry, TarEntryKind, timestamps};

/// What an inode must be.
#[derive(Clone, Debug)]
pub(super) struct ExpectedInode {
    /// The number of the entry that created it; for a directory, of the first entry that needed it.
    pub(super) created_by: u64,
    pub(super) kind: FileType,
    pub(super) mode: u32,
    /// The bits of the mode that count.
    pub(super) mode_mask: u32,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) device: Option<(u32, u32)>,
    pub(super) mtime: Option<Timespec>,
    pub(super) target: Option<Box<[u8]>>,
    pub(super) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// A later hard link set the owner, which podman does even if it is unchanged. So file capabilities may or may
    /// not be present.
    pub(super) loose_capability: bool,
}

impl ExpectedInode {
    pub(super) fn of(entry: &TarEntry, kind: FileType) -> Self {
        let is_symlink = kind == FileType::Symlink;
        let mtime = match is_symlink {
            true => entry.mtime.settable_on_symlink(),
            false => timestamps(entry).last_modification,
        };
        let is_device = matches!(kind, FileType::CharacterDevice | FileType::BlockDevice);
        Self {
            created_by: entry.number,
            kind,
            mode: entry.mode,
            mode_mask: if is_symlink { 0 } else { 0o7777 },
            // -1 means no change.
            uid: Some(entry.uid).filter(|id| *id != u32::MAX),
            gid: Some(entry.gid).filter(|id| *id != u32::MAX),
            size: (kind == FileType::RegularFile).then_some(entry.size),
            device: is_device.then_some(entry.device),
            mtime: Some(mtime),
            target: is_symlink.then(|| entry.link.clone().into_boxed_slice()),
            xattrs: entry.xattrs.clone(),
            loose_capability: false,
        }
    }

    pub(super) fn is_whiteout(&self) -> bool {
        self.kind == FileType::CharacterDevice && self.device == Some((0, 0))
    }

    /// A whiteout. Its time is that of its creation.
    pub(super) fn whiteout(entry: &TarEntry) -> Self {
        Self {
            mode: 0,
            device: Some((0, 0)),
            mtime: None,
            xattrs: Vec::new(),
            ..Self::of(entry, FileType::CharacterDevice)
        }
    }

    /// The root, of which the tar only states that it is opaque.
    pub(super) fn root() -> Self {
        Self {
            mode_mask: 0,
            uid: None,
            gid: None,
            ..Self::implicit(0)
        }
    }

    /// A parent that has no entry in the tar.
    pub(super) fn implicit(number: u64) -> Self {
        Self {
            created_by: number,
            kind: FileType::Directory,
            mode: IMPLICIT_MODE,
            mode_mask: 0o777,
            uid: Some(0),
            gid: Some(0),
            size: None,
            device: None,
            mtime: None,
            target: None,
            xattrs: Vec::new(),
            loose_capability: false,
        }
    }
}

pub(super) fn opaque() -> (Vec<u8>, Vec<u8>) {
    let (name, value) = OPAQUE_XATTR;
    (name.as_bytes().to_vec(), value.to_vec())
}

pub(super) fn file_type(kind: TarEntryKind) -> FileType {
    match kind {
        TarEntryKind::Directory => FileType::Directory,
        TarEntryKind::Symlink => FileType::Symlink,
        TarEntryKind::CharDevice => FileType::CharacterDevice,
        TarEntryKind::BlockDevice => FileType::BlockDevice,
        TarEntryKind::Fifo => FileType::Fifo,
        TarEntryKind::File | TarEntryKind::HardLink | TarEntryKind::GlobalHeader | TarEntryKind::Other(_) => {
            FileType::RegularFile
        }
    }
}
