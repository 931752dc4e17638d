//! Parses one 512-byte tar header block as leniently as Go's `archive/tar`, which containers/storage uses to read
//! layers.
//!
//! An image is accepted or rejected here exactly as it is there. tar-core defines the layout of the fields. Its
//! number parser is not used, because it reads a negative base-256 number as a large one and accepts other white
//! space than Go. Nor is its entry parser, which rejects negative PAX times, keys that are not UTF-8 and seventeen
//! extended headers in a row.

use tar_core::{GNU_MAGIC, GNU_VERSION, Header, USTAR_MAGIC};

use super::error::Fault;
use super::tar_time::TarTime;

/// Length of a block.
pub(super) const BLOCK: usize = 512;

/// A header's fields, before extended headers are applied.
#[derive(Debug)]
pub(super) struct HeaderFields {
    pub(super) typeflag: u8,
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) size: i64,
    pub(super) mode: i64,
    pub(super) uid: i64,
    pub(super) gid: i64,
    pub(super) mtime: TarTime,
    pub(super) atime: Option<TarTime>,
    pub(super) device: (i64, i64),
}

/// The format of the fields after the common ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    V7,
    Ustar,
    Gnu,
    Star,
}

/// Schily's tar (star): `ustar` magic, this at the end of the block, and times at the end of the prefix.
const STAR_TRAILER: &[u8] = b"tar\0";

impl HeaderFields {
    /// Verifies the checksum and parses the fields.
    pub(super) fn parse(block: &[u8; BLOCK]) -> Result<Self, Fault> {
        let header = Header::from_bytes(block);
        let ustar = header.as_ustar();
        check_sum(header)?;
        let format = if ustar.magic == *USTAR_MAGIC {
            if block.ends_with(STAR_TRAILER) {
                Format::Star
            } else {
                Format::Ustar
            }
        } else if ustar.magic == *GNU_MAGIC && ustar.version == *GNU_VERSION {
            Format::Gnu
        } else {
            Format::V7
        };
        let mut fields = Self {
            typeflag: ustar.typeflag[0],
            name: text(&ustar.name).to_vec(),
            link: text(&ustar.linkname).to_vec(),
            size: number(&ustar.size, "the size is not a number")?,
            mode: number(&ustar.mode, "the mode is not a number")?,
            uid: number(&ustar.uid, "the owner is not a number")?,
            gid: number(&ustar.gid, "the group is not a number")?,
            mtime: TarTime::from_secs(number(&ustar.mtime, "the modification time is not a number")?),
            atime: None,
            device: (0, 0),
        };
        if format == Format::V7 {
            return Ok(fields);
        }
        fields.device = (
            number(&ustar.dev_major, "the device is not a number")?,
            number(&ustar.dev_minor, "the device is not a number")?,
        );
        let prefix = match format {
            Format::V7 => b"",
            Format::Ustar => text(&ustar.prefix),
            Format::Star => {
                fields.atime = Some(TarTime::from_secs(number(
                    &block[476..488],
                    "the access time is not a number",
                )?));
                number(&block[488..500], "the change time is not a number")?;
                text(&block[345..476])
            }
            Format::Gnu => match gnu_times(header) {
                Ok(atime) => {
                    fields.atime = atime;
                    b""
                }
                // Go before 1.8 wrote a prefix into GNU headers, in place of the times. Go still reads such files
                // (https://golang.org/issue/12594), and so do we.
                Err(_) => Some(text(&ustar.prefix))
                    .filter(|text| text.is_ascii())
                    .unwrap_or(b""),
            },
        };
        if !prefix.is_empty() {
            fields.name = [prefix, b"/", &fields.name].concat();
        }
        Ok(fields)
    }
}

/// Accepts the sum of unsigned bytes, and of signed bytes as old Sun tars wrote it.
fn check_sum(header: &Header) -> Result<(), Fault> {
    let field = &header.as_ustar().cksum;
    let unsigned = header.compute_checksum().cast_signed();
    let high_bytes = header.as_bytes().iter().filter(|&&byte| byte >= 0x80).count();
    let high_in_field = field.iter().filter(|&&byte| byte >= 0x80).count();
    let signed = unsigned - 256 * (high_bytes - high_in_field) as i64;
    match octal(field) {
        Some(sum) if sum == unsigned || sum == signed => Ok(()),
        _ => Err(Fault::Header("the checksum does not match")),
    }
}

fn gnu_times(header: &Header) -> Result<Option<TarTime>, Fault> {
    let gnu = header.as_gnu();
    let optional = |field: &[u8]| match field[0] {
        0 => Ok(None),
        _ => number(field, "a GNU time is not a number").map(|secs| Some(TarTime::from_secs(secs))),
    };
    optional(&gnu.ctime)?;
    optional(&gnu.atime)
}

/// The bytes before the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or(field)
}

/// A numeric field: octal digits, or a big-endian two's complement number with the first bit as a marker.
fn number(field: &[u8], fault: &'static str) -> Result<i64, Fault> {
    let value = if field[0] & 0x80 == 0 {
        octal(field)
    } else {
        base_256(field)
    };
    value.ok_or(Fault::Header(fault))
}

fn octal(field: &[u8]) -> Option<i64> {
    let padding = |byte: &u8| matches!(byte, b' ' | 0);
    let Some(start) = field.iter().position(|byte| !padding(byte)) else {
        return Some(0);
    };
    let end = field.iter().rposition(|byte| !padding(byte))? + 1;
    let digits = text(&field[start..end]);
    if !digits.iter().all(|byte| matches!(byte, b'0'..=b'7')) {
        return None;
    }
    // Twelve octal digits have 36 bits.
    Some(
        digits
            .iter()
            .fold(0, |value, digit| value << 3 | i64::from(digit - b'0')),
    )
}

fn base_256(field: &[u8]) -> Option<i64> {
    // After the marker, the second bit is the sign.
    let sign = if field[0] & 0x40 == 0 { 0 } else { 0xff };
    let mut value: u64 = 0;
    for (index, byte) in field.iter().enumerate() {
        if value >> 56 != 0 {
            return None;
        }
        let byte = byte ^ sign;
        value = value << 8 | u64::from(if index == 0 { byte & 0x7f } else { byte });
    }
    let value = i64::try_from(value).ok()?;
    Some(if sign == 0 { value } else { !value })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn reads_numbers_as_go_does() {
        let cases: &[(&[u8], Option<i64>)] = &[
            (b"0000644\0", Some(0o644)),
            (b"   644 \0", Some(0o644)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"\x00\x000644\0", Some(0o644)),
            (b"644\0junk", Some(0o644)),
            (b"0000648\0", None),
            (b"-000001\0", None),
            (b"\x80\0\0\0\0\0\0\x07", Some(7)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfb", Some(-5)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfb", Some(-5)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", Some(i64::MAX)),
            (b"\x80\0\0\0\x80\0\0\0\0\0\0\0", None),
        ];
        for (field, value) in cases {
            assert_eq!(number(field, "").ok(), *value, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn accepts_both_sums_and_no_other() {
        let mut block = [0; BLOCK];
        block[0] = 0xe4;
        for (sum, good) in [(256 + 0xe4, true), (256 + 0xe4 - 256, true), (1, false)] {
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            assert_eq!(HeaderFields::parse(&block).is_ok(), good, "{sum}");
        }
    }
}
