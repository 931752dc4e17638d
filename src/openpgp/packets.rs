//! Splits bytes into OpenPGP packets and inflates compressed ones, bounded in size, number and depth.
//!
//! ```text
//! new format   11tttttt  length                 1, 2 or 5 bytes; or partial: 2^n bytes, then another length
//! old format   10ttttll  length                 1, 2 or 4 bytes; ll = 3: up to the end, as gpg writes compressed data
//! ```

use std::fmt;
use std::io::{self, BufRead, Cursor, Read as _};

use pgp::packet::{Decompressor, PacketHeader};
use pgp::types::{PacketLength, Tag};

/// Levels of compressed packets inside each other. Real messages have one; each level costs a decompressor, up to 4 MB
/// with BZip2.
const MAX_DEPTH: usize = 8;

/// How many characters of an error of rPGP a message shows.
const MAX_QUOTE: usize = 100;

/// How much of the input is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of all packets, of all depths together.
    pub(super) bytes: u64,
    /// Packets of all depths together.
    pub(super) packets: usize,
}

/// Why no further packet can be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// The packets, decompressed, are larger than the limit.
    #[error("the packets have more than {0} bytes")]
    TooLarge(u64),
    /// There are more packets than the limit.
    #[error("there are more than {0} packets")]
    TooMany(usize),
    /// Compressed packets contain compressed packets.
    #[error("there are more than {MAX_DEPTH} levels of compressed data")]
    TooDeep,
    /// A packet ends before its length.
    #[error("a packet of type {0} is cut off")]
    Truncated(u8),
    /// A header, a length or compressed data is wrong.
    #[error("{0}")]
    Malformed(String),
}

/// A packet with its whole body.
#[derive(Debug)]
pub(super) struct Packet {
    pub(super) tag: Tag,
    pub(super) body: Vec<u8>,
}

impl Packet {
    /// The header that this body has by itself; the original may have had a partial or no length.
    pub(super) fn header(&self) -> PacketHeader {
        PacketHeader::new_fixed(self.tag, u32::try_from(self.body.len()).unwrap_or(u32::MAX))
    }
}

/// Reads packets, those of compressed ones in their place.
pub(super) struct Packets<'a> {
    /// The innermost compressed packet is the last one.
    levels: Vec<Box<dyn BufRead + 'a>>,
    limits: Limits,
    bytes_left: u64,
    packets_left: usize,
}

impl<'a> Packets<'a> {
    pub(super) fn new(bytes: &'a [u8], limits: Limits) -> Self {
        Self {
            levels: vec![Box::new(bytes)],
            limits,
            bytes_left: limits.bytes,
            packets_left: limits.packets,
        }
    }

    /// The next packet that is not compressed data; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Packet>, PacketError> {
        loop {
            let Some(level) = self.levels.last_mut() else {
                return Ok(None);
            };
            if level.fill_buf().map_err(malformed)?.is_empty() {
                self.levels.pop();
                continue;
            }
            let packet = self.read()?;
            if packet.tag != Tag::CompressedData {
                return Ok(Some(packet));
            }
            if self.levels.len() > MAX_DEPTH {
                return Err(PacketError::TooDeep);
            }
            // rPGP reads algorithm 0, "uncompressed", which neither Go nor gpg write or read.
            if packet.body.first() == Some(&0) {
                return Err(PacketError::Malformed(
                    "compression algorithm 0 is not supported".into(),
                ));
            }
            let inside = Decompressor::from_reader(Cursor::new(packet.body)).map_err(malformed)?;
            self.levels.push(Box::new(inside));
        }
    }

    fn read(&mut self) -> Result<Packet, PacketError> {
        self.packets_left = self
            .packets_left
            .checked_sub(1)
            .ok_or(PacketError::TooMany(self.limits.packets))?;
        let level = self.levels.last_mut().expect("the caller looked at it");
        let header = PacketHeader::try_from_reader(&mut *level).map_err(malformed)?;
        let tag = header.tag();
        let mut body = Vec::new();
        let mut length = header.packet_length();
        loop {
            let wanted = match length {
                PacketLength::Fixed(length) | PacketLength::Partial(length) => u64::from(length),
                PacketLength::Indeterminate => u64::MAX,
            };
            // One byte more than allowed shows that the limit is exceeded.
            let most = wanted.min(self.bytes_left + 1);
            let got = level.take(most).read_to_end(&mut body).map_err(malformed)? as u64;
            self.bytes_left = self
                .bytes_left
                .checked_sub(got)
                .ok_or(PacketError::TooLarge(self.limits.bytes))?;
            if got < wanted && !matches!(length, PacketLength::Indeterminate) {
                return Err(PacketError::Truncated(u8::from(tag)));
            }
            if !matches!(length, PacketLength::Partial(_)) {
                return Ok(Packet { tag, body });
            }
            length = PacketLength::try_from_reader(&mut *level).map_err(malformed)?;
        }
    }
}

fn malformed(error: io::Error) -> PacketError {
    PacketError::Malformed(brief(error))
}

/// The beginning of an error of rPGP, which may quote kilobytes of the input.
pub(super) fn brief(error: impl fmt::Display) -> String {
    error.to_string().chars().take(MAX_QUOTE).collect()
}
