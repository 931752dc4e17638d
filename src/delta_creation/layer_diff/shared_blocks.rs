//! Estimates how much two contents have in common, by sampled hashes of 64 bytes.
//!
//! Comparing compressed content takes long and mostly finds nothing. But archives such as JAR have members that did not change.

use std::collections::HashSet;

use super::content::Content;
use super::error::DiffError;
use crate::cancel::Cancel;

/// One of this many positions is a sample; which ones are, depends on the bytes before them.
const SAMPLED: u64 = 64;

/// With less in common, the contents are not compared.
const MIN_SHARED_PERCENT: usize = 2;

/// Whether a part of `new` that is worth the time is in `old`.
pub(super) fn has_shared_blocks(
    old: &Content<'_>,
    new: &Content<'_>,
    cancel: &Cancel,
) -> Result<bool, DiffError> {
    let mut known = HashSet::new();
    sample(old, cancel, |hash| {
        known.insert(hash);
    })?;
    let (mut samples, mut shared) = (0, 0);
    sample(new, cancel, |hash| {
        samples += 1;
        shared += usize::from(known.contains(&hash));
    })?;
    Ok(shared > 0 && shared >= samples / 100 * MIN_SHARED_PERCENT)
}

/// Passes the hashes of all samples to `each`. A hash covers the 64 bytes up to its position, because older ones are
/// shifted out (the Gear hash of FastCDC).
fn sample(content: &Content<'_>, cancel: &Cancel, mut each: impl FnMut(u64)) -> Result<(), DiffError> {
    let gear = gear();
    let mut hash = 0_u64;
    content.chunks(0..content.length(), |chunk| {
        cancel.check()?;
        for &byte in chunk {
            hash = (hash << 1).wrapping_add(gear[usize::from(byte)]);
            if hash >> 32 & (SAMPLED - 1) == 0 {
                each(hash);
            }
        }
        Ok(())
    })
}

/// A random number for each byte (SplitMix64).
fn gear() -> [u64; 256] {
    let mut state = 0_u64;
    std::array::from_fn(|_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    })
}
