//! Bounds the number of parallel downloads: a blob is only downloaded with a slot.
//!
//! A download releases its slot while its registries are throttled, so that another download can use the link. The number of
//! those downloads can be watched by a caller that keeps a bounded number of blobs under way. Under a limit on the rate a slot
//! also has a permit of the limiter.

use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::cancel::{Cancel, Stopped};
use crate::registry::{RateLimiter, TransferPermit};

/// All slots.
pub(super) struct DownloadSlots {
    free: Semaphore,
    /// The number of slots.
    count: usize,
    limit: Arc<RateLimiter>,
    throttled: watch::Sender<usize>,
}

/// The permission to download, until it is dropped or released.
pub(super) struct DownloadSlot<'a> {
    slots: &'a DownloadSlots,
    permits: Option<Permits<'a>>,
}

type Permits<'a> = (SemaphorePermit<'a>, TransferPermit<'a>);

impl DownloadSlots {
    pub(super) fn new(count: usize, limit: Arc<RateLimiter>) -> Self {
        Self {
            limit,
            count,
            free: Semaphore::new(count),
            throttled: watch::Sender::new(0),
        }
    }

    /// How many downloads have released their slot while their registries are throttled.
    pub(super) fn throttled(&self) -> watch::Receiver<usize> {
        self.throttled.subscribe()
    }

    /// Waits for this number of slots, in the order of the calls. Under a limit on the rate it is only one.
    pub(super) async fn acquire(
        &self,
        count: usize,
        cancel: &Cancel,
    ) -> Result<Vec<DownloadSlot<'_>>, Stopped> {
        let count = match self.limit.is_limited() {
            true => 1,
            false => count.clamp(1, self.count),
        };
        let all = async {
            let permits = self.free.acquire_many(u32::try_from(count).unwrap_or(u32::MAX));
            let mut permits = permits.await.expect("the semaphore is never closed");
            let mut slots = Vec::new();
            while let Some(permit) = permits.split(1) {
                let permits = Some((permit, self.limit.transfer_permit().await));
                slots.push(DownloadSlot { slots: self, permits });
            }
            slots
        };
        unless_stopped(all, cancel).await
    }

    /// A slot that is free, if no download waits for one.
    pub(super) fn acquire_idle(&self) -> Option<DownloadSlot<'_>> {
        let permit = self.free.try_acquire().ok()?;
        let permits = Some((permit, self.limit.transfer_permit().now_or_never()?));
        Some(DownloadSlot { slots: self, permits })
    }

    async fn permits(&self, cancel: &Cancel) -> Result<Permits<'_>, Stopped> {
        let one = async {
            let permit = self.free.acquire().await.expect("the semaphore is never closed");
            (permit, self.limit.transfer_permit().await)
        };
        unless_stopped(one, cancel).await
    }
}

async fn unless_stopped<T>(work: impl Future<Output = T>, cancel: &Cancel) -> Result<T, Stopped> {
    tokio::select! {
        biased;
        stopped = cancel.stopped() => Err(stopped),
        done = work => Ok(done),
    }
}

impl DownloadSlot<'_> {
    /// Releases it until it is acquired again.
    pub(super) fn release(&mut self) {
        self.permits = None;
    }

    /// Waits for a slot, if it was released.
    pub(super) async fn reacquire(&mut self, cancel: &Cancel) -> Result<(), Stopped> {
        if self.permits.is_none() {
            self.permits = Some(self.slots.permits(cancel).await?);
        }
        Ok(())
    }

    /// Releases the slot until `wait` ends, and then waits for a slot.
    pub(super) async fn release_while<T, E: From<Stopped>>(
        &mut self,
        wait: impl Future<Output = Result<T, E>>,
        cancel: &Cancel,
    ) -> Result<T, E> {
        let _throttled = Throttled::new(&self.slots.throttled);
        self.permits = None;
        let result = wait.await?;
        self.permits = Some(self.slots.permits(cancel).await?);
        Ok(result)
    }
}

/// Counts a download as throttled until it is dropped, because a future may be dropped.
struct Throttled<'a>(&'a watch::Sender<usize>);

impl<'a> Throttled<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Throttled<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cancel::StopReason;

    #[tokio::test(start_paused = true)]
    async fn a_slot_is_released_while_its_download_is_throttled() {
        let (slots, cancel) = (DownloadSlots::new(1, Arc::default()), Cancel::default());
        let mut first = slots.acquire(1, &cancel).await.expect("a slot").remove(0);
        let mut second = Box::pin(slots.acquire(1, &cancel));
        assert!(futures::poll!(&mut second).is_pending());

        let throttle = cancel.sleep(Duration::from_secs(60));
        let mut released = Box::pin(first.release_while(throttle, &cancel));
        assert!(futures::poll!(&mut released).is_pending());
        assert_eq!(*slots.throttled().borrow(), 1);
        let second = second.await.expect("the released slot");
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(futures::poll!(&mut released).is_pending(), "the slot is in use");
        drop(second);
        released.await.expect("the slot is free again");
        assert_eq!(*slots.throttled().borrow(), 0);

        cancel.stop(StopReason::Deadline);
        assert!(slots.acquire(1, &cancel).await.is_err());
    }

    #[tokio::test]
    async fn several_slots_are_acquired_at_once_and_no_more_than_exist() {
        let (slots, cancel) = (DownloadSlots::new(4, Arc::default()), Cancel::default());
        let mut three = slots.acquire(3, &cancel).await.expect("slots");
        assert_eq!(three.len(), 3);
        let idle = slots.acquire_idle();
        assert!(idle.is_some() && slots.acquire_idle().is_none());
        let mut all = Box::pin(slots.acquire(9, &cancel));
        assert!(futures::poll!(&mut all).is_pending());
        drop((three.pop(), idle));
        assert!(slots.acquire_idle().is_none(), "a download waits for it");
        drop(three);
        assert_eq!(all.await.expect("slots").len(), 4);
    }
}
