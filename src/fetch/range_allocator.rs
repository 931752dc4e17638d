//! Which bytes of a blob are whose: claimed before they are asked for, so that none comes twice.
//!
//! ```text
//! 0                first                                                            size
//! |=== here ===~~~~~|· · · · · ·|==== piece ====|~~~~~ piece ~~~~~|· · · · · · · · · ·|
//!      the first bytes     free       here            on its way           free
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

/// No claim is smaller unless there is no more to claim: it is a request, and waits for its first byte.
const LEAST: u64 = 1 << 20;

/// No claim is larger: the rate of a link may fall, and what was asked for is not taken back.
const MOST: u64 = 64 << 20;

/// As much is claimed as comes in so many seconds by one connection; fewer towards the end, so that all connections end at
/// about the same time.
const SECONDS: u64 = 5;
const SECONDS_AT_END: u64 = 1;

/// Into so many claims what is free is cut at least, as long as that takes seconds.
const PARTS: u64 = 8;

/// What is claimed as long as it is not known how fast bytes come.
const FIRST: u64 = 4 << 20;

/// Ranges that may lie here: each has a file open.
const MOST_PIECES: usize = 16;

/// Of one blob.
#[derive(Debug)]
pub(super) struct RangeAllocator {
    size: u64,
    /// Where the claim of the first bytes ends.
    first: u64,
    /// By their first bytes; none overlaps another.
    pieces: BTreeMap<u64, Piece>,
}

#[derive(Debug)]
struct Piece {
    end: u64,
    is_here: bool,
}

/// What comes after the first bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    End,
    /// A piece, which can be appended.
    Here,
    /// A piece on its way.
    OnItsWay,
    /// Bytes that nobody has claimed.
    Free,
}

/// How much is to be claimed of so many free bytes, where one connection brings so many in a second; 0 if nobody knows.
fn portion(free: u64, pace: u64) -> u64 {
    let most = match pace {
        0 => FIRST,
        pace => pace
            .saturating_mul(SECONDS)
            .min((free / PARTS).max(pace.saturating_mul(SECONDS_AT_END))),
    };
    let most = most.clamp(LEAST, MOST);
    // No crumbs.
    if free < most + LEAST { free } else { most }
}

impl RangeAllocator {
    /// Of a blob whose first bytes are here, and pieces of it. What of these is not behind the first bytes and each other is
    /// not accepted.
    pub(super) fn new(size: u64, first: u64) -> Self {
        let pieces = BTreeMap::new();
        Self { size, first, pieces }
    }

    /// Notes a piece that lies here. False if it overlaps what is known, or is empty.
    pub(super) fn found(&mut self, piece: Range<u64>) -> bool {
        let before = self.pieces.range(..piece.end).next_back();
        let end = before.map_or(self.first, |(_, before)| before.end.max(self.first));
        if piece.is_empty() || piece.start < end || piece.end > self.size {
            return false;
        }
        let (end, is_here) = (piece.end, true);
        self.pieces.insert(piece.start, Piece { end, is_here });
        true
    }

    pub(super) fn next(&self) -> Next {
        match self.pieces.get(&self.first) {
            _ if self.first >= self.size => Next::End,
            Some(piece) if piece.is_here => Next::Here,
            Some(_) => Next::OnItsWay,
            None => Next::Free,
        }
    }

    /// RangeAllocator what comes after the first bytes, for them; without a pace, all that is free. Says where that ends, and where
    /// it would end with all.
    pub(super) fn claim_next(&mut self, pace: Option<u64>) -> (u64, u64) {
        let free = self.free_from(self.first);
        let length = free.end - free.start;
        self.first += pace.map_or(length, |pace| portion(length, pace));
        (self.first, free.end)
    }

    /// RangeAllocator a piece, unless nothing is free or too many are here.
    pub(super) fn claim_piece(&mut self, pace: u64) -> Option<Range<u64>> {
        if self.pieces.len() >= MOST_PIECES {
            return None;
        }
        let free = self.gaps().find(|gap| !gap.is_empty())?;
        let end = free.start + portion(free.end - free.start, pace);
        let is_here = false;
        self.pieces.insert(free.start, Piece { end, is_here });
        Some(free.start..end)
    }

    /// Bytes that nobody has claimed.
    pub(super) fn free(&self) -> u64 {
        self.gaps().map(|gap| gap.end - gap.start).sum()
    }

    /// The first bytes came as far as this, and nobody is at them.
    pub(super) fn first_is_at(&mut self, offset: u64) {
        self.first = offset;
    }

    /// A piece came as far as this, and nobody is at it. It is none if nothing came.
    pub(super) fn piece_is_at(&mut self, from: u64, offset: u64) {
        let (end, is_here) = (offset, true);
        match offset > from {
            true => self.pieces.insert(from, Piece { end, is_here }),
            false => self.pieces.remove(&from),
        };
    }

    /// Takes the piece that comes after the first bytes, to append it: its first byte.
    pub(super) fn take_next(&mut self) -> Option<u64> {
        let from = self.first;
        if self.next() != Next::Here {
            return None;
        }
        self.first = self.pieces.remove(&from)?.end;
        Some(from)
    }

    fn free_from(&self, start: u64) -> Range<u64> {
        let after = self.pieces.range(start..).next();
        start..after.map_or(self.size, |(from, _)| *from)
    }

    fn gaps(&self) -> impl Iterator<Item = Range<u64>> {
        let ends = self.pieces.values().map(|piece| piece.end);
        std::iter::once(self.first)
            .chain(ends)
            .map(|end| self.free_from(end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn as_much_is_claimed_as_comes_in_some_seconds_and_less_at_the_end() {
        for (free, pace, expected) in [
            (100, 0, 4),
            (8, 0, 4),
            (4, 0, 4),
            (1000, 10, 50),
            (200, 10, 25),
            (40, 10, 10),
            (10, 10, 10),
            (1000, 1000, 64),
            (50, 1000, 50),
        ] {
            let claimed = portion(free * MIB, pace * MIB);
            assert_eq!(claimed, expected * MIB, "{free} MiB free, {pace} MiB a second");
        }
        assert_eq!(portion(100 * MIB, 1), MIB);
        assert_eq!(portion(2 * MIB - 1, 1), 2 * MIB - 1, "no crumbs");
    }

    #[test]
    fn only_what_fits_behind_the_first_bytes_and_each_other_is_accepted() {
        let mut claims = RangeAllocator::new(1000, 100);
        for (piece, is_accepted) in [
            (50..120, false),
            (100..200, true),
            (150..250, false),
            (50..60, false),
            (300..400, true),
            (250..350, false),
            (200..300, true),
            (400..400, false),
            (900..1001, false),
            (320..330, false),
        ] {
            assert_eq!(claims.found(piece.clone()), is_accepted, "{piece:?}");
        }
        assert_eq!(claims.free(), 600);
        assert_eq!(
            std::iter::from_fn(|| claims.take_next()).collect::<Vec<_>>(),
            [100, 200, 300]
        );
        assert_eq!(claims.next(), Next::Free);
    }

    /// Whoever is at work, in any order, with what was found at the start.
    #[derive(Clone, Debug)]
    enum Step {
        First { pace: u64, part: u64 },
        Claim { pace: u64 },
        Came { which: prop::sample::Index, part: u64 },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let pace = prop_oneof![Just(0), 1..100 * MIB];
        let step = prop_oneof![
            (pace.clone(), 0..=100_u64).prop_map(|(pace, part)| Step::First { pace, part }),
            pace.prop_map(|pace| Step::Claim { pace }),
            (any::<prop::sample::Index>(), 0..=100_u64).prop_map(|(which, part)| Step::Came { which, part }),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn every_byte_comes_once_and_the_blob_gets_whole(
            size in 1..300 * MIB,
            found in prop::collection::vec((0..300 * MIB, 1..20 * MIB), 0..4),
            steps in steps(),
        ) {
            let mut claims = RangeAllocator::new(size, 0);
            // What came, as ranges.
            let mut came: Vec<Range<u64>> = Vec::new();
            for (from, length) in found {
                if claims.found(from..from + length) {
                    came.push(from..from + length);
                }
            }
            let mut running: Vec<Range<u64>> = Vec::new();
            let mut offset = 0;
            let finish = |claims: &mut RangeAllocator, running: &mut Vec<Range<u64>>, at: usize, part: u64, came: &mut Vec<Range<u64>>| {
                let piece = running.remove(at);
                let reached = piece.start + (piece.end - piece.start) * part / 100;
                claims.piece_is_at(piece.start, reached);
                came.push(piece.start..reached);
            };
            let advance = |claims: &mut RangeAllocator, pace, part: u64, offset: &mut u64, came: &mut Vec<Range<u64>>| {
                while claims.take_next().is_some() {
                    *offset = claims.first;
                }
                if claims.next() == Next::Free {
                    let (end, most) = claims.claim_next(Some(pace));
                    assert!(end > *offset && end <= most && most <= size);
                    let reached = *offset + (end - *offset) * part / 100;
                    came.push(*offset..reached);
                    claims.first_is_at(reached);
                    *offset = reached;
                }
            };
            for step in steps {
                match step {
                    Step::First { pace, part } => advance(&mut claims, pace, part, &mut offset, &mut came),
                    Step::Claim { pace } => running.extend(claims.claim_piece(pace)),
                    Step::Came { which, part } if !running.is_empty() => {
                        let at = which.index(running.len());
                        finish(&mut claims, &mut running, at, part, &mut came);
                    }
                    Step::Came { .. } => {}
                }
                prop_assert!(claims.pieces.len() <= MOST_PIECES + 4);
            }
            while !running.is_empty() {
                finish(&mut claims, &mut running, 0, 100, &mut came);
            }
            while claims.next() != Next::End {
                advance(&mut claims, 0, 100, &mut offset, &mut came);
            }
            came.retain(|range| !range.is_empty());
            came.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in came {
                prop_assert_eq!(range.start, end, "a gap, or twice");
                end = range.end;
            }
            prop_assert_eq!((end, claims.free()), (size, 0));
        }
    }
}
