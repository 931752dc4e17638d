//! The header of a dynamic block: the lengths of its codes, run-length encoded and Huffman-coded (RFC 1951, 3.2.7).

use super::bit_writer::BitWriter;
use super::huffman::{Code, assign_codes, coded_bits};

/// Symbols of code lengths.
const SYMBOLS: usize = 19;

/// The order in which the lengths of their codes are written.
const ORDER: [usize; SYMBOLS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];

/// Longest code of a code length.
const MAX_BITS: usize = 7;

/// Repeats the previous length 3 to 6 times.
const REPEAT: u8 = 16;

/// 3 to 10 zeros.
const ZEROS: u8 = 17;

/// 11 to 138 zeros.
const MANY_ZEROS: u8 = 18;

/// The code of distances in a block that has none, because deflate requires one.
pub(super) const ONE_OFFSET: Code = Code { bits: 0, length: 1 };

pub(super) struct DynamicHeader {
    literals: usize,
    offsets: usize,
    /// A symbol and what follows it.
    runs: Vec<(u8, u8)>,
    codes: [Code; SYMBOLS],
    /// How many of these codes' lengths are written.
    written: usize,
    bits: usize,
}

/// Bits that follow a symbol.
fn extra_bits(symbol: u8) -> u32 {
    match symbol {
        REPEAT => 2,
        ZEROS => 3,
        MANY_ZEROS => 7,
        _ => 0,
    }
}

impl DynamicHeader {
    /// The header for these codes, without unused ones at the end of each.
    pub(super) fn new(literals: &[Code], offsets: &[Code]) -> Self {
        let (literals, offsets) = (in_use(literals), in_use(offsets));
        let lengths: Vec<u8> = literals.iter().chain(offsets).map(|code| code.length).collect();
        let mut runs = Vec::with_capacity(lengths.len());
        for run in lengths.chunk_by(|a, b| a == b) {
            push_run(run[0], run.len(), &mut runs);
        }
        let mut frequencies = [0; SYMBOLS];
        for &(symbol, _) in &runs {
            frequencies[usize::from(symbol)] += 1;
        }
        let mut codes = [Code::default(); SYMBOLS];
        assign_codes(&frequencies, MAX_BITS, &mut codes);
        let used = ORDER.iter().rposition(|&symbol| frequencies[symbol] > 0);
        let written = used.map_or(4, |last| (last + 1).max(4));
        let extra: u32 = runs.iter().map(|&(symbol, _)| extra_bits(symbol)).sum();
        Self {
            literals: literals.len(),
            offsets: offsets.len(),
            runs,
            bits: 3 + 5 + 5 + 4 + 3 * written + coded_bits(&frequencies, &codes) + extra as usize,
            codes,
            written,
        }
    }

    /// Its length.
    pub(super) fn bits(&self) -> usize {
        self.bits
    }

    /// Writes it, for a block that is not the last one.
    pub(super) fn write(&self, bits: &mut BitWriter, out: &mut Vec<u8>) {
        bits.put(0b100, 3, out);
        bits.put(self.literals as u32 - 257, 5, out);
        bits.put(self.offsets as u32 - 1, 5, out);
        bits.put(self.written as u32 - 4, 4, out);
        for &symbol in &ORDER[..self.written] {
            bits.put(self.codes[symbol].length.into(), 3, out);
        }
        for &(symbol, extra) in &self.runs {
            bits.put_code(self.codes[usize::from(symbol)], out);
            bits.put(extra.into(), extra_bits(symbol), out);
        }
    }
}

/// The codes up to the last one that is in use.
fn in_use(codes: &[Code]) -> &[Code] {
    let last = codes.iter().rposition(|code| code.length > 0);
    &codes[..last.map_or(0, |last| last + 1)]
}

/// Encodes a length that occurs `count` times in a row.
fn push_run(length: u8, mut count: usize, runs: &mut Vec<(u8, u8)>) {
    if length == 0 {
        while count >= 11 {
            let now = count.min(138);
            runs.push((MANY_ZEROS, (now - 11) as u8));
            count -= now;
        }
        if count >= 3 {
            runs.push((ZEROS, (count - 3) as u8));
            count = 0;
        }
    } else {
        runs.push((length, 0));
        count -= 1;
        while count >= 3 {
            let now = count.min(6);
            runs.push((REPEAT, (now - 3) as u8));
            count -= now;
        }
    }
    runs.extend(std::iter::repeat_n((length, 0), count));
}
