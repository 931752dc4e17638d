//! `--limit-rate`: how much all connections together may bring.
//!
//! # Design
//!
//! ```text
//! reqwest ──loopback──→ forwarder ──the socket that counts──→ registry, or the site's proxy
//! ```
//!
//! reqwest hands its sockets to nobody, and only who has them decides what may come. So under a limit, and only then, its
//! connections go through a [`Forwarder`] in this process, which opens the sockets and passes bytes on as they are: of TLS,
//! HTTP and its versions it knows nothing, and whoever is above it sees a link that has this rate.
//!
//! Two things are done to a socket (`paced`). It is read when its turn comes ([`Limit::turn_to_read`]): one bucket for all
//! connections, which have their turns in the order in which they ask, a few milliseconds' worth each. And its window is
//! small (`window`): all windows together have what the rate brings in a round trip and in [`AHEAD`]. As a sender sends on
//! when we have read, what arrives follows what is read: in a tenth of a second at most a tenth's share and [`AHEAD`]'s,
//! and [`CREDIT`]'s where something was late; after a pause, all windows.
//!
//! What is counted are bytes of frames as Ethernet carries them, with the headers of IP and TCP, for all that registries
//! and proxies send. Not counted: name servers, and what TCP sends twice.

mod rate;
mod receive_window;
mod schedule;
mod socks;
mod socks_proxy;
mod throttled_stream;

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

pub use rate::{Rate, RateError};
pub use schedule::{LimitRate, LimitRateError};
pub(super) use socks_proxy::Forwarder;

/// Unused time that may be made up for, beside the half of a round trip: more than timers are late. While one blob is
/// asked for, another one has but its own part of the windows; what was missed then comes later, as fast as all windows
/// allow, which is at most a fifth more than the rate when a round trip takes 150 ms.
const CREDIT: Duration = Duration::from_millis(20);

/// How much may wait in the kernel to be read, as time at the rate: so that something is there when its turn comes.
const AHEAD: Duration = Duration::from_millis(30);

/// What each window has more, in bytes: the kernel rounds a small one down to whole packets.
const PACKET: f64 = 1448.0;

/// How much is read in one turn, as time at the rate, and the bounds of that: a packet, and what a buffer has.
const QUANTUM: Duration = Duration::from_millis(2);
const LEAST_QUANTUM: usize = 1448;
const MOST_QUANTUM: usize = 64 << 10;

/// A burst is within what the rate brings in this time.
const BURST: Duration = Duration::from_millis(100);

/// How often it is looked what time of day it is. Who waits looks again, too.
const LOOK: Duration = Duration::from_secs(1);

/// How finely a day is walked through to see how long something takes: its windows begin and end with minutes.
const STRIDE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// So much of the limit comes as bytes of blobs where nothing but the limit holds them up: the rest are headers, and what else
/// is asked for.
const NEARLY: f64 = 0.8;

/// The smallest number of blobs at a time: while one is being asked for, the other uses the link.
const FEWEST: usize = 2;

/// What other connections may bring between two pieces of one, in bytes: a record of TLS each for as many as there are
/// requests at a time.
const BETWEEN: f64 = 64.0 * 16384.0;

/// What the limit is, and whose time of day counts.
#[derive(Clone, Debug)]
pub struct LimitSettings {
    /// Which rate when.
    pub rate: LimitRate,
    /// Where it is that time.
    pub zone: TimeZone,
    /// What the zone is called, and where that is known from; for the log.
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
    /// What holds at that moment: `5 Mbit/s until 22:00 (UTC), then 50 Mbit/s`, or `5 Mbit/s`.
    pub fn told(&self, now: Timestamp) -> String {
        let words = |rate: Option<Rate>| rate.map_or("no limit".to_owned(), |rate| rate.to_string());
        let time = time(self, now);
        let mut text = words(self.rate.at(time));
        if let Some(until) = self.rate.until(time) {
            let then = words(self.rate.at(until));
            let (until, zone) = (until.strftime("%H:%M"), &self.zone_name);
            text += &format!(" until {until} ({zone}), then {then}");
        }
        text
    }

    /// The same for the report, and all of the day; nothing if there never is a limit.
    pub fn report(&self, now: Timestamp) -> Option<LimitReport> {
        (!self.rate.is_unlimited()).then(|| LimitReport {
            at_start: self.told(now),
            schedule: self.rate.to_string(),
        })
    }

    /// How long so many bytes take from `now` on, over a link that brings so many bits a second, as the limit goes through
    /// the day. Headers are left out.
    pub fn lasts(&self, bytes: u64, link: u64, now: Timestamp) -> Duration {
        let (mut left, mut lasts) = (bytes as f64 * 8.0, Duration::ZERO);
        let rate_at = |lasts: Duration| {
            let then = now.checked_add(lasts).unwrap_or(now);
            let limit = self.rate.at(time(self, then)).map(|rate| rate.bytes() * 8.0);
            limit.unwrap_or(f64::INFINITY).min(link.max(1) as f64)
        };
        // Without borders there is nothing to walk through, and from the second day on all days are the same.
        while self.rate.has_windows() && lasts < DAY {
            let brings = rate_at(lasts) * STRIDE.as_secs_f64();
            if left <= brings {
                break;
            }
            left -= brings;
            lasts += STRIDE;
        }
        let average = match lasts >= DAY {
            true => (bytes as f64 * 8.0 - left) / lasts.as_secs_f64(),
            false => rate_at(lasts),
        };
        let rest = Duration::try_from_secs_f64(left / average).unwrap_or(Duration::MAX);
        lasts.saturating_add(rest)
    }

    /// How long so many bytes take from `now` on, if now so many come in a second, as the limit goes through the day. Where
    /// these are what the limit allows, all that is known of the link is that it has room for them: it is taken to have room
    /// for the highest limit.
    pub fn rest(&self, bytes: u64, rate: u64, now: Timestamp) -> Duration {
        let (mut to_come, mut link) = (bytes as f64, rate as f64);
        if let Some(limit) = self.rate.at(time(self, now)).map(Rate::bytes)
            && link >= NEARLY * limit
        {
            // What the limit counts and the rate does not are headers, and will be there at any other limit.
            to_come *= (limit / link).max(1.0);
            link = self.rate.highest().map_or(link, Rate::bytes);
        }
        self.lasts(to_come as u64, (link * 8.0) as u64, now)
    }
}

/// One limit for all connections.
pub struct Limit {
    settings: LimitSettings,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
    /// Who reads has it; it is fair.
    reading: tokio::sync::Mutex<()>,
    /// Connections that bring something.
    busy: AtomicUsize,
    /// Blobs that travel.
    turns: watch::Sender<usize>,
    /// Who waits for a turn waits for this first, for it is fair.
    queue: tokio::sync::Mutex<()>,
}

/// No limit.
impl Default for Limit {
    fn default() -> Self {
        Self::new(LimitSettings::default())
    }
}

/// All that changes.
struct State {
    rate: Option<Rate>,
    /// When the time of day was looked at last.
    looked: Instant,
    /// Until when `allowed` is reckoned, and how much time of that may be unused.
    reckoned: Instant,
    credit: Duration,
    /// Bytes on the link that were read since the beginning, and those that might have been. Exact up to 9 PB.
    charged: f64,
    allowed: f64,
}

impl Limit {
    /// A limit that is in force from now on, by the system's clock. Logs what it is now, and each change.
    pub(super) fn new(settings: LimitSettings) -> Self {
        Self::by(settings, Box::new(Timestamp::now))
    }

    fn by(settings: LimitSettings, clock: Box<dyn Fn() -> Timestamp + Send + Sync>) -> Self {
        let now = Instant::now();
        let limit = Self {
            state: Mutex::new(State {
                rate: settings.rate.at(time(&settings, clock())),
                looked: now,
                reckoned: now,
                credit: CREDIT,
                charged: 0.0,
                allowed: 0.0,
            }),
            settings,
            clock,
            reading: tokio::sync::Mutex::default(),
            busy: AtomicUsize::new(0),
            turns: watch::Sender::default(),
            queue: tokio::sync::Mutex::default(),
        };
        if limit.is_any() {
            tracing::info!("{}", limit.told());
        }
        limit
    }

    /// Whether there ever is a limit.
    pub fn is_any(&self) -> bool {
        !self.settings.rate.is_unlimited()
    }

    /// How much longer than without a limit it may take until something comes, for the others come first.
    pub(super) fn slack(&self) -> Duration {
        let least = self.settings.rate.least();
        least.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(BETWEEN / rate.bytes())
        })
    }

    /// Waits until something may be read from a connection with such a round trip. May be dropped while it waits: nothing
    /// is lost by that.
    async fn turn_to_read(&self, round_trip: Duration) -> ReadTurn<'_> {
        let turn = self.reading.lock().await;
        self.state().credit = CREDIT + (round_trip / 2).min(BURST / 2);
        while let Some(rest) = self.unpaid() {
            // A limit may end or rise before that.
            tokio::time::sleep(rest.min(LOOK)).await;
        }
        let quantum = self.state().rate.map_or(MOST_QUANTUM, |rate| {
            let bytes = (rate.bytes() * QUANTUM.as_secs_f64()) as usize;
            bytes.clamp(LEAST_QUANTUM, MOST_QUANTUM)
        });
        ReadTurn {
            limit: self,
            quantum,
            _turn: turn,
        }
    }

    /// How long it takes until all that was read might have come.
    fn unpaid(&self) -> Option<Duration> {
        let state = self.reckon();
        let rate = state.rate?;
        let bytes = state.charged - state.allowed;
        // Less than a byte is what floating point numbers leave over, and might be no time at all.
        (bytes >= 1.0).then(|| Duration::from_secs_f64(bytes / rate.bytes()))
    }

    /// What the window of one of the connections that bring something should be, in bytes; nothing without a limit.
    fn window(&self, round_trip: Duration) -> Option<f64> {
        let rate = self.state().rate?;
        let busy = self.busy.load(Ordering::Relaxed).max(1);
        Some(rate.bytes() * (round_trip + AHEAD).as_secs_f64() / busy as f64 + PACKET)
    }

    /// The largest window that a connection will ever need; nothing if there is not always a limit.
    fn largest_window(&self, round_trip: Duration) -> Option<f64> {
        let rate = self.settings.rate.most()?;
        Some(rate.bytes() * (round_trip + AHEAD).as_secs_f64() + PACKET)
    }

    /// Counts a connection as one that brings something.
    fn busy(&self) {
        self.busy.fetch_add(1, Ordering::Relaxed);
    }

    /// No longer.
    fn idle(&self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until another blob may travel, in the order in which it is asked for.
    pub async fn turn(&self) -> Turn<'_> {
        let _first = self.queue.lock().await;
        let mut turns = self.turns.subscribe();
        loop {
            let most = self.most_turns();
            let free = turns.wait_for(|taken| *taken < most);
            // The rate may change before one of those that travel is there. What is waited for is a lock, too: not to be held.
            let is_free = tokio::time::timeout(LOOK, free)
                .await
                .is_ok_and(|free| free.is_ok());
            if is_free {
                self.turns.send_modify(|taken| *taken += 1);
                return Turn(self);
            }
        }
    }

    fn most_turns(&self) -> usize {
        if !self.is_any() {
            return usize::MAX;
        }
        self.reckon().rate.map_or(usize::MAX, |rate| {
            let windows = rate.bytes() * BURST.as_secs_f64() / f64::from(receive_window::FIRST);
            (windows as usize).max(FEWEST)
        })
    }

    /// Adds what might have come until now, at the rate until now, and looks whether that is still the rate.
    fn reckon(&self) -> MutexGuard<'_, State> {
        let now = Instant::now();
        let mut state = self.state();
        let passed = now.saturating_duration_since(state.reckoned);
        state.reckoned = now;
        state.allowed = match state.rate {
            Some(rate) => {
                let most = state.charged + rate.bytes() * state.credit.as_secs_f64();
                (state.allowed + rate.bytes() * passed.as_secs_f64()).min(most)
            }
            None => state.charged,
        };
        if self.settings.rate.has_windows() && now.saturating_duration_since(state.looked) >= LOOK {
            state.looked = now;
            let rate = self.settings.rate.at(self.time());
            if rate != state.rate {
                state.rate = rate;
                tracing::info!("{}", self.told());
            }
        }
        state
    }

    fn told(&self) -> String {
        format!("--limit-rate: {}", self.settings.told((self.clock)()))
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

impl fmt::Debug for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// A blob's right to travel, as long as it lives.
pub struct Turn<'a>(&'a Limit);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turns.send_modify(|taken| *taken -= 1);
    }
}

/// The right to read some bytes from a socket, once.
struct ReadTurn<'a> {
    limit: &'a Limit,
    /// So many at most.
    quantum: usize,
    _turn: tokio::sync::MutexGuard<'a, ()>,
}

impl ReadTurn<'_> {
    /// Counts what was read, in bytes on the link.
    fn charge(self, bytes: f64) {
        self.limit.reckon().charged += bytes;
    }
}

#[cfg(test)]
mod tests;
