//! Writes bits, the lowest first, as deflate orders them.

use super::huffman::Code;

/// The bits that do not fill a byte yet, between two writes.
#[derive(Default)]
pub(super) struct BitWriter {
    bits: u64,
    count: u32,
}

impl BitWriter {
    /// Appends the lowest `count` bits of `bits`, at most 32.
    pub(super) fn put(&mut self, bits: u32, count: u32, out: &mut Vec<u8>) {
        self.bits |= u64::from(bits) << self.count;
        self.count += count;
        while self.count >= 8 {
            out.push(self.bits as u8);
            self.bits >>= 8;
            self.count -= 8;
        }
    }

    /// Fills the last byte with zeros.
    pub(super) fn align(&mut self, out: &mut Vec<u8>) {
        if self.count > 0 {
            out.push(self.bits as u8);
        }
        *self = Self::default();
    }

    /// Appends a stored block of at most 65535 bytes.
    pub(super) fn put_stored(&mut self, block: &[u8], last: bool, out: &mut Vec<u8>) {
        let length = block.len() as u32;
        self.put(last.into(), 3, out);
        self.align(out);
        self.put(length, 16, out);
        self.put(!length & 0xffff, 16, out);
        out.extend_from_slice(block);
    }

    /// Appends the code of a symbol.
    pub(super) fn put_code(&mut self, code: Code, out: &mut Vec<u8>) {
        self.put(code.bits.into(), code.length.into(), out);
    }

    /// Appends many groups of bits. Together they must have at most `total` bits.
    pub(super) fn burst(&mut self, total: usize, out: &mut Vec<u8>, write: impl FnOnce(&mut Burst<'_>)) {
        let start = out.len();
        out.resize(start + total / 8 + 2 * size_of::<u64>(), 0);
        let mut burst = Burst {
            bits: self.bits,
            count: self.count,
            bytes: &mut out[start..],
            written: 0,
        };
        write(&mut burst);
        let written = burst.written;
        (self.bits, self.count) = (burst.bits, burst.count);
        out.truncate(start + written);
    }
}

/// Bits of a stored block, as Go counts them.
pub(super) fn stored_bits(block: &[u8]) -> usize {
    (block.len() + 5) * 8
}

/// Bits on their way into a buffer that is long enough.
pub(super) struct Burst<'a> {
    bits: u64,
    count: u32,
    bytes: &'a mut [u8],
    written: usize,
}

impl Burst<'_> {
    /// How many bits can be appended at once.
    pub(super) const MAX: u32 = 56;

    /// Appends the code of a symbol.
    #[inline(always)]
    pub(super) fn put_code(&mut self, code: Code) {
        self.put(code.bits.into(), code.length.into());
    }

    /// Appends the lowest `count` bits of `bits`, at most [`Self::MAX`]; the others are zeros.
    #[inline(always)]
    pub(super) fn put(&mut self, bits: u64, count: u32) {
        self.bits |= bits << self.count;
        self.count += count;
        self.bytes[self.written..self.written + 8].copy_from_slice(&self.bits.to_le_bytes());
        let full = self.count / 8;
        self.written += full as usize;
        // 7 + 56 bits are at most 7 whole bytes.
        self.bits >>= 8 * full;
        self.count %= 8;
    }
}
