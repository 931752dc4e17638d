//! Reads the length of the tar from a few bytes of its compressed blob: the tail of gzip, the head of zstd.
//!
//! ```text
//! gzip  … deflate … │ CRC-32 │ ISIZE: the tar's length modulo 2^32 │       RFC 1952, 2.3.1; the last of several members
//!                    4 bytes  4 bytes, little endian
//! zstd  28 b5 2f fd │ descriptor │ window? │ dictionary? │ length? │ …     RFC 8878, 3.1.1; the first of several frames
//!                    1 byte       0, 1      0, 1, 2, 4    0, 1, 2, 4, 8
//! ```
//!
//! These bytes are not verified, and only a forecast depends on them. Implausible lengths are ignored.

use std::ops::{Range, RangeInclusive};

use super::disk_estimate::{TarLength, guessed_tar_bytes, is_uncompressed, is_zstd};

/// Smaller blobs are not probed but estimated: 500 of them change a release's forecast by less than a thousandth.
const MIN_PROBED: u64 = 64 << 10;

/// The longest head of a zstd frame, up to and including the length.
const ZSTD_HEAD: u64 = 18;

/// ISIZE.
const GZIP_TAIL: u64 = 4;

/// ISIZE is the length modulo this.
const GZIP_MODULUS: u64 = 1 << 32;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A tar that does not compress grows by less than a thousandth: deflate adds 5 bytes for each 64 KiB, zstd 3 for each
/// 128 KiB. So a tar is never shorter than its blob by more, unless the blob has several members or frames and the length
/// is that of one of them.
const GROWTH: u64 = 1_000;

/// The best ratio of deflate: two bits for 258 bytes.
const GZIP_MAX_RATIO: u64 = 1032;

/// The best ratio of zstd: a block of 4 bytes for 128 KiB.
const ZSTD_MAX_RATIO: u64 = 1 << 15;

/// Layers of real images stay below this ratio. A layer above it consists of zeros, and of these there may be another
/// multiple of 4 GiB.
const ORDINARY_RATIO: u64 = 20;

/// The range of a blob that states the length of its tar; none if the blob is too small to probe or not compressed.
pub fn tar_length_range(media_type: &str, size: u64) -> Option<Range<u64>> {
    if size < MIN_PROBED || is_uncompressed(media_type) {
        return None;
    }
    match is_zstd(media_type) {
        true => Some(0..ZSTD_HEAD),
        false => Some(size - GZIP_TAIL..size),
    }
}

/// Length of the tar in a blob of `size` bytes. `bytes` is the blob's [`tar_length_range`]; none if they state no length or
/// an implausible one.
pub fn tar_length(media_type: &str, size: u64, bytes: &[u8]) -> Option<TarLength> {
    let plausible = plausible_lengths(media_type, size);
    let shortest = *plausible.start();
    match is_zstd(media_type) {
        true => frame_content_size(bytes)
            .filter(|length| plausible.contains(length))
            .map(TarLength::Known),
        false => {
            let modulo = u64::from(u32::from_le_bytes(bytes.try_into().ok()?));
            // The smallest length of this remainder that is not too short. Larger ones are as plausible.
            let turns = shortest
                .saturating_sub(modulo)
                .checked_next_multiple_of(GZIP_MODULUS);
            let least = modulo.checked_add(turns?)?;
            let is_wrapped = least >= GZIP_MODULUS;
            let guess = guessed_tar_bytes(media_type, size);
            // The number is too small, and the tar cannot exceed the modulus: the blob has several members.
            if is_wrapped && guess < GZIP_MODULUS / 2 {
                return None;
            }
            let turns = guess.saturating_sub(least) / GZIP_MODULUS;
            let near = [turns, turns.saturating_add(1)]
                .into_iter()
                .filter_map(|turns| least.checked_add(turns.checked_mul(GZIP_MODULUS)?));
            let length = near
                .filter(|length| plausible.contains(length))
                .min_by_key(|length| length.abs_diff(guess))?;
            let next = length.saturating_add(GZIP_MODULUS);
            let may_be_more = length > size.saturating_mul(ORDINARY_RATIO) && plausible.contains(&next);
            Some(match may_be_more {
                true => TarLength::AtLeast(length),
                false => TarLength::Known(length),
            })
        }
    }
}

/// Length of the tar in a compressed blob of `size` bytes, as a delta's artifact states it; none if it is not
/// ordinary. It is only a better guess: the space check must not fail a run because of it.
pub(super) fn stated_tar_length(media_type: &str, size: u64, stated: u64) -> Option<TarLength> {
    let shortest = *plausible_lengths(media_type, size).start();
    let ordinary = shortest..=size.saturating_mul(ORDINARY_RATIO);
    (!is_uncompressed(media_type) && ordinary.contains(&stated)).then_some(TarLength::Guessed(stated))
}

fn plausible_lengths(media_type: &str, size: u64) -> RangeInclusive<u64> {
    let most = size.saturating_mul(match is_zstd(media_type) {
        true => ZSTD_MAX_RATIO,
        false => GZIP_MAX_RATIO,
    });
    size - size / GROWTH..=most
}

/// The content size in the head of a zstd frame, if the head has one.
fn frame_content_size(head: &[u8]) -> Option<u64> {
    let descriptor = *head.strip_prefix(&ZSTD_MAGIC)?.first()?;
    let is_single_segment = descriptor & 0x20 != 0;
    let window = usize::from(!is_single_segment);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let length = match (descriptor >> 6, is_single_segment) {
        (0, false) => return None,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    let begin = ZSTD_MAGIC.len() + 1 + window + dictionary;
    let field = head.get(begin..begin + length)?;
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(field);
    let number = u64::from_le_bytes(bytes);
    // RFC 8878, 3.1.1.1.4: a field of two bytes is offset by 256.
    number.checked_add(if length == 2 { 256 } else { 0 })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write as _;

    use super::*;

    const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
    const MB: u64 = 1_000_000;
    const GIB: u64 = 1 << 30;

    #[test]
    fn only_large_compressed_blobs_are_probed() {
        assert_eq!(tar_length_range(GZIP, 100 * MB), Some(99_999_996..100_000_000));
        assert_eq!(tar_length_range("", 100 * MB), Some(99_999_996..100_000_000));
        assert_eq!(tar_length_range(ZSTD, 100 * MB), Some(0..18));
        assert_eq!(tar_length_range(TAR, 100 * MB), None);
        assert_eq!(tar_length_range(GZIP, MIN_PROBED - 1), None);
        assert_eq!(tar_length_range(GZIP, 0), None);
    }

    #[test]
    fn gzip_states_the_length_modulo_4_gib() {
        for (size, length, expected) in [
            (100 * MB, 285 * MB, Some(285 * MB)),
            // Not compressible, and a little less.
            (100 * MB, 99_990_000, Some(99_990_000)),
            // A gibibyte of zeros.
            (2 * MB, GIB, Some(GIB)),
            // More than the modulus: the length nearest to the estimate.
            (2_000 * MB, 5_700 * MB, Some(5_700 * MB)),
            (2_000 * MB, 4 * GIB, Some(4 * GIB)),
            (1_600 * MB, 4 * GIB + 5, Some(4 * GIB + 5)),
            (20_000 * MB, 57_000 * MB, Some(57_000 * MB)),
            // The last of several members: nothing, an eStargz footer, and a file.
            (100 * MB, 0, None),
            (100 * MB, 5, None),
            (100 * MB, 50 * MB, None),
            // Above deflate's best ratio.
            (MIN_PROBED, 3 * GIB, None),
        ] {
            let bytes = ((length % GZIP_MODULUS) as u32).to_le_bytes();
            let expected = expected.map(TarLength::Known);
            assert_eq!(tar_length(GZIP, size, &bytes), expected, "{length} from {size}");
        }
    }

    #[test]
    fn a_gzip_length_that_may_have_wrapped_is_a_lower_bound() {
        for (size, length, expected) in [
            // Five gibibytes of zeros, and three with something else.
            (5_222_000, 5 * GIB, GIB),
            (15 * MB, 3 * GIB, 3 * GIB),
            (15 * MB, 7 * GIB, 3 * GIB),
        ] {
            let bytes = ((length % GZIP_MODULUS) as u32).to_le_bytes();
            let found = tar_length(GZIP, size, &bytes);
            assert_eq!(found, Some(TarLength::AtLeast(expected)), "{length} from {size}");
        }
    }

    #[test]
    fn a_zstd_length_above_the_best_ratio_is_ignored() {
        let head = |length: u64| [&ZSTD_MAGIC[..], &[0xe0], &length.to_le_bytes()].concat();
        assert_eq!(
            tar_length(ZSTD, 170_000, &head(5 * GIB)),
            Some(TarLength::Known(5 * GIB))
        );
        assert_eq!(tar_length(ZSTD, 100_000, &head(5 * GIB)), None);
    }

    #[test]
    fn arbitrary_bytes_give_no_implausible_length() {
        for size in [MIN_PROBED, 100 * MB, GIB, 1 << 40, u64::MAX / 200, u64::MAX] {
            for number in [0, 1, u32::MAX / 2, u32::MAX] {
                let length = tar_length(GZIP, size, &number.to_le_bytes());
                let most = size.saturating_mul(GZIP_MAX_RATIO);
                assert!(
                    length.is_none_or(|length| length.bytes() <= most),
                    "{length:?} from {size}"
                );
            }
            for descriptor in 0..=u8::MAX {
                for fill in [0, 1, 0x7f, 0xff] {
                    let mut head = [fill; 18];
                    head[..4].copy_from_slice(&ZSTD_MAGIC);
                    head[4] = descriptor;
                    for end in 0..=head.len() {
                        let length = tar_length(ZSTD, size, &head[..end]);
                        let most = size.saturating_mul(ZSTD_MAX_RATIO);
                        assert!(
                            length.is_none_or(|length| length.bytes() <= most),
                            "{length:?} from {size}"
                        );
                    }
                }
            }
        }
        for bytes in [&[][..], &[1, 2, 3], &[1, 2, 3, 4, 5]] {
            assert_eq!(tar_length(GZIP, 100 * MB, bytes), None);
            assert_eq!(tar_length(ZSTD, 100 * MB, bytes), None);
        }
    }

    #[test]
    fn real_heads_and_tails_state_the_length() {
        for length in [0, 100, 255, 256, 300, 65_791, 65_792, 200_000] {
            let bytes: Vec<u8> = (0..length).map(|n: u32| (n % 251) as u8).collect();
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&bytes).unwrap();
            let gzip = gzip.finish().unwrap();
            let tail = gzip.last_chunk::<4>().unwrap();
            assert_eq!(u32::from_le_bytes(*tail), length);
            let zstd = zstd::bulk::compress(&bytes, 3).unwrap();
            let head = &zstd[..zstd.len().min(18)];
            assert_eq!(frame_content_size(head), Some(length.into()));
        }
        // A streaming compressor does not know the length when it writes the head.
        let stream = zstd::encode_all(&[7; 5000][..], 3).unwrap();
        assert_eq!(frame_content_size(&stream[..18]), None);
    }
}
