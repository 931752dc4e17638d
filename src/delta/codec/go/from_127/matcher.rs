//! Finds matches as Go 1.27 does at level 1: with one table of hashes of five bytes, longer than a token at once.

use super::super::tokens::{MAX_LENGTH, Tokens};
use super::super::window::{MAX_DISTANCE, Occurrence, Window, equal_length, load64};

const TABLE_BITS: u32 = 15;

/// A match does not start in this many last bytes of a block.
const MARGIN: usize = 11;

/// Length of the shortest match.
const MIN_MATCH: usize = 4;

/// Length of the shortest match of deflate: no part of a divided match may be shorter.
const MIN_REST: usize = 3;

/// One more byte is skipped for every 32 bytes without a match: a shift.
const SKIP_SHIFT: usize = 5;

pub(super) struct Matcher(Window<{ 1 << TABLE_BITS }>);

/// A hash of the lowest five bytes.
#[inline(always)]
fn hash(bytes: u64) -> usize {
    ((bytes << 24).wrapping_mul(889_523_592_379) >> (64 - TABLE_BITS)) as usize
}

impl Matcher {
    pub(super) fn new() -> Self {
        Self(Window::new())
    }

    /// Adds the tokens of a block, which has more bytes than the margin; none if there are no matches.
    pub(super) fn find(&mut self, block: &[u8], tokens: &mut Tokens) {
        let start = self.0.add(block);
        let Window { bytes, base, table } = &mut self.0;
        let (bytes, base) = (bytes.as_slice(), *base);
        let limit = bytes.len() - MARGIN;
        // Replaces the last position in this slot, and returns the distance to it if a match is there. The search may have
        // entered a position that is further on than the end of the match; then the distance is greater than any.
        let mut replace = |at: usize, eight: u64, slot: usize| {
            let (position, four) = (base + at as u32, eight as u32);
            let last = std::mem::replace(&mut table[slot], Occurrence { position, four });
            let distance = position.wrapping_sub(last.position);
            (last.four == four && distance <= MAX_DISTANCE).then_some(distance)
        };

        // Go accepts the longest distance only right after a match.
        let is_searched = |distance: &u32| *distance < MAX_DISTANCE;

        let mut at = start;
        let mut emitted = start;
        let mut eight = load64(bytes, at);
        'block: loop {
            let mut next;
            let mut distance = loop {
                next = at + 2 + ((at - emitted) >> SKIP_SHIFT);
                if next > limit {
                    break 'block;
                }
                let following = load64(bytes, next);
                let slot = hash(following);
                if let Some(distance) = replace(at, eight, hash(eight)).filter(is_searched) {
                    replace(next, following, slot);
                    break distance;
                }
                at = next;
                next += 1;
                eight = following;
                let last = replace(at, eight, slot).filter(is_searched);
                eight = following >> 8;
                if let Some(distance) = last {
                    // The slot is the one of the byte before, as in Go.
                    replace(next, eight, slot);
                    break distance;
                }
                at = next;
            };
            loop {
                let mut from = at - distance as usize;
                let mut length =
                    MIN_MATCH + equal_length(bytes, from + MIN_MATCH, at + MIN_MATCH, bytes.len());
                while from > 0 && at > emitted && bytes[from - 1] == bytes[at - 1] {
                    from -= 1;
                    at -= 1;
                    length += 1;
                }
                tokens.add_literals(bytes, emitted..at);
                add_match(length, distance, tokens);
                at += length;
                emitted = at;
                if next >= at {
                    at = next + 1;
                }
                if at >= limit {
                    if at + length + 8 < bytes.len() {
                        let eight = load64(bytes, at);
                        replace(at, eight, hash(eight));
                    }
                    break 'block;
                }
                eight = load64(bytes, at - 2);
                replace(at - 2, eight, hash(eight));
                eight >>= 16;
                let Some(again) = replace(at, eight, hash(eight)) else {
                    eight >>= 8;
                    at += 1;
                    break;
                };
                distance = again;
            }
        }
        if tokens.len() > 0 {
            tokens.add_literals(bytes, emitted..bytes.len());
        }
    }
}

/// Adds a match of any length, as several tokens.
fn add_match(mut length: usize, distance: u32, tokens: &mut Tokens) {
    while length > 0 {
        let now = match length {
            ..=MAX_LENGTH => length,
            _ if length > MAX_LENGTH + MIN_REST => MAX_LENGTH,
            _ => MAX_LENGTH - MIN_REST,
        };
        tokens.add_match(now, distance);
        length -= now;
    }
}
