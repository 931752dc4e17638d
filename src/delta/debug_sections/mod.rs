//! Finds the compressed debug sections of an ELF file.
//!
//! ```text
//! SHF_COMPRESSED, ch_type ELFCOMPRESS_ZLIB   Chdr (12 or 24 bytes) │ zlib stream
//! .zdebug_*, GNU's older form                "ZLIB", size as u64 big-endian │ zlib stream
//! ```
//!
//! Only the zlib stream is of interest: a delta leaves headers as they are.

use object::read::elf::{ElfFile, FileHeader};
use object::{CompressionFormat, Endianness, FileKind, Object, ObjectSection};

/// Largest inflated length of a section that is inflated for a delta.
const MAX_INFLATED_LENGTH: u64 = 1 << 30;

/// Deflate expands to at most this many times its length: 258 bytes for two bits.
const MAX_RATIO: u64 = 1032;

/// Longest name that is kept; a damaged file may contain names of any length.
const MAX_NAME_LENGTH: usize = 64;

/// A section whose content is a zlib stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedSection {
    /// Its name, such as `.debug_info`.
    pub name: String,
    /// Where its zlib stream starts in the file.
    pub offset: u64,
    /// Length of the zlib stream.
    pub length: u64,
    /// Length of its content, as the section's header states it: only a bound until the stream was inflated.
    pub inflated_length: u64,
}

/// The compressed sections of a file, in the order of their offsets. They are inside the file and do not overlap. There are
/// none if the file is not ELF or is damaged.
pub fn compressed_sections(file: &[u8]) -> Vec<CompressedSection> {
    match FileKind::parse(file) {
        Ok(FileKind::Elf32) => sections::<object::elf::FileHeader32<Endianness>>(file),
        Ok(FileKind::Elf64) => sections::<object::elf::FileHeader64<Endianness>>(file),
        _ => Vec::new(),
    }
}

fn sections<Elf: FileHeader<Endian = Endianness>>(file: &[u8]) -> Vec<CompressedSection> {
    let Ok(elf) = ElfFile::<Elf>::parse(file) else {
        return Vec::new();
    };
    let mut found: Vec<_> = elf
        .sections()
        .filter_map(|section| {
            let range = section.compressed_file_range().ok()?;
            let end = range.offset.checked_add(range.compressed_size)?;
            let usable = range.format == CompressionFormat::Zlib
                && end <= file.len() as u64
                && range.uncompressed_size <= MAX_INFLATED_LENGTH
                && range.uncompressed_size <= range.compressed_size.saturating_mul(MAX_RATIO);
            let name = section.name_bytes().unwrap_or_default();
            let name = &name[..name.len().min(MAX_NAME_LENGTH)];
            usable.then(|| CompressedSection {
                name: String::from_utf8_lossy(name).into_owned(),
                offset: range.offset,
                length: range.compressed_size,
                inflated_length: range.uncompressed_size,
            })
        })
        .collect();
    found.sort_by_key(|section| (section.offset, section.length));
    let mut end = 0;
    found.retain(|section| {
        let separate = section.offset >= end && section.length > 0;
        if separate {
            end = section.offset + section.length;
        }
        separate
    });
    found
}

#[cfg(test)]
mod tests;
