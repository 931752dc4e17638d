//! Compares the compressors with what the original programs wrote.

#![allow(clippy::unwrap_used)]

use std::io::Read as _;

use proptest::prelude::*;

use super::{Codec, Deflater, ZlibLevel, find_codec};

fn codecs() -> Vec<Codec> {
    (0..=255).filter_map(Codec::from_byte).collect()
}

pub(super) fn compress<'a>(codec: Codec, writes: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut deflater = Deflater::new(codec);
    let mut out = Vec::new();
    for write in writes {
        deflater.write(write, &mut out);
    }
    deflater.finish(&mut out);
    out
}

fn inflate(stream: &[u8]) -> Vec<u8> {
    let mut inflated = Vec::new();
    flate2::read::ZlibDecoder::new(stream)
        .read_to_end(&mut inflated)
        .unwrap();
    inflated
}

/// zlib's own function, which linkers call.
fn zlib_compress2(level: i32, input: &[u8]) -> Vec<u8> {
    let mut length = 0;
    // SAFETY: `compressBound` only computes; `compress2` writes at most `length` bytes, which is the length of `out`, and
    // reads `input.len()` bytes of `input`.
    unsafe {
        length += libz_sys::compressBound(input.len() as u64);
        let mut out = vec![0; length as usize];
        let status = libz_sys::compress2(
            out.as_mut_ptr(),
            &raw mut length,
            input.as_ptr(),
            input.len() as u64,
            level,
        );
        assert_eq!(status, libz_sys::Z_OK);
        out.truncate(length as usize);
        out
    }
}

/// Marsaglia's xorshift.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Bytes that do not compress.
pub(super) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let numbers = std::iter::repeat_with(random(seed));
    numbers.flat_map(u64::to_le_bytes).take(length).collect()
}

/// Text of few words, so with matches of many lengths and distances, and random bytes now and then.
pub(super) fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut random = random(seed);
    let mut content = Vec::with_capacity(length + 300);
    while content.len() < length {
        match random() % 8 {
            0 => content.extend_from_slice(&random().to_le_bytes()),
            1 => content.extend(std::iter::repeat_n(random() as u8, random() as usize % 300)),
            2 if content.len() > 40_000 => {
                let from = content.len() - 1 - random() as usize % 40_000;
                let end = content.len().min(from + random() as usize % 400);
                content.extend_from_within(from..end);
            }
            _ => {
                let word = random() % 500;
                content.extend_from_slice(format!("DW_AT_{word:x} ").as_bytes());
            }
        }
    }
    content.truncate(length);
    content
}

#[test]
fn every_codec_has_its_byte() {
    assert_eq!(codecs().len(), 11);
    for codec in codecs() {
        assert_eq!(Codec::from_byte(codec.to_byte()), Some(codec));
    }
    assert_eq!(Codec::from_byte(6).unwrap().to_string(), "zlib level 6");
    assert_eq!(ZlibLevel::new(0), None);
    assert_eq!(ZlibLevel::new(10), None);
}

#[test]
fn every_stream_inflates_to_its_content() {
    for length in [
        0, 1, 16, 17, 127, 128, 32_768, 65_534, 65_535, 65_536, 131_070, 700_000,
    ] {
        let content = content(length as u64 + 7, length);
        for codec in codecs() {
            assert!(
                inflate(&compress(codec, [content.as_slice()])) == content,
                "{codec}, {length} bytes"
            );
        }
    }
}

#[test]
fn zlib_writes_what_compress2_writes_however_the_input_is_divided() {
    for level in 1..=9 {
        let codec = Codec::from_byte(level).unwrap();
        for length in [0, 1, 65_536, 98_304, 1_000_003] {
            let content = content(u64::from(level), length);
            let expected = zlib_compress2(level.into(), &content);
            for piece in [1 + length / 3, 4099, 32_768] {
                assert!(
                    compress(codec, content.chunks(piece)) == expected,
                    "level {level}, {length} bytes by {piece}"
                );
            }
        }
    }
}

#[test]
fn the_codec_of_a_stream_is_found() {
    let content = content(3, 300_000);
    for codec in codecs() {
        let stream = compress(codec, [content.as_slice()]);
        let found = find_codec(&stream, &content).unwrap();
        assert!(
            compress(found, [content.as_slice()]) == stream,
            "{found} for {codec}"
        );
    }
}

#[test]
fn a_stream_that_no_codec_writes_has_none() {
    let content = content(3, 300_000);
    let stream = zlib_compress2(6, &content);
    let damaged = |at: usize| {
        let mut damaged = stream.clone();
        damaged[at] ^= 1;
        damaged
    };
    for (stream, content) in [
        (&damaged(0), &content[..]),
        (&damaged(1), &content),
        (&damaged(stream.len() / 2), &content),
        (&damaged(stream.len() - 1), &content),
        (&stream[..stream.len() - 1].to_vec(), &content),
        (&[stream.as_slice(), b"\0"].concat(), &content),
        (&stream, &content[1..]),
        (&stream, &content[..content.len() - 1]),
        (&vec![], &content),
        (&vec![0x78], &content),
        (&zlib_compress2(0, &content), &content),
    ] {
        assert_eq!(find_codec(stream, content), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn writes_of_any_length_make_the_same_stream(
        seed: u64,
        length in 0..400_000_usize,
        pieces in prop::collection::vec(1..100_000_usize, 1..20),
    ) {
        let content = content(seed, length);
        for codec in codecs() {
            let mut rest = content.as_slice();
            let mut writes = Vec::new();
            for piece in pieces.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (write, after) = rest.split_at(rest.len().min(*piece));
                writes.push(write);
                rest = after;
            }
            prop_assert!(compress(codec, writes) == compress(codec, [content.as_slice()]), "{}", codec);
        }
    }
}
