//! How many blobs travel at a time, where one of them is a large part of all.
//!
//! Connections share a link evenly. So a blob that is larger than what a share brings until the others are here comes last
//! and alone, and then the link has nothing to do while it is unpacked. When fewer travel beside it, it is here earlier, and
//! what is last is small. But fewer connections may bring less: a link that is long and loses packets is not filled by each.
//! So what comes with few is compared with what came with more, and if that is less, there are never few again.

use std::time::{Duration, Instant};

use crate::plan::BlobTask;

/// For so long the rate is looked at: many round trips, and short beside a download for which this matters.
const WINDOW: Duration = Duration::from_secs(2);

/// Fewer than this do not fill a link while one ends and the next begins.
const FEWEST: usize = 3;

/// What few have to bring of what more brought: less than one connection less of eight would take away.
const ENOUGH: f64 = 0.92;

/// The number of blobs that may travel.
#[derive(Debug)]
pub(super) struct Flow {
    /// As many as may ever.
    most: usize,
    /// With so many the largest, begun first, is here before the others; none if all that may travel are not too many.
    few: Option<usize>,
    /// The best rate with more than that, in bytes a second.
    best: Option<f64>,
    /// When the window began, what had come until then, and whether more than few travelled.
    since: Instant,
    received: u64,
    had_more: bool,
}

impl Flow {
    pub(super) fn new(blobs: &[BlobTask], most: usize, received: u64) -> Self {
        let largest = blobs.iter().map(BlobTask::missing).max().unwrap_or(0);
        let rest = blobs.iter().map(BlobTask::missing).fold(0, u64::saturating_add);
        // One share less than would do if it came at the very end.
        let shares = rest
            .checked_div(largest)
            .and_then(|shares| usize::try_from(shares).ok());
        let few = shares.map(|shares| shares.saturating_sub(1).max(FEWEST));
        Self {
            most,
            few: few.filter(|few| *few < most),
            best: None,
            since: Instant::now(),
            received,
            had_more: false,
        }
    }

    /// Whether the time of looking matters.
    pub(super) fn is_any(&self) -> bool {
        self.few.is_some()
    }

    /// Whether another blob may travel beside so many.
    pub(super) fn admits(&self, travelling: usize) -> bool {
        match (self.few, self.best) {
            (Some(few), Some(_)) => travelling < few,
            // Who is let in to wait for a place cannot be held back any more.
            (Some(_), None) => travelling < self.most,
            (None, _) => true,
        }
    }

    /// Takes note of what has come until now, while so many travel.
    pub(super) fn look(&mut self, now: Instant, received: u64, travelling: usize) {
        let Some(few) = self.few else {
            return;
        };
        let passed = now.saturating_duration_since(self.since);
        let has_more = travelling > few;
        if passed < WINDOW && has_more == self.had_more {
            return;
        }
        if passed >= WINDOW {
            let rate = received.saturating_sub(self.received) as f64 / passed.as_secs_f64();
            match self.best {
                best if self.had_more => self.best = Some(best.map_or(rate, |best| best.max(rate))),
                Some(best) if travelling == few && rate < best * ENOUGH => self.few = None,
                _ => {}
            }
        }
        (self.since, self.received, self.had_more) = (now, received, has_more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::Digest;

    fn flow(sizes: &[u64]) -> Flow {
        let blob = |size: &u64| BlobTask {
            digest: Digest::of(&size.to_be_bytes()),
            size: *size,
            spooled: 0,
            layers: Vec::new(),
            images: Vec::new(),
        };
        let blobs: Vec<BlobTask> = sizes.iter().map(blob).collect();
        Flow::new(&blobs, 8, 0)
    }

    /// Lets time pass in which so many bytes come while so many travel.
    fn pass(flow: &mut Flow, travelling: usize, bytes: u64) {
        let (now, received) = (flow.since + WINDOW, flow.received + bytes);
        flow.had_more = flow.few.is_some_and(|few| travelling > few);
        flow.look(now, received, travelling);
    }

    #[test]
    fn few_travel_beside_one_that_is_a_large_part_of_all_as_long_as_they_fill_the_link() {
        let mut sizes = vec![10; 40];
        sizes.push(100);
        let mut flow = flow(&sizes);
        assert_eq!(flow.few, Some(4), "a fifth of all");
        assert!(flow.admits(7), "nothing is known of the link");
        pass(&mut flow, 8, 1000);
        assert!(flow.admits(3) && !flow.admits(4), "what more bring is known");
        pass(&mut flow, 4, 990);
        assert!(!flow.admits(4), "few are enough");
        pass(&mut flow, 4, 800);
        assert!(flow.admits(7), "they are not");
        pass(&mut flow, 8, 1000);
        pass(&mut flow, 4, 1000);
        assert!(flow.admits(7), "and never will be");
    }

    #[test]
    fn where_none_is_a_large_part_of_all_nothing_is_held_back() {
        for sizes in [&[10; 40][..], &[], &[0, 0]] {
            let mut flow = flow(sizes);
            assert!(!flow.is_any(), "{sizes:?}");
            pass(&mut flow, 8, 1000);
            assert!(flow.admits(8));
        }
    }
}
