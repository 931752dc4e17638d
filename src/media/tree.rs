//! Finds files of a medium by path, whether they are in a directory or in archives.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::FileType;

use super::archive::{Archive, Span};
use super::directory::Directory;
use crate::oci::Digest;

/// The files of one medium.
#[derive(Debug)]
pub(super) enum Tree {
    Directory(Directory),
    Archive(Archive),
}

/// Where a file's bytes are.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) size: u64,
    kind: PlaceKind,
}

#[derive(Clone, Debug)]
enum PlaceKind {
    /// A path below the directory.
    Path(String),
    /// Bytes of an archive.
    Span(Span),
}

/// An open file with the bytes of a [`Place`].
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    /// Where the bytes begin in the file.
    pub(super) start: u64,
}

impl Tree {
    /// The regular file at this path, relative to the medium; none if there is no such file.
    pub(super) fn find(&self, path: &str) -> io::Result<Option<Place>> {
        match self {
            Self::Directory(directory) => {
                let place = |size| Place {
                    size,
                    kind: PlaceKind::Path(path.to_owned()),
                };
                Ok(directory.size_of(path)?.map(place))
            }
            Self::Archive(archive) => Ok(archive.find(path).map(|span| Place {
                size: span.size,
                kind: PlaceKind::Span(span),
            })),
        }
    }

    /// Opens a file that was found before.
    pub(super) fn open(&self, place: &Place) -> io::Result<Opened> {
        match (self, &place.kind) {
            (Self::Directory(directory), PlaceKind::Path(path)) => {
                let file = directory.file(path)?;
                let size = file.metadata()?.len();
                if size != place.size {
                    let changed = format!("its length has changed from {} to {size} bytes", place.size);
                    return Err(io::Error::other(changed));
                }
                Ok(Opened {
                    file: Arc::new(file),
                    start: 0,
                })
            }
            (Self::Archive(archive), PlaceKind::Span(span)) => Ok(Opened {
                file: archive.file(*span),
                start: span.start,
            }),
            // A place of another medium.
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The bytes of a file that was found before.
    pub(super) fn bytes(&self, place: &Place, limit: u64) -> io::Result<Vec<u8>> {
        if place.size > limit {
            let size = place.size;
            let why = format!("it has {size} bytes, and at most {limit} are read");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        let mut bytes = vec![0; usize::try_from(place.size).map_err(io::Error::other)?];
        let opened = self.open(place)?;
        opened.file.read_exact_at(&mut bytes, opened.start)?;
        Ok(bytes)
    }

    /// The bytes of the file at this path, if there is one.
    pub(super) fn read(&self, path: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let place = self.find(path)?;
        place.map(|place| self.bytes(&place, limit)).transpose()
    }

    /// Whether there is a directory at this path.
    pub(super) fn has_directory(&self, path: &str) -> io::Result<bool> {
        match self {
            Self::Directory(directory) => directory.has_directory(path),
            Self::Archive(archive) => Ok(archive.has_directory(path)),
        }
    }

    /// The names of the directories in the directory at this path; empty if there is none. Links are not followed.
    pub(super) fn directories(&self, path: &str) -> io::Result<Vec<String>> {
        self.names(path, FileType::Directory)
    }

    /// The names of the regular files in the directory at this path; empty if there is none.
    pub(super) fn files(&self, path: &str) -> io::Result<Vec<String>> {
        self.names(path, FileType::RegularFile)
    }

    fn names(&self, path: &str, wanted: FileType) -> io::Result<Vec<String>> {
        let entries = match self {
            Self::Directory(directory) => directory.entries(path)?,
            Self::Archive(archive) => archive.entries(path),
        };
        let wanted = entries.into_iter().filter(|(_, kind)| *kind == wanted);
        Ok(wanted.map(|(name, _)| name).collect())
    }

    /// Whether a file at the top has a digest as its name.
    pub(super) fn has_blob_at_top(&self) -> io::Result<bool> {
        let names = self.files("")?;
        Ok(names.iter().any(|name| name.parse::<Digest>().is_ok()))
    }

    /// Looks into the only directory at the top of an archive; false if there is more, or if it is a directory of the disk.
    pub(super) fn enter_directory(&mut self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::Archive(archive) => archive.enter_directory(),
        }
    }
}
