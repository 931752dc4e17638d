//! Relates a pull to the end of its run: which images are begun before an upgrade, and which any deadline leaves out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::capacity::Capacity;
use super::forecast_news::ForecastNews;
use super::image_queue::{Begun, ImageQueue};
use super::link_rate::LinkRate;
use crate::job::run_end::{RunEnd, UpgradeTime};
use crate::plan::{BlobTask, Plan};
use crate::registry::LimitSettings;
use crate::report::{DeadlineReport, Forecast, Size};

/// Time between two forecasts.
const FORECAST_EVERY: Duration = Duration::from_secs(10);

/// How long an estimate is used: with a limit that depends on the time of day it takes milliseconds.
const ESTIMATE_EVERY: Duration = Duration::from_millis(250);

/// The end of a run, and what its pulls have measured so far.
#[derive(Clone, Debug)]
pub(in crate::job) struct MeasuredEnd {
    at: Instant,
    report: DeadlineReport,
    upgrade: Option<UpgradeTime>,
    limit: LimitSettings,
    measured: Arc<Mutex<Measured>>,
}

#[derive(Debug, Default)]
struct Measured {
    rate: LinkRate,
    news: ForecastNews,
}

impl MeasuredEnd {
    /// For a run that ends by `end`, if anything ends it.
    pub(in crate::job) fn new(end: &RunEnd, limit: LimitSettings) -> Option<Self> {
        let (at, report) = end.first()?;
        Some(Self {
            at,
            report,
            upgrade: end.upgrade_if_first(),
            limit,
            measured: Arc::default(),
        })
    }

    /// Whether images are begun only if they can be whole by then.
    pub(in crate::job) fn limits_starts(&self) -> bool {
        self.upgrade.is_some()
    }
}

/// One pull before the end of its run.
#[derive(Debug)]
pub(super) struct PullEnd<'a> {
    end: MeasuredEnd,
    plan: &'a Plan,
    queue: ImageQueue,
    estimate: Option<(Instant, Capacity)>,
    /// When the last forecast was made.
    forecast: Instant,
}

/// What [`PullEnd::begin`] decides.
pub(super) enum Next {
    /// Nothing is begun now.
    Nothing,
    /// These blobs, as indexes in the plan.
    Blobs(Vec<usize>),
    /// These images are not begun any more, as indexes in the plan, each with the reason.
    GivenUp(Vec<(usize, String)>, Forecast),
}

impl<'a> PullEnd<'a> {
    pub(super) fn new(end: MeasuredEnd, plan: &'a Plan, received: u64) -> Self {
        let now = Instant::now();
        let pull = Self {
            end,
            plan,
            queue: ImageQueue::new(plan, received),
            estimate: None,
            forecast: now,
        };
        // Between two pulls nothing is downloaded.
        pull.measured(|measured| measured.rate.restart(now));
        pull
    }

    /// Whether images wait until it is decided that they are begun.
    pub(super) fn holds_images(&self) -> bool {
        self.end.limits_starts() && self.queue.is_waiting()
    }

    /// Notes that a blob was begun.
    pub(super) fn blob_begun(&mut self, blob: &BlobTask) {
        self.queue.blob_begun(blob);
    }

    /// Notes that a blob has ended.
    pub(super) fn blob_ended(&mut self, blob: &BlobTask, received: u64) {
        self.queue.blob_ended(blob, received);
    }

    /// Adds bytes that the plan does not contain.
    pub(super) fn add(&mut self, bytes: u64) {
        self.queue.add(bytes);
    }

    /// Notes how many bytes have arrived. From time to time it returns a forecast, if it is news.
    pub(super) fn note(&mut self, received: u64) -> Option<Forecast> {
        let now = Instant::now();
        self.measured(|measured| measured.rate.note(received, now));
        if now.saturating_duration_since(self.forecast) < FORECAST_EVERY {
            return None;
        }
        self.forecast = now;
        let expected = self.capacity(now).expected?;
        let begins_all = !self.end.limits_starts();
        let missing = self.queue.missing(received, expected, begins_all);
        let is_news = self.measured(|measured| measured.news.is_news(missing.len(), now));
        is_news.then(|| self.describe(&missing))
    }

    /// Begins the next images. `received` bytes have arrived.
    pub(super) fn begin(&mut self, received: u64) -> Next {
        let now = Instant::now();
        let is_stalled = self.measured(|measured| measured.rate.is_stalled(now));
        let capacity = self.capacity(now);
        match self.queue.begin(received, is_stalled, &capacity) {
            Begun::Nothing => Next::Nothing,
            Begun::Blobs(blobs) => {
                if is_stalled {
                    self.measured(|measured| measured.rate.restart(now));
                }
                Next::Blobs(blobs)
            }
            Begun::GivenUp(images) => {
                self.measured(|measured| measured.news.is_news(images.len(), now));
                let forecast = self.describe(&images);
                let reason = |bytes| {
                    format!(
                        "it was not started: {} of it are missing, and at most {} can arrive before the upgrade begins at {}",
                        Size(bytes),
                        Size(capacity.at_most),
                        self.end.report.time
                    )
                };
                let images = images.iter().map(|(index, bytes)| (*index, reason(*bytes)));
                Next::GivenUp(images.collect(), forecast)
            }
        }
    }

    fn describe(&self, missing: &[(usize, u64)]) -> Forecast {
        let named = missing.iter().map(|(index, bytes)| {
            let name = self.plan.images[*index].reference.to_string();
            (name, *bytes)
        });
        Forecast::new(self.end.report, named.collect())
    }

    fn capacity(&mut self, now: Instant) -> Capacity {
        match self.estimate {
            Some((made, capacity)) if now.saturating_duration_since(made) < ESTIMATE_EVERY => capacity,
            _ => {
                let left = self.end.at.saturating_duration_since(now);
                let limit = &self.end.limit;
                let capacity =
                    self.measured(|measured| Capacity::new(&measured.rate, left, limit, Timestamp::now()));
                self.estimate = Some((now, capacity));
                capacity
            }
        }
    }

    fn measured<T>(&self, work: impl FnOnce(&mut Measured) -> T) -> T {
        let mut measured = self.end.measured.lock().unwrap_or_else(PoisonError::into_inner);
        work(&mut measured)
    }
}
