//! `--limit-rate`: how much all connections together may bring.
//!
//! # Design
//!
//! reqwest hands its sockets to nobody, so the limit is held at two places that are in reach.
//!
//! What came is counted ([`Limit::charge`]): pieces of bodies, with what TCP, IP and Ethernet add to them, and so much for
//! the head of each answer; of a blob the first window before its request is sent ([`Advance`]). Nobody sends a request and
//! no blob is read on as long as anything that came before is not paid for by time ([`Limit::paid`]). Bytes are charged
//! after they came, so a connection that stalls holds nothing, and whoever is dropped while it waits owes nothing; who waits
//! gets its turn in the order in which bytes came, which is fair to all connections. Bodies that are kept in memory, a
//! manifest, a token, are charged and never waited for: they are small, and others wait for them.
//!
//! What may come before it is read is bounded (`windows`): the kernel takes up to 6 MB for a connection, however slowly we
//! read, and the link has carried them by then. So the receive windows of all connections together are kept near the bytes
//! of [`AHEAD`] and of a round trip; what hyper holds is as much again. A new connection has the kernel's first window before
//! anything can be said about it: so no more blobs travel at a time than a tenth of a second has such windows for
//! ([`Limit::turn`]).
//!
//! HTTP/2 has windows of its own, 2 MB for each blob, which cannot be changed with the time of day: under a limit HTTP/1.1
//! is spoken.

mod rate;
mod schedule;
mod windows;

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::Time;
use jiff::tz::TimeZone;
use tokio::sync::watch;
use tokio::time::Instant;

pub use rate::{Rate, RateError};
pub use schedule::{LimitRate, LimitRateError};

/// What a body needs on the link, for each of its bytes: a frame of Ethernet has 1514 bytes, of which TCP carries 1448 (its
/// timestamps are on) and TLS and HTTP take 3 of a thousand. Where frames have no more than IP's 1500, it is too much by 1 %.
const FRAMED: f64 = 1514.0 / 1448.0 * 1.003;

/// What an answer needs beside its body: its head, and our request's acknowledgement.
const HEAD: usize = 1000;

/// Unused time that may be made up for: more than timers are late.
const CREDIT: Duration = Duration::from_millis(20);

/// How much may be under way or wait in the kernel, as time at the rate, beside a round trip.
const AHEAD: Duration = Duration::from_millis(30);

/// A burst is within what the rate brings in this time.
const BURST: Duration = Duration::from_millis(100);

/// How often it is looked what time of day it is. Who waits looks again, too.
const LOOK: Duration = Duration::from_secs(1);

/// How often the windows are set while bytes come: the number of blobs changes, and so does a connection's round trip.
const SWEEP: Duration = Duration::from_millis(100);

/// What a blob's answer may bring before it is read on, in bytes: a first window, and half as much that hyper has read.
const FIRST_LUMP: usize = windows::FIRST as usize * 3 / 2;

/// The smallest number of blobs at a time: while one is being asked for, the other uses the link.
const FEWEST: usize = 2;

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

/// One limit for all connections.
pub struct Limit {
    settings: LimitSettings,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
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
    /// When the time of day was looked at last, and the windows set.
    looked: Instant,
    swept: Instant,
    /// Until when `allowed` is reckoned.
    reckoned: Instant,
    /// Bytes on the link that came since the beginning, and those that might have come. Exact up to 9 PB.
    charged: f64,
    allowed: f64,
    /// Whom we had answers from.
    peers: HashSet<SocketAddr>,
}

/// Bytes that came until some moment; see [`Advance::paid`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bill(f64);

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
                swept: now,
                reckoned: now,
                charged: 0.0,
                allowed: 0.0,
                peers: HashSet::new(),
            }),
            settings,
            clock,
            turns: watch::Sender::default(),
            queue: tokio::sync::Mutex::default(),
        };
        if limit.is_any() {
            tracing::info!("{}", limit.told(limit.state().rate));
        }
        limit
    }

    /// Whether there ever is a limit.
    pub(super) fn is_any(&self) -> bool {
        !self.settings.rate.is_unlimited()
    }

    /// An answer came from there: the window of its connection is to be set.
    pub(super) fn answered(&self, peer: Option<SocketAddr>) {
        if !self.is_any() {
            return;
        }
        let mut state = self.state();
        state.peers.extend(peer);
        self.sweep(&mut state);
    }

    /// Counts bytes of a body that came.
    fn charge(&self, bytes: usize) {
        if !self.is_any() {
            return;
        }
        let mut state = self.reckon();
        state.charged += bytes as f64 * FRAMED;
        if state.swept.elapsed() >= SWEEP {
            self.sweep(&mut state);
        }
    }

    /// All that came until now.
    fn bill(&self) -> Bill {
        Bill(self.state().charged)
    }

    /// Waits until as much as that might have come. May be dropped while it waits: nothing is lost by that.
    async fn paid(&self, Bill(bill): Bill) {
        while let Some(rest) = self.unpaid(bill) {
            // A limit may end or rise before that.
            tokio::time::sleep(rest.min(LOOK)).await;
        }
    }

    fn unpaid(&self, bill: f64) -> Option<Duration> {
        let state = self.reckon();
        let rate = state.rate?;
        let bytes = bill - state.allowed;
        // Less than a byte is what floating point numbers leave over, and might be no time at all.
        (bytes >= 1.0).then(|| Duration::from_secs_f64(bytes / rate.bytes()))
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
            let windows = rate.bytes() * BURST.as_secs_f64() / f64::from(windows::FIRST);
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
                let most = state.charged + rate.bytes() * CREDIT.as_secs_f64();
                (state.allowed + rate.bytes() * passed.as_secs_f64()).min(most)
            }
            None => state.charged,
        };
        if self.settings.rate.has_windows() && now.saturating_duration_since(state.looked) >= LOOK {
            state.looked = now;
            let rate = self.settings.rate.at(self.time());
            if rate != state.rate {
                state.rate = rate;
                tracing::info!("{}", self.told(rate));
                self.sweep(&mut state);
            }
        }
        state
    }

    /// Sets the windows of all connections for the number of blobs that travel now.
    fn sweep(&self, state: &mut State) {
        state.swept = Instant::now();
        // One of several is always being asked for, and the others are to use the link alone.
        let share = |rate: Rate| rate.bytes() / self.turns.borrow().saturating_sub(1).max(1) as f64;
        windows::set(&state.peers, state.rate.map(share));
    }

    /// `5 Mbit/s until 22:00 (UTC, …), then 50 Mbit/s`
    fn told(&self, rate: Option<Rate>) -> String {
        let words = |rate: Option<Rate>| rate.map_or("no limit".to_owned(), |rate| rate.to_string());
        let mut text = format!("--limit-rate: {}", words(rate));
        if let Some(until) = self.settings.rate.until(self.time()) {
            let then = words(self.settings.rate.at(until));
            let (until, zone) = (until.strftime("%H:%M"), &self.settings.zone_name);
            text += &format!(" until {until} ({zone}), then {then}");
        }
        text
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

/// What is charged for a request before it is sent: the next one waits until that is paid, for all of them might bring a
/// whole window at once. Beside its [`reqwest::Response`]: each byte of the body is charged by so much less, not the first
/// ones, for the window is full again when they are read. What did not come is given back when both are gone.
#[derive(Clone)]
pub(super) struct Advance(Arc<Rest>);

struct Rest {
    limit: Arc<Limit>,
    /// Who came before.
    bill: Bill,
    /// Bytes of the body, and those that did not come yet.
    expected: u64,
    left: AtomicU64,
    /// What was charged for it before, and what of that is not used.
    advance: usize,
    kept: AtomicUsize,
}

impl Advance {
    /// For a request that will bring so many bytes, or more. Call [`Advance::turn`] before it is sent.
    pub(super) fn new(limit: &Arc<Limit>, expected: u64) -> Self {
        let most = usize::try_from(expected).unwrap_or(usize::MAX);
        let bytes = most.min(FIRST_LUMP);
        let bill = limit.bill();
        limit.charge(HEAD + bytes);
        Self(Arc::new(Rest {
            limit: Arc::clone(limit),
            bill,
            expected,
            left: expected.into(),
            advance: bytes,
            kept: bytes.into(),
        }))
    }

    /// Waits until all is paid for that came or was charged before this.
    pub(super) async fn turn(&self) {
        self.0.limit.paid(self.0.bill).await;
    }

    /// Counts bytes of the body.
    pub(super) fn came(&self, bytes: usize) {
        // One task reads a body.
        let left = self.0.left.load(Ordering::Relaxed).saturating_sub(bytes as u64);
        self.0.left.store(left, Ordering::Relaxed);
        let kept = self.0.advance as f64 * (left as f64 / self.0.expected.max(1) as f64);
        let kept = kept as usize;
        let advance = self.0.kept.swap(kept, Ordering::Relaxed);
        self.0.limit.charge(bytes.saturating_sub(advance - kept));
    }

    /// All that came or was charged until now.
    pub(super) fn bill(&self) -> Bill {
        self.0.limit.bill()
    }

    /// Waits until as much as that might have come.
    pub(super) async fn paid(&self, bill: Bill) {
        self.0.limit.paid(bill).await;
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        // Not taken from what was charged: bills that have it are to be paid some time.
        self.limit.state().allowed += *self.kept.get_mut() as f64 * FRAMED;
    }
}

#[cfg(test)]
mod tests;
