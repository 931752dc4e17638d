//! Lists the entries of a layer's uncompressed tar, and where the data of its files is.

use std::io::Read;

use super::entry_name::{clean, in_root};
use super::error::UnpackError;
use super::limits::UnpackLimits;
use super::tar_reader::{TarEntryKind, TarReader};
use super::tar_stream::TarStream;
use super::tree_writer::{OPAQUE, WHITEOUT_PREFIX};
use super::{entry_name, finish_stream};
use crate::cancel::Cancel;
use crate::oci::DiffId;
use crate::store::Compression;

/// One entry of a layer's tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its path below the root, without a leading `/`. For a whiteout, the path that it removes; for an opaque marker,
    /// the directory.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ListedKind,
}

/// What an entry of a layer's tar is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListedKind {
    /// A regular file whose bytes are contiguous in the tar.
    File {
        /// Bytes of the tar before them.
        offset: u64,
        /// Their number.
        size: u64,
    },
    /// A directory.
    Directory,
    /// A hard link to this path below the root.
    HardLink(Vec<u8>),
    /// Removes a path of the layers below.
    Whiteout,
    /// Removes everything in a directory that the layers below have.
    Opaque,
    /// A symbolic link to this target, which may be any text.
    Symlink(Vec<u8>),
    /// A device, a FIFO or a sparse file.
    Other,
}

/// What the tar is as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedTar {
    /// SHA-256 of the whole uncompressed stream.
    pub diff_id: DiffId,
    /// Its length in bytes.
    pub size: u64,
    /// How the blob is compressed; offsets count bytes of the uncompressed stream.
    pub compression: Compression,
}

/// Reads `tar` to its end and passes every entry to `each`.
pub fn list(
    tar: impl Read,
    limits: UnpackLimits<'_>,
    cancel: &Cancel,
    mut each: impl FnMut(ListedEntry),
) -> Result<ListedTar, UnpackError> {
    let mut entries = TarReader::new(TarStream::open(tar, limits, cancel)?);
    while let Some(entry) = entries.next(&mut |_| Ok(()))? {
        if entry.is_dot() || entry.kind == TarEntryKind::GlobalHeader {
            continue;
        }
        let (directory, base) = entry_name::split(entry.path());
        if base == OPAQUE {
            let (path, kind) = (directory.to_vec(), ListedKind::Opaque);
            each(ListedEntry { path, kind });
            continue;
        }
        if let Some(hidden) = base.strip_prefix(WHITEOUT_PREFIX) {
            let path = match directory {
                b"" => hidden.to_vec(),
                directory => [directory, b"/", hidden].concat(),
            };
            let kind = ListedKind::Whiteout;
            each(ListedEntry { path, kind });
            continue;
        }
        let kind = match entry.kind {
            TarEntryKind::File if entry.sparse.is_none() => ListedKind::File {
                offset: entry.offset,
                size: entry.size,
            },
            TarEntryKind::Directory => ListedKind::Directory,
            TarEntryKind::HardLink => ListedKind::HardLink(in_root(&clean(&entry.link)).to_vec()),
            TarEntryKind::Symlink => ListedKind::Symlink(entry.link.to_vec()),
            _ => ListedKind::Other,
        };
        let path = entry.path().to_vec();
        each(ListedEntry { path, kind });
    }
    let stream = finish_stream(entries, |_| Ok(()))?;
    let compression = stream.compression();
    let (diff_id, size) = stream.finish();
    Ok(ListedTar {
        diff_id,
        size,
        compression,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, kind: u8, link: &str, size: usize) -> Vec<u8> {
        let mut block = vec![0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[148..156].copy_from_slice(b"        ");
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        block[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        block
    }

    #[test]
    fn entries_are_listed_with_what_they_do_to_a_path() {
        let mut data = b"four".to_vec();
        data.resize(512, 0);
        let tar = [
            header("./", b'5', "", 0),
            header("./d/", b'5', "", 0),
            header("./d/file", b'0', "", 4),
            data,
            header("./link", b'1', "./d/../d/file", 0),
            header("./symlink", b'2', "d", 0),
            header("./d/.wh.gone", b'0', "", 0),
            header(".wh.top", b'0', "", 0),
            header("d/.wh..wh..opq", b'0', "", 0),
            vec![0; 1024],
            b"after the end".to_vec(),
        ]
        .concat();
        let mut found = Vec::new();
        let limits = UnpackLimits::for_blob(0);
        let listed = list(&tar[..], limits, &Cancel::default(), |entry| {
            let path = String::from_utf8(entry.path).expect("the names are ASCII");
            found.push((path, entry.kind));
        });
        let listed = listed.expect("the tar is well-formed");
        assert_eq!(listed.diff_id, DiffId(crate::oci::Digest::of(&tar)));
        assert_eq!(listed.size, tar.len() as u64);
        assert_eq!(listed.compression, Compression::Uncompressed);
        let file = ListedKind::File {
            offset: 1536,
            size: 4,
        };
        let expected = [
            ("d", ListedKind::Directory),
            ("d/file", file),
            ("link", ListedKind::HardLink(b"d/file".to_vec())),
            ("symlink", ListedKind::Symlink(b"d".to_vec())),
            ("d/gone", ListedKind::Whiteout),
            ("top", ListedKind::Whiteout),
            ("d", ListedKind::Opaque),
        ];
        assert_eq!(found, expected.map(|(path, kind)| (path.to_owned(), kind)));
    }
}
