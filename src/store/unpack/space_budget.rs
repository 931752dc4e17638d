//! Disk space for layers that turn out larger than was foreseen.
//!
//! How long a tar is shows when it is unpacked; a manifest does not say it, and zeros compress to a thousandth or less.
//! So no ratio tells a decompression bomb from a large layer: the disk decides. What a layer needs beyond what was
//! foreseen is taken, a piece at a time, from what nothing else in the plan needs. All layers share it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is taken at once: asking the disk for it takes microseconds, writing it a millisecond.
const PIECE: u64 = 1 << 20;

/// Space that may be used, in bytes.
#[derive(Debug)]
pub struct SpaceBudget {
    /// What nothing in the plan needs.
    spare: AtomicU64,
    /// What has to stay available, whoever uses the rest.
    reserve: u64,
    /// The file system is the one that holds this path.
    path: PathBuf,
}

impl SpaceBudget {
    /// `spare` bytes on the file system of `path`, as long as `reserve` bytes of it stay available.
    pub fn new(path: PathBuf, spare: u64, reserve: u64) -> Self {
        Self {
            spare: AtomicU64::new(spare),
            reserve,
            path,
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let space = rustix::fs::statvfs(&self.path);
        // What cannot be asked does not decide; a write will fail.
        let available = space.map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
        available >= self.reserve.saturating_add(bytes)
            && self
                .spare
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |spare| {
                    spare.checked_sub(bytes)
                })
                .is_ok()
    }
}

/// What one layer has taken. Given back when dropped, for what was unpacked is removed then; kept for a whole layer.
#[derive(Debug, Default)]
pub(super) struct SpaceReservation<'a> {
    budget: Option<&'a SpaceBudget>,
    bytes: u64,
}

impl<'a> SpaceReservation<'a> {
    pub(super) fn of(budget: Option<&'a SpaceBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Sees to it that at least so many bytes are taken. False if there is no room for them.
    pub(super) fn reach(&mut self, bytes: u64) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let more = (bytes - self.bytes).max(PIECE);
        let may = self.budget.is_some_and(|budget| budget.take(more));
        if may {
            self.bytes += more;
        }
        may
    }

    pub(super) fn keep(mut self) {
        self.budget = None;
    }
}

impl Drop for SpaceReservation<'_> {
    fn drop(&mut self) {
        if let Some(budget) = self.budget {
            budget.spare.fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_share_what_is_spare_and_give_back_what_fails() {
        let budget = SpaceBudget::new("/".into(), 3 * PIECE, 0);
        let (mut one, mut other) = (
            SpaceReservation::of(Some(&budget)),
            SpaceReservation::of(Some(&budget)),
        );
        assert!(one.reach(1) && one.reach(PIECE) && one.reach(PIECE + 1));
        assert!(other.reach(1) && !other.reach(PIECE + 1));
        drop(one);
        assert!(other.reach(2 * PIECE));
        other.keep();
        let mut late = SpaceReservation::of(Some(&budget));
        assert!(late.reach(PIECE) && !late.reach(PIECE + 1));
    }

    #[test]
    fn what_others_use_meanwhile_counts() {
        let full = SpaceBudget::new("/".into(), u64::MAX, u64::MAX / 2);
        assert!(!SpaceReservation::of(Some(&full)).reach(1));
    }
}
