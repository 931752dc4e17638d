//! Finds the compressed debug sections of a new file whose zlib streams can be made again exactly, each with the same section
//! of the old file.
//!
//! Compressed bytes of similar content are not similar, so their contents are compared. Each content is written into one
//! scratch file, which the comparison and both formats read.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::ZlibDecoder;

use super::content::Content;
use super::error::DiffError;
use crate::cancel::Cancel;
use crate::delta::debug_sections::{CompressedSection, compressed_sections};
use crate::delta::{Codec, InflatedRange, find_codec};

/// Sections with more content stay compressed, to bound the memory.
pub(super) const MAX_CONTENT: u64 = 256 << 20;

/// A section of the new file.
#[derive(Debug)]
pub(super) struct SectionPair {
    /// Where its zlib stream is in the new file.
    pub(super) stream: Range<u64>,
    /// What compresses its content to that stream.
    pub(super) codec: Codec,
    /// Where its content is in the scratch file.
    pub(super) content: Range<u64>,
    /// The section of the old file, if it has one.
    pub(super) old: Option<OldSection>,
}

/// The section of the old file with the same name.
#[derive(Debug)]
pub(super) struct OldSection {
    /// Its zlib stream in the old file.
    pub(super) stream: InflatedRange,
    /// Where its content is in the scratch file.
    pub(super) content: Range<u64>,
}

/// A file for the contents of sections.
pub(super) struct Scratch<'a> {
    file: File,
    /// Its directory, for messages.
    directory: &'a Path,
    end: AtomicU64,
}

impl<'a> Scratch<'a> {
    pub(super) fn new(file: File, directory: &'a Path) -> Self {
        let end = AtomicU64::new(0);
        Self { file, directory, end }
    }

    /// What was appended.
    pub(super) fn content(&self, range: Range<u64>) -> Content<'_> {
        Content::new(&self.file, self.directory, range)
    }

    fn append(&self, content: &[u8]) -> Result<Range<u64>, DiffError> {
        let length = content.len() as u64;
        let start = self.end.fetch_add(length, Ordering::Relaxed);
        let written = self.file.write_all_at(content, start);
        written.map_err(DiffError::host("write a scratch file in", self.directory))?;
        Ok(start..start + length)
    }
}

/// The sections of `new` that can be made again, in their order. `old` is empty if there is no old file.
pub(super) fn find(
    new: &[u8],
    old: &[u8],
    scratch: &Scratch<'_>,
    cancel: &Cancel,
) -> Result<Vec<SectionPair>, DiffError> {
    let old_sections = compressed_sections(old);
    let mut pairs = Vec::new();
    for section in compressed_sections(new) {
        cancel.check()?;
        let old_section = old_sections
            .iter()
            .find(|old| plain_name(old) == plain_name(&section));
        let stream = stream(new, &section);
        if old_section.is_some_and(|section| self::stream(old, section) == stream) {
            // A copy of the compressed bytes is cheaper.
            continue;
        }
        let Some(content) = inflate(stream, section.inflated_length) else {
            continue;
        };
        let Some(codec) = find_codec(stream, &content) else {
            tracing::debug!(section = section.name, "no known compressor makes this section");
            continue;
        };
        let content = scratch.append(&content)?;
        let old = match old_section {
            Some(section) => old_content(old, section, scratch)?,
            None => None,
        };
        pairs.push(SectionPair {
            stream: section.offset..section.offset + section.length,
            codec,
            content,
            old,
        });
    }
    Ok(pairs)
}

fn old_content(
    old: &[u8],
    section: &CompressedSection,
    scratch: &Scratch<'_>,
) -> Result<Option<OldSection>, DiffError> {
    let Some(content) = inflate(stream(old, section), section.inflated_length) else {
        return Ok(None);
    };
    Ok(Some(OldSection {
        stream: InflatedRange {
            offset: section.offset,
            length: section.length,
            inflated_length: content.len() as u64,
        },
        content: scratch.append(&content)?,
    }))
}

/// `.zdebug_info` and `.debug_info` are the same section.
fn plain_name(section: &CompressedSection) -> &str {
    let name = section
        .name
        .strip_prefix(".z")
        .or_else(|| section.name.strip_prefix('.'));
    name.unwrap_or(&section.name)
}

/// The section's zlib stream, which is inside of the file.
fn stream<'a>(file: &'a [u8], section: &CompressedSection) -> &'a [u8] {
    let range = usize::try_from(section.offset)
        .ok()
        .zip(usize::try_from(section.offset + section.length).ok());
    range
        .and_then(|(start, end)| file.get(start..end))
        .unwrap_or_default()
}

/// The content of a zlib stream that takes all of these bytes; `None` if it is not one, or has more than `length` bytes.
fn inflate(stream: &[u8], length: u64) -> Option<Vec<u8>> {
    if length > MAX_CONTENT {
        return None;
    }
    let mut decoder = ZlibDecoder::new(stream);
    let mut content = Vec::new();
    decoder.by_ref().take(length + 1).read_to_end(&mut content).ok()?;
    let is_whole = decoder.total_in() == stream.len() as u64 && content.len() as u64 <= length;
    is_whole.then_some(content)
}
