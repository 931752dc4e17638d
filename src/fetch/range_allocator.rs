//! Allocates the ranges of a blob to connections, so that no byte is downloaded twice.
//!
//! ```text
//! 0             contiguous                                                          size
//! |=== received ===~~~~~|· · · · · ·|== received ==|~~~~~ running ~~~~~|· · · · · · · · ·|
//!                             free                                           free
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

/// The shortest range, unless fewer bytes are free: each is a request, and waits a round trip for its first byte.
const SHORTEST: u64 = 1 << 20;

/// The longest range: the rate of a link may fall, and a range is not shortened once it is requested.
const LONGEST: u64 = 64 << 20;

/// A range has the bytes that one connection receives in so many seconds; fewer towards the end, so that all connections end
/// at about the same time.
const SECONDS: u64 = 5;
const SECONDS_AT_END: u64 = 1;

/// The free bytes are cut into so many ranges at least, as long as each of them takes seconds.
const MIN_RANGES: u64 = 8;

/// The length of a range while the speed of a connection is unknown.
const FIRST: u64 = 4 << 20;

/// The most ranges at a time, because each has a file open.
const MAX_RANGES: usize = 16;

/// The ranges of one blob.
#[derive(Debug)]
pub(super) struct RangeAllocator {
    size: u64,
    /// Where the bytes end that are received from offset 0 on, with those that are allocated to the connection after them.
    contiguous: u64,
    /// The ranges behind them, by their first bytes; none overlaps another.
    ranges: BTreeMap<u64, AllocatedRange>,
}

#[derive(Debug)]
struct AllocatedRange {
    end: u64,
    is_received: bool,
}

/// The bytes that are allocated to a request for what follows the contiguous bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// Where they end if the source sends a range.
    pub(super) end: u64,
    /// Where they end if the source sends the whole blob.
    pub(super) end_of_whole: u64,
}

/// What follows the contiguous bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The end of the blob.
    End,
    /// A received range, which can be appended.
    Received,
    /// A range that another connection is receiving.
    Running,
    /// Bytes that are not allocated.
    Free,
}

/// The length of a range, of so many free bytes, where one connection receives so many in a second; 0 if that is unknown.
fn range_length(free: u64, bytes_per_second: u64) -> u64 {
    let most = match bytes_per_second {
        0 => FIRST,
        rate => rate
            .saturating_mul(SECONDS)
            .min((free / MIN_RANGES).max(rate.saturating_mul(SECONDS_AT_END))),
    };
    let most = most.clamp(SHORTEST, LONGEST);
    // A short rest is added to the range.
    if free < most + SHORTEST { free } else { most }
}

impl RangeAllocator {
    /// For a blob whose bytes before `contiguous` are received.
    pub(super) fn new(size: u64, contiguous: u64) -> Self {
        let ranges = BTreeMap::new();
        Self {
            size,
            contiguous,
            ranges,
        }
    }

    /// Adds a range that an earlier run received. False if it overlaps others or is empty.
    pub(super) fn add_received(&mut self, range: Range<u64>) -> bool {
        let before = self.ranges.range(..range.end).next_back();
        let end = before.map_or(self.contiguous, |(_, before)| before.end.max(self.contiguous));
        if range.is_empty() || range.start < end || range.end > self.size {
            return false;
        }
        let (end, is_received) = (range.end, true);
        self.ranges
            .insert(range.start, AllocatedRange { end, is_received });
        true
    }

    pub(super) fn next(&self) -> Next {
        match self.ranges.get(&self.contiguous) {
            _ if self.contiguous >= self.size => Next::End,
            Some(range) if range.is_received => Next::Received,
            Some(_) => Next::Running,
            None => Next::Free,
        }
    }

    /// Allocates bytes to the connection after the contiguous bytes; all free ones if `bytes_per_second` is None.
    pub(super) fn allocate_next(&mut self, bytes_per_second: Option<u64>) -> Allocation {
        let free = self.free_from(self.contiguous);
        let length = free.end - free.start;
        self.contiguous += bytes_per_second.map_or(length, |rate| range_length(length, rate));
        Allocation {
            end: self.contiguous,
            end_of_whole: free.end,
        }
    }

    /// Allocates a range to another connection, unless nothing is free or there are too many ranges.
    pub(super) fn allocate_range(&mut self, bytes_per_second: u64) -> Option<Range<u64>> {
        if self.ranges.len() >= MAX_RANGES {
            return None;
        }
        let free = self.gaps().find(|gap| !gap.is_empty())?;
        let end = free.start + range_length(free.end - free.start, bytes_per_second);
        let is_received = false;
        self.ranges
            .insert(free.start, AllocatedRange { end, is_received });
        Some(free.start..end)
    }

    /// How many bytes are not allocated.
    pub(super) fn free(&self) -> u64 {
        self.gaps().map(|gap| gap.end - gap.start).sum()
    }

    /// Records that the contiguous bytes end here, and that no connection is receiving the next ones.
    pub(super) fn set_contiguous(&mut self, offset: u64) {
        self.contiguous = offset;
    }

    /// Records that a range ended at this offset; the rest of it is free again.
    pub(super) fn range_ended(&mut self, start: u64, offset: u64) {
        let (end, is_received) = (offset, true);
        match offset > start {
            true => self.ranges.insert(start, AllocatedRange { end, is_received }),
            false => self.ranges.remove(&start),
        };
    }

    /// Takes the received range after the contiguous bytes, to append it, and returns its first byte.
    pub(super) fn take_received(&mut self) -> Option<u64> {
        let start = self.contiguous;
        if self.next() != Next::Received {
            return None;
        }
        self.contiguous = self.ranges.remove(&start)?.end;
        Some(start)
    }

    fn free_from(&self, start: u64) -> Range<u64> {
        let after = self.ranges.range(start..).next();
        start..after.map_or(self.size, |(start, _)| *start)
    }

    fn gaps(&self) -> impl Iterator<Item = Range<u64>> {
        let ends = self.ranges.values().map(|range| range.end);
        std::iter::once(self.contiguous)
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
    fn a_range_has_the_bytes_of_some_seconds_and_fewer_at_the_end() {
        for (free, rate, expected) in [
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
            let length = range_length(free * MIB, rate * MIB);
            assert_eq!(length, expected * MIB, "{free} MiB free, {rate} MiB a second");
        }
        assert_eq!(range_length(100 * MIB, 1), MIB);
        assert_eq!(range_length(2 * MIB - 1, 1), 2 * MIB - 1, "no short rest");
    }

    #[test]
    fn a_range_that_overlaps_others_is_not_added() {
        let mut allocator = RangeAllocator::new(1000, 100);
        for (range, is_added) in [
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
            assert_eq!(allocator.add_received(range.clone()), is_added, "{range:?}");
        }
        assert_eq!(allocator.free(), 600);
        assert_eq!(
            std::iter::from_fn(|| allocator.take_received()).collect::<Vec<_>>(),
            [100, 200, 300]
        );
        assert_eq!(allocator.next(), Next::Free);
    }

    /// One event of a download, in any order.
    #[derive(Clone, Debug)]
    enum Step {
        /// The connection after the contiguous bytes receives so many percent of its allocation.
        Contiguous { rate: u64, percent: u64 },
        /// A parallel range starts.
        Start { rate: u64 },
        /// A parallel range ends after so many percent.
        End {
            which: prop::sample::Index,
            percent: u64,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let rate = prop_oneof![Just(0), 1..100 * MIB];
        let step = prop_oneof![
            (rate.clone(), 0..=100_u64).prop_map(|(rate, percent)| Step::Contiguous { rate, percent }),
            rate.prop_map(|rate| Step::Start { rate }),
            (any::<prop::sample::Index>(), 0..=100_u64)
                .prop_map(|(which, percent)| Step::End { which, percent }),
        ];
        prop::collection::vec(step, 0..60)
    }

    proptest! {
        #[test]
        fn every_byte_is_received_once_and_the_blob_gets_complete(
            size in 1..300 * MIB,
            found in prop::collection::vec((0..300 * MIB, 1..20 * MIB), 0..4),
            steps in steps(),
        ) {
            let mut allocator = RangeAllocator::new(size, 0);
            let mut received: Vec<Range<u64>> = Vec::new();
            for (start, length) in found {
                if allocator.add_received(start..start + length) {
                    received.push(start..start + length);
                }
            }
            let mut running: Vec<Range<u64>> = Vec::new();
            let mut offset = 0;
            let end = |allocator: &mut RangeAllocator, range: Range<u64>, percent: u64, received: &mut Vec<Range<u64>>| {
                let reached = range.start + (range.end - range.start) * percent / 100;
                allocator.range_ended(range.start, reached);
                received.push(range.start..reached);
            };
            let advance = |allocator: &mut RangeAllocator, rate, percent: u64, offset: &mut u64, received: &mut Vec<Range<u64>>| {
                while allocator.take_received().is_some() {
                    *offset = allocator.contiguous;
                }
                if allocator.next() == Next::Free {
                    let Allocation { end, end_of_whole } = allocator.allocate_next(Some(rate));
                    assert!(end > *offset && end <= end_of_whole && end_of_whole <= size);
                    let reached = *offset + (end - *offset) * percent / 100;
                    received.push(*offset..reached);
                    allocator.set_contiguous(reached);
                    *offset = reached;
                }
            };
            for step in steps {
                match step {
                    Step::Contiguous { rate, percent } => {
                        advance(&mut allocator, rate, percent, &mut offset, &mut received);
                    }
                    Step::Start { rate } => running.extend(allocator.allocate_range(rate)),
                    Step::End { which, percent } if !running.is_empty() => {
                        let range = running.remove(which.index(running.len()));
                        end(&mut allocator, range, percent, &mut received);
                    }
                    Step::End { .. } => {}
                }
                prop_assert!(allocator.ranges.len() <= MAX_RANGES + 4);
            }
            for range in running {
                end(&mut allocator, range, 100, &mut received);
            }
            while allocator.next() != Next::End {
                advance(&mut allocator, 0, 100, &mut offset, &mut received);
            }
            received.retain(|range| !range.is_empty());
            received.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in received {
                prop_assert_eq!(range.start, end, "a gap, or twice");
                end = range.end;
            }
            prop_assert_eq!((end, allocator.free()), (size, 0));
        }
    }
}
