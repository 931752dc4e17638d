//! Describes one layer by its TOC and its tar-split, and chooses which chunks must be downloaded.

use std::io::{BufReader, Read as _};
use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;

use super::chunked_option::ChunkedOption;
use super::error::ChunkedError;
use super::metadata::Metadata;
use super::section::{Decompressed, Section};
use super::toc::{Chunk, Toc, TocFile};
use crate::cancel::Cancel;
use crate::delta::{DeltaSource, SourceFile, is_worthwhile};
use crate::oci::{Digest, Layer};
use crate::store::tar_split::{Record, Records};

/// Unneeded bytes between two chunks that are downloaded with them, because a request costs a round trip: what a link of
/// 10 Mbit/s transfers in 50 ms. Between most files there is only the frame of a header, some hundred bytes.
const GAP: u64 = 64 << 10;

/// The most requests for one blob; each range is a file in the spool. More are merged over longer gaps.
const MAX_RANGES: usize = 512;

/// A layer whose TOC and tar-split are known.
#[derive(Debug)]
pub struct ChunkedLayer {
    blob: Digest,
    size: u64,
    metadata: Metadata,
    pub(super) toc: Toc,
    /// Length of the tar.
    tar_size: u64,
}

impl ChunkedLayer {
    /// Parses the TOC and the tar-split. `bytes` is the blob from [`Metadata::range`] on.
    ///
    /// # Errors
    /// If they are malformed, or if the tar-split needs a file that the TOC does not have.
    pub fn parse(
        layer: &Layer,
        metadata: &Metadata,
        bytes: Bytes,
        cancel: &Cancel,
    ) -> Result<Self, ChunkedError> {
        let start = metadata.range.start;
        let blob: Rc<dyn SourceFile> = Rc::new(Shifted { bytes, start });
        let toc = read_toc(&blob, metadata)?;
        let mut records = open_tar_split(&blob, metadata)?;
        let mut tar_size = 0_u64;
        while let Some(record) = records.next_record()? {
            cancel.check()?;
            let length = match record {
                Record::Segment(bytes) => bytes.len() as u64,
                Record::File { name, size, .. } => {
                    if size > 0 && toc.find(&name, size).is_none() {
                        let reason = "the tar has a file that the table of contents does not have";
                        return Err(ChunkedError::Toc(reason.to_owned()));
                    }
                    size
                }
            };
            tar_size = tar_size.saturating_add(length);
        }
        Ok(Self {
            blob: layer.blob,
            size: layer.size,
            metadata: metadata.clone(),
            toc,
            tar_size,
        })
    }

    /// Up to `count` files, the largest ones.
    pub fn largest_files(&self, count: usize) -> Vec<&TocFile> {
        let mut files: Vec<&TocFile> = self.toc.files.iter().collect();
        files.sort_by_key(|file| std::cmp::Reverse(file.size));
        files.truncate(count);
        files
    }

    /// How to make the layer with files of `images`. `find` returns the number of the image that has the content of a
    /// file under its name. None if too few files are found; the rest is not searched then.
    ///
    /// # Errors
    /// If `find` fails.
    pub fn choose<E>(
        &self,
        images: Vec<DeltaSource>,
        mut find: impl FnMut(&TocFile) -> Result<Option<u8>, E>,
    ) -> Result<Option<ChunkedOption>, E> {
        let mut missing = vec![self.metadata.range.clone()];
        let mut bytes = self.metadata.length();
        let mut origins = Vec::new();
        for file in &self.toc.files {
            let origin = find(file)?;
            origins.push(origin);
            if origin.is_none() {
                let chunks = self.toc.chunks_of(file).iter().filter(|chunk| !chunk.is_zeros);
                for Chunk { compressed, .. } in chunks {
                    bytes += compressed.end - compressed.start;
                    missing.push(compressed.clone());
                }
            }
            if !is_worthwhile(bytes, self.size) {
                return Ok(None);
            }
        }
        let ranges = merge(missing);
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        Ok(is_worthwhile(bytes, self.size).then(|| ChunkedOption {
            blob: self.blob,
            size: self.size,
            metadata: self.metadata.clone(),
            ranges,
            bytes,
            images,
            tar_size: self.tar_size,
            origins,
        }))
    }
}

/// Reads the TOC, and compares its digest with the annotation.
pub(super) fn read_toc(blob: &Rc<dyn SourceFile>, metadata: &Metadata) -> Result<Toc, ChunkedError> {
    let start = metadata.range.start;
    let compressed = read(blob, start..start + metadata.toc_length)?;
    if Digest::of(&compressed) != metadata.toc_digest {
        return Err(ChunkedError::Toc(
            "its digest is not that in the manifest".to_owned(),
        ));
    }
    let json = Section::new(blob, start..start + metadata.toc_length).decompress(metadata.toc_size);
    let toc = Toc::parse(json.map_err(ChunkedError::Host)?, start)?;
    let compressed = read(blob, start + metadata.tar_split_start..metadata.range.end)?;
    match Digest::of(&compressed) == toc.tar_split {
        true => Ok(toc),
        false => Err(ChunkedError::TarSplit(
            "its digest is not that in the table of contents".to_owned(),
        )),
    }
}

/// The records of a tar-split whose digest [`read_toc`] compared.
pub(super) fn open_tar_split(
    blob: &Rc<dyn SourceFile>,
    metadata: &Metadata,
) -> Result<Records<BufReader<Decompressed>>, ChunkedError> {
    let range = metadata.range.start + metadata.tar_split_start..metadata.range.end;
    let lines = Section::new(blob, range).decompress(metadata.tar_split_size);
    Ok(Records::new(BufReader::new(lines.map_err(ChunkedError::Host)?)))
}

fn read(blob: &Rc<dyn SourceFile>, range: Range<u64>) -> Result<Vec<u8>, ChunkedError> {
    let mut bytes = Vec::new();
    Section::new(blob, range)
        .read_to_end(&mut bytes)
        .map_err(ChunkedError::Host)?;
    Ok(bytes)
}

/// Merges ranges with short gaps between them, and over longer gaps until they are few.
fn merge(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    let mut gap = GAP;
    loop {
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start.saturating_sub(last.end) <= gap => {
                    last.end = last.end.max(range.end)
                }
                _ => merged.push(range),
            }
        }
        if merged.len() <= MAX_RANGES {
            return merged;
        }
        (ranges, gap) = (merged, gap * 2);
    }
}

/// Some bytes of a blob, from `start` on.
struct Shifted {
    bytes: Bytes,
    start: u64,
}

impl SourceFile for Shifted {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let skipped = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX);
        let rest = self.bytes.get(skipped..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::single_range_in_vec_init)]

    use super::*;

    #[test]
    fn ranges_are_merged_over_short_gaps_and_when_they_are_many() {
        let far = GAP + 1;
        assert_eq!(merge(vec![900..950, 0..10, 20..30]), [0..950]);
        assert_eq!(
            merge(vec![0..10, 10 + far..20 + far]),
            [0..10, 10 + far..20 + far]
        );
        let many = (0..1000).map(|number| number * 2 * far..number * 2 * far + 1);
        assert_eq!(merge(many.collect()), [0..999 * 2 * far + 1]);
        let uneven = (0..1000_u64).map(|number| {
            let start = number * far + number / 4 * 8 * far;
            start..start + 1
        });
        let merged = merge(uneven.collect());
        assert_eq!(merged.len(), 250, "the short gaps first");
        assert!(merged.iter().all(|range| range.end - range.start == 3 * far + 1));
    }
}
