//! DownloadSlots on the link: as many as blobs may travel at a time.
//!
//! Who waits for a registry that wants to be left alone moves nothing, and lends its place to somebody whose registry
//! answers. How many do so can be watched, for whoever keeps a bounded number of blobs going. Under a limit on the rate only
//! those travel that have a turn, too.

use std::sync::Arc;

use futures::FutureExt as _;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::cancel::{Cancel, Stopped};
use crate::registry::{RateLimiter, TransferPermit};

/// All places.
pub(super) struct DownloadSlots {
    free: Semaphore,
    /// How many there are.
    count: usize,
    limit: Arc<RateLimiter>,
    throttled: watch::Sender<usize>,
}

/// One of them, as long as it lives.
pub(super) struct DownloadSlot<'a> {
    places: &'a DownloadSlots,
    taken: Option<Taken<'a>>,
}

type Taken<'a> = (SemaphorePermit<'a>, TransferPermit<'a>);

impl DownloadSlots {
    pub(super) fn new(count: usize, limit: Arc<RateLimiter>) -> Self {
        Self {
            limit,
            count,
            free: Semaphore::new(count),
            throttled: watch::Sender::new(0),
        }
    }

    /// How many wait without a place that they had.
    pub(super) fn throttled(&self) -> watch::Receiver<usize> {
        self.throttled.subscribe()
    }

    /// Waits for as many places, at least one, in the order in which they are asked for. Under a limit it is only one.
    pub(super) async fn take(&self, count: usize, cancel: &Cancel) -> Result<Vec<DownloadSlot<'_>>, Stopped> {
        let count = match self.limit.is_limited() {
            true => 1,
            false => count.clamp(1, self.count),
        };
        let all = async {
            let permits = self.free.acquire_many(u32::try_from(count).unwrap_or(u32::MAX));
            let mut permits = permits.await.expect("the semaphore is never closed");
            let mut places = Vec::new();
            while let Some(permit) = permits.split(1) {
                let taken = Some((permit, self.limit.transfer_permit().await));
                places.push(DownloadSlot { places: self, taken });
            }
            places
        };
        unless_stopped(all, cancel).await
    }

    /// Takes a place that nobody waits for.
    pub(super) fn take_idle(&self) -> Option<DownloadSlot<'_>> {
        let permit = self.free.try_acquire().ok()?;
        let turn = self.limit.transfer_permit().now_or_never()?;
        let taken = Some((permit, turn));
        Some(DownloadSlot { places: self, taken })
    }

    async fn free_one(&self, cancel: &Cancel) -> Result<Taken<'_>, Stopped> {
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
    /// Gives it up, until it is taken again.
    pub(super) fn give_up(&mut self) {
        self.taken = None;
    }

    /// Waits for a place, if it was given up.
    pub(super) async fn take_again(&mut self, cancel: &Cancel) -> Result<(), Stopped> {
        if self.taken.is_none() {
            self.taken = Some(self.places.free_one(cancel).await?);
        }
        Ok(())
    }

    /// Lends the place while `rest` lasts, and waits for another one.
    pub(super) async fn lend<T, E: From<Stopped>>(
        &mut self,
        rest: impl Future<Output = Result<T, E>>,
        cancel: &Cancel,
    ) -> Result<T, E> {
        let _resting = Throttled::new(&self.places.throttled);
        self.taken = None;
        let rested = rest.await?;
        self.taken = Some(self.places.free_one(cancel).await?);
        Ok(rested)
    }
}

/// Counted as throttled as long as it lives, for a future may be dropped.
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
    async fn a_place_is_lent_while_its_owner_rests() {
        let (places, cancel) = (DownloadSlots::new(1, Arc::default()), Cancel::default());
        let mut first = places.take(1, &cancel).await.expect("a place").remove(0);
        let mut others = Box::pin(places.take(1, &cancel));
        assert!(futures::poll!(&mut others).is_pending());

        let rest = cancel.sleep(Duration::from_secs(60));
        let mut lent = Box::pin(first.lend(rest, &cancel));
        assert!(futures::poll!(&mut lent).is_pending());
        assert_eq!(*places.throttled().borrow(), 1);
        let second = others.await.expect("the place that was lent");
        tokio::time::sleep(Duration::from_secs(61)).await;
        assert!(futures::poll!(&mut lent).is_pending(), "it is taken");
        drop(second);
        lent.await.expect("it is free again");
        assert_eq!(*places.throttled().borrow(), 0);

        cancel.stop(StopReason::Deadline);
        assert!(places.take(1, &cancel).await.is_err());
    }
    #[tokio::test]
    async fn who_is_to_have_several_places_has_them_at_once_and_no_more_than_there_are() {
        let (places, cancel) = (DownloadSlots::new(4, Arc::default()), Cancel::default());
        let mut three = places.take(3, &cancel).await.expect("places");
        assert_eq!(three.len(), 3);
        let idle = places.take_idle();
        assert!(idle.is_some() && places.take_idle().is_none());
        let mut all = Box::pin(places.take(9, &cancel));
        assert!(futures::poll!(&mut all).is_pending());
        drop((three.pop(), idle));
        assert!(places.take_idle().is_none(), "somebody waits for it");
        drop(three);
        assert_eq!(all.await.expect("places").len(), 4);
    }
}
