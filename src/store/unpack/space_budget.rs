//! Shares spare disk space among layers that turn out larger than estimated.
//!
//! The length of a tar is only known after unpacking: a manifest does not state it, and zeros compress to a
//! thousandth or less. So no ratio distinguishes a decompression bomb from a large layer, and the disk decides. Bytes
//! beyond the estimate are reserved in steps from the space that nothing else in the plan needs. All layers share it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are reserved at once: a reservation takes microseconds, writing them a millisecond.
const STEP: u64 = 1 << 20;

/// Spare disk space for all layers, in bytes.
#[derive(Debug)]
pub struct SpaceBudget {
    /// The space that nothing in the plan needs.
    spare: AtomicU64,
    /// The space that must stay available, whatever other programs use.
    reserve: u64,
    /// A path on the file system.
    path: PathBuf,
}

impl SpaceBudget {
    /// A budget of `spare` bytes on the file system of `path`, as long as `reserve` bytes of it stay available.
    pub fn new(path: PathBuf, spare: u64, reserve: u64) -> Self {
        Self {
            spare: AtomicU64::new(spare),
            reserve,
            path,
        }
    }

    /// Takes so many spare bytes until the result is dropped; none if there are fewer.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Option<TakenSpace> {
        self.reserve(bytes).then(|| TakenSpace {
            budget: Arc::clone(self),
            bytes,
        })
    }

    fn is_available(&self, bytes: u64) -> bool {
        let space = rustix::fs::statvfs(&self.path);
        // An error here is ignored; a write would report it.
        let available = space.map_or(u64::MAX, |space| space.f_bavail.saturating_mul(space.f_frsize));
        available >= self.reserve.saturating_add(bytes)
    }

    fn reserve(&self, bytes: u64) -> bool {
        self.is_available(bytes)
            && self
                .spare
                .try_update(Ordering::Relaxed, Ordering::Relaxed, |spare| {
                    spare.checked_sub(bytes)
                })
                .is_ok()
    }
}

/// Space for a file that is not part of a layer.
#[derive(Debug)]
pub(crate) struct TakenSpace {
    budget: Arc<SpaceBudget>,
    bytes: u64,
}

impl Drop for TakenSpace {
    fn drop(&mut self) {
        self.budget.spare.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

/// The reservation of one layer. It is released when dropped, because the unpacked files are removed then, and kept
/// for a complete layer.
#[derive(Debug, Default)]
pub(super) struct SpaceReservation<'a> {
    budget: Option<&'a SpaceBudget>,
    bytes: u64,
}

impl<'a> SpaceReservation<'a> {
    pub(super) fn of(budget: Option<&'a SpaceBudget>) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Grows the reservation to at least `bytes`. Returns false if the budget is used up.
    pub(super) fn grow_to(&mut self, bytes: u64) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let more = (bytes - self.bytes).max(STEP);
        let may = self.budget.is_some_and(|budget| budget.reserve(more));
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
    fn layers_share_the_budget_and_failed_ones_release_it() {
        let budget = SpaceBudget::new("/".into(), 3 * STEP, 0);
        let (mut one, mut other) = (
            SpaceReservation::of(Some(&budget)),
            SpaceReservation::of(Some(&budget)),
        );
        assert!(one.grow_to(1) && one.grow_to(STEP) && one.grow_to(STEP + 1));
        assert!(other.grow_to(1) && !other.grow_to(STEP + 1));
        drop(one);
        assert!(other.grow_to(2 * STEP));
        other.keep();
        let mut late = SpaceReservation::of(Some(&budget));
        assert!(late.grow_to(STEP) && !late.grow_to(STEP + 1));
    }

    #[test]
    fn space_is_taken_until_its_file_is_closed() {
        let budget = Arc::new(SpaceBudget::new("/".into(), 10, 0));
        let first = budget.take(6).expect("there are 10 bytes");
        assert!(budget.take(5).is_none());
        drop(first);
        assert!(budget.take(10).is_some());
    }

    #[test]
    fn space_used_by_other_programs_counts() {
        let full = SpaceBudget::new("/".into(), u64::MAX, u64::MAX / 2);
        assert!(!SpaceReservation::of(Some(&full)).grow_to(1));
    }
}
