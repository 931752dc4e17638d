//! Decodes the ASCII armor of keyrings.
//!
//! rPGP reads a block. The checksum is compared here: the check of rPGP 0.21 hashes a copy of its state that it drops, and
//! therefore refuses every block that has a checksum.

use std::io::Read as _;

use pgp::armor::{BlockType, Dearmor, DearmorOptions};

use super::error::KeyringError;
use super::packets::brief;

const BEGIN: &[u8] = b"-----BEGIN ";
const END: &[u8] = b"-----END ";

/// The blocks of armor in `file`, each from its first line up to the next block; empty if there are none.
pub(super) fn blocks(file: &[u8]) -> Vec<&[u8]> {
    let mut starts = Vec::new();
    let mut at = 0;
    for line in file.split_inclusive(|&byte| byte == b'\n') {
        if line.trim_ascii_start().starts_with(BEGIN) {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().skip(1).copied().chain([file.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| file[start..end].trim_ascii_start())
        .collect()
}

/// The packets inside a block of public keys.
pub(super) fn decode(block: &[u8]) -> Result<Vec<u8>, KeyringError> {
    let damaged = |why: String| KeyringError::Armor(why);
    if !block.windows(END.len()).any(|window| window == END) {
        return Err(damaged(
            "its last line, `-----END PGP PUBLIC KEY BLOCK-----`, is missing".into(),
        ));
    }
    let options = DearmorOptions::new().set_limit(block.len().max(1));
    let mut dearmor = Dearmor::with_options(block, options);
    let mut packets = Vec::new();
    dearmor
        .read_to_end(&mut packets)
        .map_err(|error| damaged(brief(error)))?;
    let (kind, _, checksum, _) = dearmor.into_parts();
    if kind != Some(BlockType::PublicKey) {
        return Err(damaged("it is not a `PGP PUBLIC KEY BLOCK`".into()));
    }
    match checksum {
        Some(checksum) if checksum != u64::from(crc24(&packets)) => {
            Err(damaged("its checksum does not match".into()))
        }
        _ => Ok(packets),
    }
}

/// The checksum of armor: RFC 4880, 6.1.
fn crc24(bytes: &[u8]) -> u32 {
    let mut crc = 0x00b7_04ce_u32;
    for &byte in bytes {
        crc ^= u32::from(byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x0100_0000 != 0 {
                crc ^= 0x0186_4cfb;
            }
        }
    }
    crc & 0x00ff_ffff
}
