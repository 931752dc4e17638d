//! Keeps the bytes in which a block's matches are searched, and where a hash of them occurred last.

use super::BLOCK_LENGTH;

/// Longest distance of a match.
pub(super) const MAX_DISTANCE: u32 = 1 << 15;

/// Go allocates this many bytes, and moves the last ones to the front when a block does not fit.
const CAPACITY: usize = 5 * BLOCK_LENGTH;

/// When positions reach this value, they are reduced, so that they always fit into 32 bits.
const MAX_BASE: u32 = 1 << 31;

/// Bytes that are compared at once.
const GROUP: usize = size_of::<u128>();

/// The last bytes of the input: the block and what precedes it. Positions are counted from the start of the stream, so that
/// they stay valid when the bytes move.
pub(super) struct Window<const SLOTS: usize> {
    pub(super) bytes: Vec<u8>,
    /// Position of the first byte. The position 0, with which the table starts, is too far away from every byte.
    pub(super) base: u32,
    /// What occurred last with a hash.
    pub(super) table: Box<[Occurrence; SLOTS]>,
}

/// Four bytes at a position. They are also in the window, but there a comparison would wait for another read from memory.
#[derive(Clone, Copy, Default)]
pub(super) struct Occurrence {
    pub(super) position: u32,
    pub(super) four: u32,
}

impl<const SLOTS: usize> Window<SLOTS> {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(CAPACITY),
            base: MAX_DISTANCE + 1,
            table: Box::new([Occurrence::default(); SLOTS]),
        }
    }

    /// Appends a block; returns where it starts in `bytes`.
    pub(super) fn add(&mut self, block: &[u8]) -> usize {
        if self.bytes.len() + block.len() > CAPACITY {
            let moved = self.bytes.len() - MAX_DISTANCE as usize;
            self.bytes.drain(..moved);
            self.base += moved as u32;
        }
        if self.base >= MAX_BASE {
            let excess = self.base - (MAX_DISTANCE + 1);
            for occurrence in self.table.iter_mut() {
                occurrence.position = occurrence.position.saturating_sub(excess);
            }
            self.base -= excess;
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(block);
        start
    }
}

#[inline(always)]
pub(super) fn load32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

#[inline(always)]
pub(super) fn load64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[inline(always)]
fn load128(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + GROUP].try_into().expect("16 bytes"))
}

/// How many bytes from `at` on are equal to those from `from` on, which precedes it; at most up to `end`.
#[inline(always)]
pub(super) fn equal_length(bytes: &[u8], from: usize, at: usize, end: usize) -> usize {
    let (earlier, later) = (&bytes[from..from + (end - at)], &bytes[at..end]);
    let mut length = 0;
    // Most matches end in the first group.
    while length + GROUP <= later.len() {
        let difference = load128(earlier, length) ^ load128(later, length);
        if difference != 0 {
            return length + difference.trailing_zeros() as usize / 8;
        }
        length += GROUP;
    }
    while length < later.len() && earlier[length] == later[length] {
        length += 1;
    }
    length
}
