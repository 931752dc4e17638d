//! Writes blocks as Go until 1.26 does: each with codes of its own, or stored.

use super::bit_writer::BitWriter;
use super::dynamic_header::DynamicHeader;
use super::huffman::{Code, LITERALS, MAX_BITS, OFFSETS, assign_codes, coded_bits};
use super::tokens::{END_OF_BLOCK, Tokens};

/// Bits of a stored block, as Go counts them.
pub(super) fn stored_bits(block: &[u8]) -> usize {
    (block.len() + 5) * 8
}

/// Writes a stored block of at most 65535 bytes.
pub(super) fn write_stored(block: &[u8], last: bool, bits: &mut BitWriter, out: &mut Vec<u8>) {
    let length = block.len() as u32;
    bits.put(last.into(), 3, out);
    bits.align(out);
    bits.put(length, 16, out);
    bits.put(!length & 0xffff, 16, out);
    out.extend_from_slice(block);
}

/// Writes the block as these tokens, or stores it if that is hardly longer.
pub(super) fn write_tokens(tokens: &mut Tokens, block: &[u8], bits: &mut BitWriter, out: &mut Vec<u8>) {
    tokens.literals[END_OF_BLOCK] = 1;
    if tokens.offsets.iter().all(|&frequency| frequency == 0) {
        // Go codes a distance even if there is none.
        tokens.offsets[0] = 1;
    }
    let mut literals = [Code::default(); LITERALS];
    let mut offsets = [Code::default(); OFFSETS];
    assign_codes(&tokens.literals, MAX_BITS, &mut literals);
    assign_codes(&tokens.offsets, MAX_BITS, &mut offsets);
    let header = DynamicHeader::new(in_use(&literals), in_use(&offsets));
    // Without the bits that follow lengths and distances, which Go does not count here.
    let size =
        header.bits() + coded_bits(&tokens.literals, &literals) + coded_bits(&tokens.offsets, &offsets);
    if stored_bits(block) < size + (size >> 4) {
        return write_stored(block, false, bits, out);
    }
    header.write(bits, out);
    bits.burst(size + tokens.extra_bits(), out, |burst| {
        tokens.write(&literals, &offsets, burst);
        burst.code(literals[END_OF_BLOCK]);
    });
}

/// Writes the block as literals, or stores it if that is hardly longer.
pub(super) fn write_literals(block: &[u8], bits: &mut BitWriter, out: &mut Vec<u8>) {
    let mut frequencies = [0; END_OF_BLOCK + 1];
    for &byte in block {
        frequencies[usize::from(byte)] += 1;
    }
    frequencies[END_OF_BLOCK] = 1;
    let mut codes = [Code::default(); END_OF_BLOCK + 1];
    assign_codes(&frequencies, MAX_BITS, &mut codes);
    let header = DynamicHeader::new(&codes, &[Code { bits: 0, length: 1 }]);
    // One bit for a distance that there is not.
    let size = header.bits() + coded_bits(&frequencies, &codes) + 1;
    if stored_bits(block) < size + (size >> 4) {
        return write_stored(block, false, bits, out);
    }
    header.write(bits, out);
    bits.burst(size, out, |burst| {
        for &byte in block {
            burst.code(codes[usize::from(byte)]);
        }
        burst.code(codes[END_OF_BLOCK]);
    });
}

/// The codes up to the last one that is in use.
pub(super) fn in_use(codes: &[Code]) -> &[Code] {
    let last = codes.iter().rposition(|code| code.length > 0);
    &codes[..last.map_or(0, |last| last + 1)]
}
