//! Finds the matches between old and new bytes: bsdiff over a suffix array.
//!
//! The suffix array takes four bytes for each old byte. If that exceeds the memory, the new bytes are compared in windows
//! with the old bytes around the same place.

use super::content::Content;
use super::error::DiffError;
use super::match_list::{Match, MatchList};
use crate::cancel::{Cancel, Stopped};

/// Bytes of memory for each old byte: itself and its entry in the suffix array.
const OLD_COST: u64 = 5;

/// Old bytes of a window for each new byte: the same range, and half of its length before and after it.
const OLD_IN_WINDOW: u64 = 2;

/// The smallest window, even if the memory is not enough for it.
const MIN_WINDOW: u64 = 1 << 20;

/// The suffix array's entries have 31 bits.
const MAX_OLD: u64 = i32::MAX as u64;

/// A shorter match costs more than it saves: an operation, its length and a position.
const MIN_MATCH: usize = 12;

/// Blocks for the comparison of equal starts and ends.
const BLOCK: u64 = 64 << 10;

/// The memory for comparing these lengths as a whole.
pub(super) fn memory_needed(old: u64, new: u64) -> u64 {
    old.saturating_mul(OLD_COST).saturating_add(new)
}

/// The matches between two contents, within `memory`.
pub(super) fn compare(
    old: &Content<'_>,
    new: &Content<'_>,
    memory: u64,
    cancel: &Cancel,
) -> Result<MatchList, DiffError> {
    let mut matches = MatchList::default();
    if old.length() == 0 {
        return Ok(matches);
    }
    if memory_needed(old.length(), new.length()) <= memory && old.length() <= MAX_OLD {
        let old_bytes = old.read_range(0..old.length())?;
        let new_bytes = new.read_range(0..new.length())?;
        for found in compare_whole(&old_bytes, &new_bytes, cancel)? {
            matches.push(found);
        }
        return Ok(matches);
    }
    let window = (memory / (OLD_COST * OLD_IN_WINDOW + 1)).clamp(MIN_WINDOW, MAX_OLD / OLD_IN_WINDOW);
    let (mut start, mut shift) = (0, 0);
    while start < new.length() {
        let end = new.length().min(start + window);
        let around = start.saturating_add_signed(shift);
        let old_end = old.length().min(around.saturating_add(window + window / 2));
        let old_start = old_end.saturating_sub(OLD_IN_WINDOW * window);
        let old_bytes = old.read_range(old_start..old_end)?;
        let new_bytes = new.read_range(start..end)?;
        let mut longest = 0;
        for found in search(&old_bytes, &new_bytes, cancel)? {
            let (old, new) = (old_start + found.old, start + found.new);
            matches.push(Match { old, new, ..found });
            if found.length > longest {
                // The next window continues from the place that is certain.
                (longest, shift) = (found.length, old.wrapping_sub(new).cast_signed());
            }
        }
        start = end;
    }
    Ok(matches)
}

/// Only the equal bytes at the start and at the end, for contents in which nothing else can be similar.
pub(super) fn compare_ends(
    old: &Content<'_>,
    new: &Content<'_>,
    cancel: &Cancel,
) -> Result<MatchList, DiffError> {
    let limit = old.length().min(new.length());
    let mut matches = MatchList::default();
    let start = equal_length(limit, cancel, |done, length| {
        Ok((
            old.read_range(done..done + length)?,
            new.read_range(done..done + length)?,
        ))
    })?;
    matches.push(Match {
        old: 0,
        new: 0,
        length: start,
    });
    let end = equal_length(limit - start, cancel, |done, length| {
        let before_end = |content: &Content<'_>| {
            let end = content.length() - done;
            let mut bytes = content.read_range(end - length..end)?;
            bytes.reverse();
            Ok::<_, DiffError>(bytes)
        };
        Ok((before_end(old)?, before_end(new)?))
    })?;
    matches.push(Match {
        old: old.length() - end,
        new: new.length() - end,
        length: end,
    });
    Ok(matches)
}

/// How many of the first `limit` bytes are equal; `read` returns both contents' bytes at a distance from where the
/// comparison starts.
fn equal_length(
    limit: u64,
    cancel: &Cancel,
    read: impl Fn(u64, u64) -> Result<(Vec<u8>, Vec<u8>), DiffError>,
) -> Result<u64, DiffError> {
    let mut done = 0;
    while done < limit {
        cancel.check()?;
        let length = BLOCK.min(limit - done);
        let (old, new) = read(done, length)?;
        let equal = equal_start(&old, &new) as u64;
        done += equal;
        if equal < length {
            break;
        }
    }
    Ok(done)
}

fn equal_start(old: &[u8], new: &[u8]) -> usize {
    old.iter().zip(new).take_while(|(old, new)| old == new).count()
}

/// What is equal at the start and the end needs no search, and long repetitions are the search's worst case.
fn compare_whole(old: &[u8], new: &[u8], cancel: &Cancel) -> Result<Vec<Match>, Stopped> {
    let first = equal_start(old, new);
    let ends = old[first..].iter().rev().zip(new[first..].iter().rev());
    let last = ends.take_while(|(old, new)| old == new).count();
    let mut matches = vec![Match {
        old: 0,
        new: 0,
        length: first as u64,
    }];
    let middle = search(old, &new[first..new.len() - last], cancel)?;
    matches.extend(middle.into_iter().map(|found| Match {
        new: first as u64 + found.new,
        ..found
    }));
    matches.push(Match {
        old: (old.len() - last) as u64,
        new: (new.len() - last) as u64,
        length: last as u64,
    });
    Ok(matches)
}

fn search(old: &[u8], new: &[u8], cancel: &Cancel) -> Result<Vec<Match>, Stopped> {
    let mut matches = Vec::new();
    if old.is_empty() || new.is_empty() {
        return Ok(matches);
    }
    bidiff::diff(old, new, &bidiff::DiffParams::default(), |found| {
        cancel.check()?;
        if found.add_length >= MIN_MATCH {
            matches.push(Match {
                old: found.add_old_start as u64,
                new: found.add_new_start as u64,
                length: found.add_length as u64,
            });
        }
        Ok(())
    })?;
    Ok(matches)
}
