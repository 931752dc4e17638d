//! Relays one throttled connection: requests pass at once, responses are read with a permit of the rate limiter.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::limiter::{MAX_QUANTUM, RateLimiter};
use super::receive_window::{self, ReceiveWindow};

/// A connection that receives nothing for this time plus a round trip gives its share of the windows to the others.
const IDLE_AFTER: Duration = Duration::from_millis(300);

/// The TCP keepalive that reqwest sets on its own sockets: idle time and interval in seconds, and number of probes.
const KEEPALIVE: [(libc::c_int, libc::c_int); 3] = [
    (libc::TCP_KEEPIDLE, 15),
    (libc::TCP_KEEPINTVL, 15),
    (libc::TCP_KEEPCNT, 3),
];

/// The buffer for requests, in bytes; most are shorter.
const REQUEST_BUFFER: usize = 16 << 10;

/// A connection to a registry or a proxy.
pub(super) struct ThrottledStream {
    stream: TcpStream,
    window: ReceiveWindow,
}

impl ThrottledStream {
    /// Connects. The kernel fixes the largest possible window before the connection opens, but the needed window depends on
    /// the round trip, which is known only afterwards. If `round_trip`, of an earlier connection, leads to the wrong choice,
    /// this connects a second time.
    pub(super) async fn connect(
        address: SocketAddr,
        limit: &RateLimiter,
        round_trip: Option<Duration>,
    ) -> io::Result<Self> {
        let need = |round_trip| receive_window::first(limit.largest_window(round_trip));
        let expected = round_trip.and_then(need);
        let far = Self::open(address, expected).await?;
        let needed = need(far.round_trip());
        match needed.is_none() == expected.is_none() {
            true => Ok(far),
            false => Self::open(address, needed).await,
        }
    }

    async fn open(address: SocketAddr, first: Option<u32>) -> io::Result<Self> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        }?;
        if let Some(bytes) = first {
            socket.set_recv_buffer_size(bytes)?;
        }
        socket.set_nodelay(true)?;
        socket.set_keepalive(true)?;
        for (name, seconds) in KEEPALIVE {
            receive_window::set(socket.as_fd(), libc::IPPROTO_TCP, name, seconds);
        }
        Ok(Self {
            stream: socket.connect(address).await?,
            window: ReceiveWindow::of(first),
        })
    }

    /// The shortest round trip so far.
    pub(super) fn round_trip(&self) -> Duration {
        receive_window::tcp_stats(self.stream.as_fd()).round_trip
    }

    /// Passes bytes on until one end closes.
    pub(super) async fn relay(self, near: TcpStream, limit: &RateLimiter) {
        // Nagle's algorithm would hold back small packets until the peer acknowledges earlier ones.
        let _ = near.set_nodelay(true);
        let (from_near, to_near) = near.into_split();
        let (from_far, to_far) = self.stream.into_split();
        let share = Share {
            limiter: limit,
            state: Mutex::new(ShareState {
                window: self.window,
                is_busy: false,
            }),
        };
        share.fit(&from_far, 0);
        let outcome = tokio::select! {
            outcome = up(from_near, to_far, &from_far, &share) => outcome,
            outcome = down(&from_far, to_near, &share) => outcome,
        };
        if let Err(error) = outcome {
            tracing::trace!("`--limit-rate`: a connection ended: {error}");
        }
    }
}

/// The share of one connection in all windows, while it receives data.
struct Share<'a> {
    limiter: &'a RateLimiter,
    state: Mutex<ShareState>,
}

struct ShareState {
    window: ReceiveWindow,
    is_busy: bool,
}

impl Share<'_> {
    fn state(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the connection active: it receives data, or sent a request.
    fn activate(&self) {
        if !std::mem::replace(&mut self.state().is_busy, true) {
            self.limiter.set_busy();
        }
    }

    fn deactivate(&self) {
        if std::mem::replace(&mut self.state().is_busy, false) {
            self.limiter.set_idle();
        }
    }

    /// Sets the window to the current share, after `read` bytes were read. Returns the bytes on the link for each byte.
    fn fit(&self, far: &OwnedReadHalf, read: usize) -> f64 {
        let far = far.as_ref().as_fd();
        let stats = receive_window::tcp_stats(far);
        let wanted = self.limiter.window(stats.round_trip);
        self.state().window.fit(far, wanted, read);
        stats.overhead
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.deactivate();
    }
}

/// Relays requests.
async fn up(
    mut near: OwnedReadHalf,
    mut far: OwnedWriteHalf,
    from_far: &OwnedReadHalf,
    share: &Share<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST_BUFFER];
    loop {
        let length = near.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        share.activate();
        share.fit(from_far, 0);
        far.write_all(&buffer[..length]).await?;
    }
}

/// Relays responses.
async fn down(far: &OwnedReadHalf, mut near: OwnedWriteHalf, share: &Share<'_>) -> io::Result<()> {
    let mut buffer = vec![0; MAX_QUANTUM];
    loop {
        let is_busy = share.state().is_busy;
        let round_trip = receive_window::tcp_stats(far.as_ref().as_fd()).round_trip;
        if is_busy {
            match timeout(IDLE_AFTER + round_trip, far.readable()).await {
                Ok(ready) => ready?,
                Err(_) => {
                    share.deactivate();
                    continue;
                }
            }
        } else {
            far.readable().await?;
            share.activate();
        }
        let permit = share.limiter.read_permit(round_trip).await;
        let length = match far.try_read(&mut buffer[..permit.quantum]) {
            Ok(0) => return near.shutdown().await,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // Pass a reset on as a reset: a plain close could look like the end of a body.
                near.as_ref().set_zero_linger()?;
                return Err(error);
            }
        };
        let overhead = share.fit(far, length);
        permit.charge(length as f64 * overhead);
        near.write_all(&buffer[..length]).await?;
    }
}
