//! Makes tar entries, impossible ones too.

use crate::image::tar::{Entry, Magic, entry};

pub(super) fn file(name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Entry {
    let data = data.as_ref().to_vec();
    Entry {
        data,
        ..entry(b'0', name)
    }
}

pub(super) fn dir(name: impl AsRef<[u8]>) -> Entry {
    entry(b'5', name).mode(0o755)
}

pub(super) fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(b'2', name).mode(0o777).link(target)
}

pub(super) fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    entry(b'1', name).link(target)
}

/// GNU long name or link, `L` or `K`, for the entry after it.
pub(super) fn gnu_long(typeflag: u8, name: impl AsRef<[u8]>) -> Entry {
    file("././@LongLink", [name.as_ref(), b"\0"].concat())
        .with_type(typeflag)
        .gnu()
}

impl Entry {
    pub(super) fn with_type(self, typeflag: u8) -> Self {
        Self { typeflag, ..self }
    }

    pub(super) fn gnu(self) -> Self {
        let magic = Magic::Gnu;
        Self { magic, ..self }
    }

    pub(super) fn v7(self) -> Self {
        let magic = Magic::V7;
        Self { magic, ..self }
    }

    pub(super) fn mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    pub(super) fn link(self, link: impl AsRef<[u8]>) -> Self {
        let link = link.as_ref().to_vec();
        Self { link, ..self }
    }

    pub(super) fn owner(self, uid: u64, gid: u64) -> Self {
        Self { uid, gid, ..self }
    }

    pub(super) fn mtime(self, seconds: i64) -> Self {
        Self { seconds, ..self }
    }

    pub(super) fn device(self, major: u32, minor: u32) -> Self {
        let device = (major, minor);
        Self { device, ..self }
    }

    pub(super) fn size(self, size: u64) -> Self {
        let size = Some(size);
        Self { size, ..self }
    }

    pub(super) fn pax(mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.as_ref().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub(super) fn xattr(self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(format!("SCHILY.xattr.{key}"), value)
    }

    pub(super) fn patch(mut self, offset: usize, bytes: impl AsRef<[u8]>) -> Self {
        self.patches.push((offset, bytes.as_ref().to_vec()));
        self
    }

    /// Headers, data and padding.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut tar = Vec::new();
        self.write(&mut tar);
        tar
    }
}

/// Entries and the two blocks of zeros.
pub(super) fn tar(entries: impl IntoIterator<Item = Entry>) -> Vec<u8> {
    let mut out: Vec<u8> = entries.into_iter().flat_map(|entry| entry.bytes()).collect();
    out.extend([0; 1024]);
    out
}
