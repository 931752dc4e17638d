//! Finds matches as Snappy does: with one table of hashes of four bytes.

use super::super::tokens::{MAX_LENGTH, Tokens};
use super::super::window::{MAX_DISTANCE, Occurrence, Window, equal_length, load32, load64};

const TABLE_BITS: u32 = 14;

/// A match does not start in this many last bytes of a block.
const MARGIN: usize = 15;

/// Length of the shortest match.
const MIN_MATCH: usize = 4;

/// After this many bytes without a match, only every second byte is tried, then every third, and so on.
const SKIP: usize = 32;

pub(super) struct Matcher(Window<{ 1 << TABLE_BITS }>);

#[inline(always)]
fn hash(bytes: u32) -> usize {
    (bytes.wrapping_mul(0x1e35_a7bd) >> (32 - TABLE_BITS)) as usize
}

impl Matcher {
    pub(super) fn new() -> Self {
        Self(Window::new())
    }

    /// Adds the tokens of a block, which has more bytes than the margin.
    pub(super) fn find(&mut self, block: &[u8], tokens: &mut Tokens) {
        let start = self.0.add(block);
        let Window { bytes, base, table } = &mut self.0;
        let (bytes, base) = (bytes.as_slice(), *base);
        let limit = bytes.len() - MARGIN;
        // Replaces the last position of this hash, and returns the distance to it if a match is there.
        let mut replace = |at: usize, four: u32, slot: usize| {
            let position = base + at as u32;
            let last = std::mem::replace(&mut table[slot], Occurrence { position, four });
            let distance = position - last.position;
            (last.four == four && distance <= MAX_DISTANCE).then_some(distance)
        };

        let mut at = start;
        let mut emitted = start;
        let mut four = load32(bytes, at);
        let mut slot = hash(four);
        'block: loop {
            let mut skip = SKIP;
            let mut next = at;
            let mut distance = loop {
                at = next;
                next += skip / SKIP;
                skip += skip / SKIP;
                if next > limit {
                    break 'block;
                }
                let following = load32(bytes, next);
                if let Some(distance) = replace(at, four, slot) {
                    break distance;
                }
                four = following;
                slot = hash(four);
            };
            tokens.add_literals(bytes, emitted..at);
            loop {
                let from = at - distance as usize;
                let end = bytes.len().min(at + MAX_LENGTH);
                let length = MIN_MATCH + equal_length(bytes, from + MIN_MATCH, at + MIN_MATCH, end);
                tokens.add_match(length, distance);
                at += length;
                emitted = at;
                if at >= limit {
                    break 'block;
                }
                let eight = load64(bytes, at - 1);
                replace(at - 1, eight as u32, hash(eight as u32));
                four = (eight >> 8) as u32;
                let Some(again) = replace(at, four, hash(four)) else {
                    four = (eight >> 16) as u32;
                    slot = hash(four);
                    at += 1;
                    break;
                };
                distance = again;
            }
        }
        tokens.add_literals(bytes, emitted..bytes.len());
    }
}
