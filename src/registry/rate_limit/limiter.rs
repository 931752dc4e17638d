//! Limits the download rate of all connections together: a token bucket, permits to read and to transfer, and estimates.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::report::LimitReport;

use super::rate::Rate;
use super::receive_window;
use super::schedule::LimitRate;

/// Unused time that later reads may make up for, in addition to half a round trip. It is longer than timers are late. While
/// one blob is requested, another one has only its own share of the windows. What is missed then arrives later, as fast as
/// all windows allow: at most a fifth above the rate with a round trip of 150 ms.
const CREDIT: Duration = Duration::from_millis(20);

/// How much may wait in the kernel, as time at the rate, so that a reader with a permit finds data.
const READ_AHEAD: Duration = Duration::from_millis(30);

/// Added to each window, in bytes: the kernel rounds a small window down to whole packets.
const PACKET: f64 = 1448.0;

/// How much one permit allows to read, as time at the rate, with its bounds in bytes: a packet, and a read buffer.
const QUANTUM: Duration = Duration::from_millis(2);
const MIN_QUANTUM: usize = 1448;
pub(super) const MAX_QUANTUM: usize = 64 << 10;

/// The span in which a burst is measured.
const BURST: Duration = Duration::from_millis(100);

/// How often the time of day is checked; waiting tasks check it as often.
const CLOCK_CHECK: Duration = Duration::from_secs(1);

/// The step in which an estimate walks through a day: windows begin and end on whole minutes.
const STEP: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Above this share of the limit, blob bytes are held up by the limit alone: the rest are headers and other requests.
const LIMITED_SHARE: f64 = 0.8;

/// The least number of concurrent blobs: while one is requested, the other uses the link.
const MIN_BLOBS: usize = 2;

/// How many bytes other connections may read between two reads of one: a TLS record for each of 64 concurrent requests.
const OTHERS_BYTES: f64 = 64.0 * 16384.0;

/// The configured limit, and the time zone of its schedule.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// The rate for each time of day.
    pub rate: LimitRate,
    /// The time zone of the schedule.
    pub zone: TimeZone,
    /// The name of the zone and where it was found, for the log.
    pub zone_name: String,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            rate: LimitRate::default(),
            zone: TimeZone::UTC,
            zone_name: "UTC".to_owned(),
        }
    }
}

impl LimitSettings {
    /// Describes the limit at `now`: `5 Mbit/s until 22:00 (UTC), then 50 Mbit/s`, or `5 Mbit/s`.
    pub fn describe(&self, now: Timestamp) -> String {
        let words = |rate: Option<Rate>| rate.map_or("no limit".to_owned(), |rate| rate.to_string());
        let time = time(self, now);
        let mut text = words(self.rate.at(time));
        if let Some(until) = self.rate.next_change(time) {
            let then = words(self.rate.at(until));
            let (until, zone) = (until.strftime("%H:%M"), &self.zone_name);
            text += &format!(" until {until} ({zone}), then {then}");
        }
        text
    }

    /// Describes the limit at `now` and the whole schedule, for the report; `None` without any limit.
    pub fn report(&self, now: Timestamp) -> Option<LimitReport> {
        (!self.rate.is_unlimited()).then(|| LimitReport {
            at_start: self.describe(now),
            schedule: self.rate.to_string(),
        })
    }

    /// Estimates how long a transfer of `bytes` takes from `now`, over a link of `link` bits per second, while the limit
    /// changes with the time of day. Leaves out headers.
    pub fn transfer_time(&self, bytes: u64, link: u64, now: Timestamp) -> Duration {
        let (mut left, mut elapsed) = (bytes as f64 * 8.0, Duration::ZERO);
        let rate_at = |elapsed: Duration| {
            let then = now.checked_add(elapsed).unwrap_or(now);
            let limit = self.rate.at(time(self, then)).map(|rate| rate.bytes() * 8.0);
            limit.unwrap_or(f64::INFINITY).min(link.max(1) as f64)
        };
        // A schedule without windows needs no walk. From the second day on, all days are the same.
        while self.rate.has_windows() && elapsed < DAY {
            let bits = rate_at(elapsed) * STEP.as_secs_f64();
            if left <= bits {
                break;
            }
            left -= bits;
            elapsed += STEP;
        }
        let average = match elapsed >= DAY {
            true => (bytes as f64 * 8.0 - left) / elapsed.as_secs_f64(),
            false => rate_at(elapsed),
        };
        let rest = Duration::try_from_secs_f64(left / average).unwrap_or(Duration::MAX);
        elapsed.saturating_add(rest)
    }

    /// Estimates how long the remaining `bytes` take from `now`, at a current rate of `rate` bytes per second, while the limit
    /// changes with the time of day. If the limit holds the current rate down, the capacity of the link is unknown: the
    /// estimate then assumes that the link can carry the highest limit.
    pub fn remaining_time(&self, bytes: u64, rate: u64, now: Timestamp) -> Duration {
        let (mut remaining, mut link) = (bytes as f64, rate as f64);
        if let Some(limit) = self.rate.at(time(self, now)).map(Rate::bytes)
            && link >= LIMITED_SHARE * limit
        {
            // The limit counts headers and `rate` does not; any other limit counts them too.
            remaining *= (limit / link).max(1.0);
            link = self.rate.highest().map_or(link, Rate::bytes);
        }
        self.transfer_time(remaining as u64, (link * 8.0) as u64, now)
    }
}

/// One limit for all connections.
pub struct RateLimiter {
    settings: LimitSettings,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
    /// Held while a connection waits to read; it is fair.
    reading: tokio::sync::Mutex<()>,
    /// Connections that receive data.
    busy: AtomicUsize,
    /// Blobs in transfer.
    transfers: watch::Sender<usize>,
    /// Held while a task waits for a [`TransferPermit`]; it is fair.
    queue: tokio::sync::Mutex<()>,
}

/// Without a limit.
impl Default for RateLimiter {
    fn default() -> Self {
        Self::new(LimitSettings::default())
    }
}

/// The token bucket.
struct State {
    rate: Option<Rate>,
    /// When the time of day was checked last.
    clock_checked: Instant,
    /// The time up to which `allowed` is computed, and how much unused time stays available.
    updated: Instant,
    credit: Duration,
    /// Bytes on the link that were read since the start, and bytes that the rate allowed. Exact up to 9 PB.
    charged: f64,
    allowed: f64,
}

impl RateLimiter {
    /// Starts a limit by the system clock. Logs the current rate and each change.
    pub(in crate::registry) fn new(settings: LimitSettings) -> Self {
        Self::with_clock(settings, Box::new(Timestamp::now))
    }

    fn with_clock(settings: LimitSettings, clock: Box<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        let now = Instant::now();
        let limit = Self {
            state: Mutex::new(State {
                rate: settings.rate.at(time(&settings, clock())),
                clock_checked: now,
                updated: now,
                credit: CREDIT,
                charged: 0.0,
                allowed: 0.0,
            }),
            settings,
            clock,
            reading: tokio::sync::Mutex::default(),
            busy: AtomicUsize::new(0),
            transfers: watch::Sender::default(),
            queue: tokio::sync::Mutex::default(),
        };
        if limit.is_limited() {
            tracing::info!("{}", limit.description());
        }
        limit
    }

    /// Whether there is a limit at any time of day.
    pub fn is_limited(&self) -> bool {
        !self.settings.rate.is_unlimited()
    }

    /// How much longer a connection may wait for data than without a limit, because others read first.
    pub(in crate::registry) fn slack(&self) -> Duration {
        let lowest = self.settings.rate.lowest();
        lowest.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(OTHERS_BYTES / rate.bytes())
        })
    }

    /// Waits until a connection with this round trip may read. Cancel-safe: dropping the future loses nothing.
    pub(super) async fn read_permit(&self, round_trip: Duration) -> ReadPermit<'_> {
        let guard = self.reading.lock().await;
        self.state().credit = CREDIT + (round_trip / 2).min(BURST / 2);
        while let Some(rest) = self.debt() {
            // The limit may end or rise before that.
            tokio::time::sleep(rest.min(CLOCK_CHECK)).await;
        }
        let quantum = self.state().rate.map_or(MAX_QUANTUM, |rate| {
            let bytes = (rate.bytes() * QUANTUM.as_secs_f64()) as usize;
            bytes.clamp(MIN_QUANTUM, MAX_QUANTUM)
        });
        ReadPermit {
            limiter: self,
            quantum,
            _guard: guard,
        }
    }

    /// How long until the rate allows the bytes that were read; `None` if it does already.
    fn debt(&self) -> Option<Duration> {
        let state = self.update();
        let rate = state.rate?;
        let bytes = state.charged - state.allowed;
        // Less than a byte is a rounding error and may be a zero duration.
        (bytes >= 1.0).then(|| Duration::from_secs_f64(bytes / rate.bytes()))
    }

    /// The receive window of one active connection, in bytes; `None` without a limit.
    pub(super) fn window(&self, round_trip: Duration) -> Option<f64> {
        let rate = self.state().rate?;
        let busy = self.busy.load(Ordering::Relaxed).max(1);
        Some(rate.bytes() * (round_trip + READ_AHEAD).as_secs_f64() / busy as f64 + PACKET)
    }

    /// The largest window that a connection ever needs, in bytes; `None` if some time of day has no limit.
    pub(super) fn largest_window(&self, round_trip: Duration) -> Option<f64> {
        let rate = self.settings.rate.upper_bound()?;
        Some(rate.bytes() * (round_trip + READ_AHEAD).as_secs_f64() + PACKET)
    }

    /// Counts a connection as active.
    pub(super) fn set_busy(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection as idle again.
    pub(super) fn set_idle(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until another blob may be transferred, in the order of the calls.
    pub async fn transfer_permit(&self) -> TransferPermit<'_> {
        let _guard = self.queue.lock().await;
        let mut transfers = self.transfers.subscribe();
        loop {
            let most = self.max_transfers();
            let free = transfers.wait_for(|running| *running < most);
            // The rate may change before a transfer ends. `wait_for` returns a lock guard, which must not be kept.
            let is_free = tokio::time::timeout(CLOCK_CHECK, free)
                .await
                .is_ok_and(|free| free.is_ok());
            if is_free {
                self.transfers.send_modify(|running| *running += 1);
                return TransferPermit(self);
            }
        }
    }

    fn max_transfers(&self) -> usize {
        if !self.is_limited() {
            return usize::MAX;
        }
        self.update().rate.map_or(usize::MAX, |rate| {
            let windows = rate.bytes() * BURST.as_secs_f64() / f64::from(receive_window::FIRST);
            (windows as usize).max(MIN_BLOBS)
        })
    }

    /// Adds the bytes that the rate allowed since the last update, and checks whether the rate has changed.
    fn update(&self) -> MutexGuard<'_, State> {
        let now = Instant::now();
        let mut state = self.state();
        let passed = now.saturating_duration_since(state.updated);
        state.updated = now;
        state.allowed = match state.rate {
            Some(rate) => {
                let most = state.charged + rate.bytes() * state.credit.as_secs_f64();
                (state.allowed + rate.bytes() * passed.as_secs_f64()).min(most)
            }
            None => state.charged,
        };
        if self.settings.rate.has_windows()
            && now.saturating_duration_since(state.clock_checked) >= CLOCK_CHECK
        {
            state.clock_checked = now;
            let rate = self.settings.rate.at(self.time());
            if rate != state.rate {
                state.rate = rate;
                tracing::info!("{}", self.description());
            }
        }
        state
    }

    fn description(&self) -> String {
        format!("--limit-rate: {}", self.settings.describe((self.clock)()))
    }

    fn time(&self) -> Time {
        time(&self.settings, (self.clock)())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn time(settings: &LimitSettings, now: Timestamp) -> Time {
    now.to_zoned(settings.zone.clone()).time()
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Permission to transfer one blob, until it is dropped.
pub struct TransferPermit<'a>(&'a RateLimiter);

impl Drop for TransferPermit<'_> {
    fn drop(&mut self) {
        self.0.transfers.send_modify(|running| *running -= 1);
    }
}

/// Permission for one read from a socket.
pub(super) struct ReadPermit<'a> {
    limiter: &'a RateLimiter,
    /// The most bytes to read.
    pub(super) quantum: usize,
    _guard: tokio::sync::MutexGuard<'a, ()>,
}

impl ReadPermit<'_> {
    /// Counts the bytes read, as bytes on the link.
    pub(super) fn charge(self, bytes: f64) {
        self.limiter.update().charged += bytes;
    }
}

#[cfg(test)]
mod tests;
