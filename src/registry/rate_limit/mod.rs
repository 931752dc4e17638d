//! Implements `--limit-rate`: one download rate for all connections together.
//!
//! # Design
//!
//! ```text
//! reqwest ──loopback──→ SOCKS proxy in this process ──throttled socket──→ registry, or the site's proxy
//! ```
//!
//! Two things throttle a socket (`throttled_stream`). First, one token bucket serves all connections: a connection reads
//! only with a `ReadPermit`, a few milliseconds' worth of bytes at a time, in the order of the requests. Second, the
//! receive window is small (`receive_window`): all windows together hold what the rate delivers in a round trip and in
//! `READ_AHEAD`. A sender sends again only after we read, so the arriving bytes follow the bytes read: in 100 ms at most
//! the share of 100 ms plus that of `READ_AHEAD`, plus `CREDIT` after a delay; after a pause, all windows.
//!
//! The limit counts Ethernet frames with their IP and TCP headers, for everything that registries and proxies send. It does
//! not count DNS and TCP retransmissions.
//!
//! # Why a proxy in this process
//!
//! reqwest does not expose its sockets, and only the owner of a socket can set its receive window. These are the smaller
//! ways that were tried, with their worst 100 ms as a share of the limit (100 Mbit/s link; in brackets the average):
//!
//! | way | 5 Mbit/s, 150 ms | 20 Mbit/s, 40 ms | the same, HTTP/2 |
//! |---|---|---|---|
//! | this module | 134 % (98.1) | 168 % (99.9) | 178 % (100.0) |
//! | a connector layer of reqwest: its connection type is sealed, so only reading can be delayed | 516 % (98.4) | 415 % (99.9) | 298 % (100.1) |
//! | hyper-util's connector with a fixed receive buffer for the whole rate | 303 % (98.5) | 362 % (99.9) | 276 % (100.0) |
//! | the same with a quarter of it for each of four connections | 99 % (67.7) | 162 % (100.0) | 158 % (100.0) |
//!
//! No fixed buffer holds both bounds, because the number of active connections changes. The measure is
//! `the_limit_is_held_on_links_of_all_kinds` in tests/it/limit_rate.rs.

mod limiter;
mod rate;
mod receive_window;
mod schedule;
mod socks;
mod socks_proxy;
mod throttled_stream;

pub use limiter::{LimitSettings, RateLimiter, TransferPermit};
pub use rate::{Rate, RateError};
pub use schedule::{LimitRate, LimitRateError};
pub(super) use socks_proxy::SocksProxy;
