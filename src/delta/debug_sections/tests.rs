//! Reads ELF files that are written here, whole and damaged ones.

use proptest::prelude::*;

use super::{CompressedSection, compressed_sections};

const SHF_COMPRESSED: u64 = 0x800;
const ELFCOMPRESS_ZLIB: u64 = 1;
const ELFCOMPRESS_ZSTD: u64 = 2;

/// Not a stream, but only its place matters.
const STREAM: &[u8] = b"\x78\x01 a zlib stream of a section";

#[derive(Clone, Copy, Debug)]
struct Class {
    is_64: bool,
    big_endian: bool,
}

const CLASSES: [Class; 4] = [
    Class {
        is_64: true,
        big_endian: false,
    },
    Class {
        is_64: true,
        big_endian: true,
    },
    Class {
        is_64: false,
        big_endian: false,
    },
    Class {
        is_64: false,
        big_endian: true,
    },
];

impl Class {
    fn number(self, value: u64, length: usize) -> Vec<u8> {
        match self.big_endian {
            true => value.to_be_bytes()[8 - length..].to_vec(),
            false => value.to_le_bytes()[..length].to_vec(),
        }
    }

    /// Numbers of these lengths; 0 is the length of an address.
    fn numbers(self, values: &[(u64, usize)]) -> Vec<u8> {
        let address = if self.is_64 { 8 } else { 4 };
        let numbers = values.iter().map(|&(value, length)| match length {
            0 => self.number(value, address),
            length => self.number(value, length),
        });
        numbers.flatten().collect()
    }

    /// `Elf32_Chdr`, `Elf64_Chdr`.
    fn compression_header(self, kind: u64, size: u64) -> Vec<u8> {
        match self.is_64 {
            true => self.numbers(&[(kind, 4), (0, 4), (size, 8), (1, 8)]),
            false => self.numbers(&[(kind, 4), (size, 4), (1, 4)]),
        }
    }

    /// A file with these sections: name, flags, content.
    fn file(self, sections: &[(&str, u64, Vec<u8>)]) -> Vec<u8> {
        let (header_length, entry_length) = if self.is_64 { (64, 64) } else { (52, 40) };
        let mut names = vec![0];
        let mut content = Vec::new();
        let mut entries = vec![0; entry_length];
        let all = sections
            .iter()
            .map(|(name, flags, data)| (*name, 1, *flags, data.clone()))
            .chain([(".shstrtab", 3, 0, Vec::new())]);
        for (name, kind, flags, data) in all {
            let name_offset = names.len() as u64;
            names.extend_from_slice(name.as_bytes());
            names.push(0);
            let data = if kind == 3 { names.clone() } else { data };
            let offset = (header_length + content.len()) as u64;
            let placed = self.numbers(&[
                (name_offset, 4),
                (kind, 4),
                (flags, 0),
                (0, 0),
                (offset, 0),
                (data.len() as u64, 0),
                (0, 4),
                (0, 4),
                (1, 0),
                (0, 0),
            ]);
            entries.extend_from_slice(&placed);
            content.extend_from_slice(&data);
        }
        let mut file = b"\x7fELF".to_vec();
        file.extend_from_slice(&[1 + u8::from(self.is_64), 1 + u8::from(self.big_endian), 1, 0]);
        file.resize(16, 0);
        let table = (header_length + content.len()) as u64;
        let count = sections.len() as u64 + 2;
        file.extend(self.numbers(&[
            (2, 2),
            (62, 2),
            (1, 4),
            (0, 0),
            (0, 0),
            (table, 0),
            (0, 4),
            (header_length as u64, 2),
            (0, 2),
            (0, 2),
            (entry_length as u64, 2),
            (count, 2),
            (count - 1, 2),
        ]));
        file.extend(content);
        file.extend(entries);
        file
    }

    /// A file with one section of each kind.
    fn sample(self) -> Vec<u8> {
        let with_header = |kind, size| [self.compression_header(kind, size), STREAM.to_vec()].concat();
        let gnu = [&b"ZLIB"[..], &2000_u64.to_be_bytes(), STREAM].concat();
        self.file(&[
            (".text", 6, vec![0x90; 100]),
            (".debug_info", SHF_COMPRESSED, with_header(ELFCOMPRESS_ZLIB, 1000)),
            (".debug_line", SHF_COMPRESSED, with_header(ELFCOMPRESS_ZSTD, 1000)),
            (".debug_str", 0, STREAM.to_vec()),
            (".zdebug_abbrev", 0, gnu),
            (
                ".debug_bomb",
                SHF_COMPRESSED,
                with_header(ELFCOMPRESS_ZLIB, 1 << 20),
            ),
        ])
    }
}

#[test]
fn the_zlib_streams_of_both_kinds_of_sections_are_found() {
    for class in CLASSES {
        let file = class.sample();
        let found = compressed_sections(&file);
        let summary: Vec<_> = found
            .iter()
            .map(|section| {
                (
                    section.name.as_str(),
                    range(&file, section),
                    section.inflated_length,
                )
            })
            .collect();
        assert_eq!(
            summary,
            [(".debug_info", STREAM, 1000), (".zdebug_abbrev", STREAM, 2000)],
            "{class:?}"
        );
    }
}

#[test]
fn sections_that_share_bytes_are_found_once() {
    for class in CLASSES {
        let file = class.sample();
        let entry_length = if class.is_64 { 64 } else { 40 };
        // The last section's entry becomes another one of the first compressed section.
        let table = file.len() - 8 * entry_length;
        let entry = |number: usize| table + number * entry_length..table + (number + 1) * entry_length;
        let mut twice = file.clone();
        twice.copy_within(entry(2), entry(6).start);
        assert_eq!(
            compressed_sections(&twice),
            compressed_sections(&file),
            "{class:?}"
        );
    }
}

#[test]
fn other_files_have_no_compressed_sections() {
    let elf = CLASSES[0].sample();
    for file in [
        &b""[..],
        b"\x7fELF",
        b"#!/bin/sh\n",
        &elf[..64],
        &elf[..elf.len() - 1],
    ] {
        assert_eq!(compressed_sections(file), [], "{} bytes", file.len());
    }
}

fn range<'a>(file: &'a [u8], section: &CompressedSection) -> &'a [u8] {
    &file[section.offset as usize..][..section.length as usize]
}

proptest! {
    #[test]
    fn damage_never_leads_out_of_the_file(
        class in prop::sample::select(&CLASSES[..]),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        length in any::<prop::sample::Index>(),
        truncate: bool,
    ) {
        let mut file = class.sample();
        for (at, byte) in damage {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if truncate {
            file.truncate(length.index(file.len()));
        }
        let mut end = 0;
        for section in compressed_sections(&file) {
            prop_assert!(section.offset >= end);
            end = section.offset + section.length;
            prop_assert!(end <= file.len() as u64);
            prop_assert!(section.inflated_length <= 1032 * section.length);
        }
    }
}
