//! Parses a TOC: the files of a layer with the digests of their contents, and where the blob has them.
//!
//! A TOC is hostile until the diffID says otherwise. It is parsed as a stream, its counts are limited, and its positions
//! must not overlap: otherwise a small blob could claim any amount of content.

use std::fmt;
use std::io::{BufReader, Read};
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};

use super::error::ChunkedError;
use crate::oci::Digest;

/// The most files with content. With the next two limits a TOC needs at most 25 MiB of memory.
const MAX_FILES: usize = 100_000;

/// The most chunks.
const MAX_CHUNKS: usize = 200_000;

/// The most bytes of all names.
const MAX_NAMES: usize = 8 << 20;

/// What a TOC states about the files with content.
#[derive(Debug)]
pub(super) struct Toc {
    /// Sorted by name.
    pub(super) files: Vec<TocFile>,
    pub(super) chunks: Vec<Chunk>,
    /// Digest of the compressed tar-split.
    pub(super) tar_split: Digest,
}

/// A regular file with content.
#[derive(Debug)]
pub struct TocFile {
    /// The name in the tar's header.
    pub name: Box<str>,
    /// Bytes of its content.
    pub size: u64,
    /// Digest of its content.
    pub digest: Digest,
    /// Its chunks, in order.
    pub(super) chunks: Range<u32>,
}

/// A part of a file that is compressed alone.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    /// Its compressed bytes in the blob.
    pub(super) compressed: Range<u64>,
    /// Its bytes in the file.
    pub(super) size: u64,
    pub(super) is_zeros: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    version: u64,
    entries: Entries,
    tar_split_digest: Option<Digest>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Entry {
    r#type: String,
    name: String,
    size: u64,
    digest: String,
    offset: u64,
    end_offset: u64,
    chunk_size: u64,
    chunk_offset: u64,
    chunk_type: String,
}

/// The entries that were read.
#[derive(Default)]
struct Entries {
    files: Vec<TocFile>,
    chunks: Vec<Chunk>,
    names: usize,
    /// The rest of the last file, if further chunks of it may follow.
    open: Option<OpenFile>,
}

struct OpenFile {
    /// Bytes of it that its chunks do not have yet.
    left: u64,
    /// Where its compressed bytes end.
    end: u64,
}

impl Toc {
    /// Parses `json`. All positions must be before `end` in the blob.
    pub(super) fn parse(json: impl Read, end: u64) -> Result<Self, ChunkedError> {
        let body: Body =
            serde_json::from_reader(BufReader::new(json)).map_err(|error| fault(&error.to_string()))?;
        if body.version != 1 {
            return Err(fault("unknown version"));
        }
        let tar_split = body
            .tar_split_digest
            .ok_or_else(|| fault("it has no tar-split"))?;
        let Entries {
            mut files, chunks, ..
        } = body.entries;
        let mut positions: Vec<&Range<u64>> = chunks.iter().map(|chunk| &chunk.compressed).collect();
        positions.sort_unstable_by_key(|range| range.start);
        if positions.windows(2).any(|pair| pair[0].end > pair[1].start) {
            return Err(fault("files overlap in the blob"));
        }
        if positions.last().is_some_and(|last| last.end > end) {
            return Err(fault("a file ends behind the files"));
        }
        files.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if files.windows(2).any(|pair| pair[0].name == pair[1].name) {
            return Err(fault("a name occurs twice"));
        }
        Ok(Self {
            files,
            chunks,
            tar_split,
        })
    }

    /// The number of the file with this name and size.
    pub(super) fn find(&self, name: &[u8], size: u64) -> Option<usize> {
        let found = self.files.binary_search_by(|file| file.name.as_bytes().cmp(name));
        found.ok().filter(|number| self.files[*number].size == size)
    }

    pub(super) fn chunks_of(&self, file: &TocFile) -> &[Chunk] {
        &self.chunks[file.chunks.start as usize..file.chunks.end as usize]
    }
}

impl Entries {
    fn add(&mut self, entry: &Entry) -> Result<(), &'static str> {
        if entry.r#type == "chunk" {
            return self.add_chunk(entry);
        }
        self.end_file()?;
        if entry.r#type != "reg" || entry.size == 0 {
            return Ok(());
        }
        self.names += entry.name.len();
        if self.files.len() >= MAX_FILES || self.names > MAX_NAMES {
            return Err("too many files");
        }
        let size = match entry.chunk_size {
            0 => entry.size,
            size => size,
        };
        let number = u32::try_from(self.chunks.len()).map_err(|_| "too many chunks")?;
        self.files.push(TocFile {
            name: entry.name.as_str().into(),
            size: entry.size,
            digest: entry.digest.parse().map_err(|_| "a file has no digest")?,
            chunks: number..number,
        });
        self.open = Some(OpenFile {
            left: entry.size,
            end: entry.end_offset,
        });
        self.push(entry, size)
    }

    fn add_chunk(&mut self, entry: &Entry) -> Result<(), &'static str> {
        let (Some(open), Some(file), Some(before)) = (&self.open, self.files.last(), self.chunks.last_mut())
        else {
            return Err("a chunk has no file");
        };
        if *file.name != *entry.name || entry.chunk_offset != file.size - open.left {
            return Err("a chunk does not continue its file");
        }
        before.compressed.end = entry.offset;
        if before.compressed.is_empty() {
            return Err("a chunk is empty");
        }
        self.push(entry, entry.chunk_size)
    }

    /// Adds a chunk with `size` bytes of the open file.
    fn push(&mut self, entry: &Entry, size: u64) -> Result<(), &'static str> {
        let (Some(open), Some(file)) = (&mut self.open, self.files.last_mut()) else {
            return Err("a chunk has no file");
        };
        open.left = open
            .left
            .checked_sub(size)
            .filter(|_| size > 0)
            .ok_or("a chunk has a wrong size")?;
        if self.chunks.len() >= MAX_CHUNKS || entry.offset >= open.end {
            return Err("too many chunks, or one without a position");
        }
        self.chunks.push(Chunk {
            compressed: entry.offset..open.end,
            size,
            is_zeros: entry.chunk_type == "zeros",
        });
        file.chunks.end += 1;
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), &'static str> {
        match self.open.take() {
            Some(open) if open.left > 0 => Err("a file lacks chunks"),
            _ => Ok(()),
        }
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of entries")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Entries, A::Error> {
                let mut entries = Entries::default();
                while let Some(entry) = list.next_element::<Entry>()? {
                    entries.add(&entry).map_err(A::Error::custom)?;
                }
                entries.end_file().map_err(A::Error::custom)?;
                Ok(entries)
            }
        }
        deserializer.deserialize_seq(Reader)
    }
}

fn fault(reason: &str) -> ChunkedError {
    ChunkedError::Toc(reason.to_owned())
}
