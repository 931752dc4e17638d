//! A log line for each event that is worth one, whatever shows the progress.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::progress::{Progress, ProgressSnapshot};
use super::time_estimate::TimeEstimate;
use super::{Count, Event, ImagePhase, Observer, OperatorReport, OperatorState, Printable, Size, Span};

/// How often a failed attempt, or a wait, is told: when a link goes down, every blob on it fails, and fails again at every attempt.
/// Those in between are told to whoever wants to know more.
const RETRIES_EVERY: Duration = Duration::from_secs(10);

/// Logs what happens. Whoever reports an event need not log it as well.
#[derive(Default)]
pub struct EventLog {
    progress: Mutex<(Progress, TimeEstimate)>,
    retries: Mutex<Retries>,
    waits: Mutex<Retries>,
}

/// Failed attempts that will be made again, or waits that go on.
#[derive(Default)]
struct Retries {
    told: Option<Instant>,
    untold: u64,
}

impl Retries {
    /// Whether to tell of one more, and if so, how many there were that nobody was told of.
    fn tell(&mut self, now: Instant) -> Option<u64> {
        if self
            .told
            .is_some_and(|told| now.duration_since(told) < RETRIES_EVERY)
        {
            self.untold += 1;
            return None;
        }
        self.told = Some(now);
        Some(std::mem::take(&mut self.untold))
    }
}

impl Observer for EventLog {
    fn observe(&self, event: Event) {
        if let Event::Retrying { why, after, .. } = &event {
            let mut retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
            let told = retries.tell(Instant::now());
            drop(retries);
            let (why, after) = (Printable(why), Span(*after));
            match told {
                None => tracing::debug!("{why}; again in {after}"),
                Some(0) => tracing::warn!("{why}; again in {after}"),
                Some(others) => {
                    tracing::warn!("{why}; again in {after}; {others} more failures since the last line")
                }
            }
            return;
        }
        if let Event::Waiting { why, .. } = &event {
            let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
            let told = waits.tell(Instant::now());
            drop(waits);
            match told {
                None => tracing::debug!("{}", Printable(why)),
                Some(_) => tracing::info!("waiting: {}", Printable(why)),
            }
            return;
        }
        let (snapshot, outlooks) = {
            let mut locked = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
            let ((progress, forecast), now) = (&mut *locked, Instant::now());
            let is_told = match event {
                Event::ImageDone { .. } => true,
                // The same plan again is no news.
                Event::Planned { bytes, .. } => bytes != progress.snapshot(now).bytes,
                _ => false,
            };
            progress.note(&event, now);
            let snapshot = match is_told {
                true => progress.snapshot(now),
                false => ProgressSnapshot::default(),
            };
            (snapshot, forecast.note(&event, now, || progress.snapshot(now)))
        };
        // The lock is free while the log is written: a slow reader of the log must not hold up a fetch more than its
        // own line does.
        log(&event, &snapshot);
        for outlook in outlooks {
            match outlook.is_warning() {
                true => tracing::warn!("{outlook}"),
                false => tracing::info!("{outlook}"),
            }
        }
    }
}

/// How far it is matters to plans that are news, and to the events that end an image.
fn log(event: &Event, far: &ProgressSnapshot) {
    match event {
        Event::StepStarted(step) => tracing::debug!("{step:?} begins"),
        Event::StepEnded {
            step,
            ok,
            reason,
            message,
        } => {
            let mut lines = message.lines();
            let first = Printable(lines.next().unwrap_or_default());
            if *ok {
                tracing::info!("{step:?}: {first}");
            } else {
                tracing::error!("{step:?}: {reason}: {first}");
            }
            // Each line by itself: operators are told to grep for some, and a hint is found more easily so.
            for line in lines {
                if *ok {
                    tracing::info!("{}", Printable(line));
                } else {
                    tracing::error!("{}", Printable(line));
                }
            }
        }
        Event::Warned { message } => tracing::warn!("{}", Printable(message)),
        Event::Operator(operator) => log_operator(operator),
        Event::Planned { images, present, .. } => {
            let left = far.bytes - far.fetched;
            if left > 0 {
                tracing::info!(
                    "{} wanted, {present} present, {} to be fetched",
                    Count(*images as usize, "image"),
                    Size(left)
                );
            }
        }
        Event::LayersReused { layers } => tracing::debug!("{layers} layers of images to pull are present"),
        Event::BlobStarted { blob, size, resumed } => {
            tracing::debug!(
                "fetching `{blob}`: {}, {} of it in the spool",
                Size(*size),
                Size(*resumed)
            );
        }
        Event::BlobVerified { blob } => tracing::debug!("fetched and verified `{blob}`"),
        Event::BlobAbandoned { blob } => tracing::debug!("stopped fetching `{blob}`"),
        Event::ImageDone { name, state, reason } => {
            let name = Printable(name);
            let reason = Printable(reason.as_deref().unwrap_or("no reason is known"));
            // Before the first plan nobody knows of how many.
            let count = match far.images {
                0 => String::new(),
                images => format!(" [{}/{images}]", far.images_here + far.images_failed),
            };
            match state {
                ImagePhase::Present => tracing::info!("Skipping existing image {name}{count}"),
                ImagePhase::Pulled => tracing::info!("Pulled {name}{count}"),
                ImagePhase::Failed | ImagePhase::Damaged => tracing::error!("Failed {name}{count}: {reason}"),
                ImagePhase::Excluded => tracing::debug!("Excluded {name}: {reason}"),
                ImagePhase::Pending => tracing::debug!("Pending {name}"),
            }
        }
        // The limit says so itself, and each change.
        Event::RateLimited { .. }
        | Event::Deadline { .. }
        | Event::Stopped { .. }
        | Event::ImageListed { .. }
        | Event::BlobReceived { .. }
        | Event::BlobRepeated { .. }
        | Event::LayerCommitted { .. }
        | Event::Requested { .. }
        | Event::Waiting { .. }
        | Event::WaitEnded { .. }
        | Event::Retrying { .. } => (),
    }
}

fn log_operator(operator: &OperatorReport) {
    let (name, index) = (
        operator.name(),
        operator.index.as_deref().unwrap_or("any catalog"),
    );
    match (operator.state, &operator.reason) {
        (OperatorState::Found, _) => tracing::info!(
            "operator `{}` is `{}` of `{}`: {}",
            Printable(&name),
            Printable(operator.bundle.as_deref().unwrap_or_default()),
            Printable(index),
            Count(operator.images.len(), "image")
        ),
        (OperatorState::Failed, reason) => tracing::error!(
            "operator `{}`: {}",
            Printable(&name),
            Printable(reason.as_deref().unwrap_or("no reason is known"))
        ),
        (OperatorState::Pending, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_down_is_told_now_and_then() {
        let (mut retries, begun) = (Retries::default(), Instant::now());
        let told = [0, 1, 9, 10, 11, 40].map(|second| retries.tell(begun + Duration::from_secs(second)));
        assert_eq!(told, [Some(0), None, None, Some(2), None, Some(1)]);
    }
}
