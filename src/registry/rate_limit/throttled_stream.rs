//! One connection through the forwarder: bytes to the registry as they come, bytes from it when it is their turn.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::receive_window::{self, Window};
use super::{Limit, MOST_QUANTUM};

/// A connection that brought nothing for so long beside a round trip leaves its part of the windows to the others.
const QUIET: Duration = Duration::from_millis(300);

/// What reqwest sets for its own sockets: when a silent peer is asked whether it lives, how often and how many times, in
/// seconds.
const KEEPALIVE: [(libc::c_int, libc::c_int); 3] = [
    (libc::TCP_KEEPIDLE, 15),
    (libc::TCP_KEEPINTVL, 15),
    (libc::TCP_KEEPCNT, 3),
];

/// A request is shorter, mostly.
const REQUEST: usize = 16 << 10;

/// A connection to a registry or a proxy.
pub(super) struct Far {
    stream: TcpStream,
    window: Window,
}

impl Far {
    /// Connects. How large a window may ever be is settled before, and what is needed is known by the round trip, which is
    /// known afterwards: where `round_trip`, of an earlier connection, says too much or too little, it is done again.
    pub(super) async fn connect(
        address: SocketAddr,
        limit: &Limit,
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
            window: Window::of(first),
        })
    }

    /// The shortest round trip so far.
    pub(super) fn round_trip(&self) -> Duration {
        receive_window::traffic(self.stream.as_fd()).round_trip
    }

    /// Passes bytes on until one end is done.
    pub(super) async fn carry(self, near: TcpStream, limit: &Limit) {
        // What it may not send because we are not answered yet would wait for that.
        let _ = near.set_nodelay(true);
        let (from_near, to_near) = near.into_split();
        let (from_far, to_far) = self.stream.into_split();
        let share = Share {
            limit,
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
            tracing::trace!("a connection through the limit ended: {error}");
        }
    }
}

/// A connection's part of all windows, as long as it brings something.
struct Share<'a> {
    limit: &'a Limit,
    state: Mutex<ShareState>,
}

struct ShareState {
    window: Window,
    is_busy: bool,
}

impl Share<'_> {
    fn state(&self) -> MutexGuard<'_, ShareState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something comes, or will as it was asked for.
    fn wake(&self) {
        if !std::mem::replace(&mut self.state().is_busy, true) {
            self.limit.busy();
        }
    }

    fn rest(&self) {
        if std::mem::replace(&mut self.state().is_busy, false) {
            self.limit.idle();
        }
    }

    /// Sets the window for what is to be shared now, after so many bytes were read.
    fn fit(&self, far: &OwnedReadHalf, read: usize) -> f64 {
        let far = far.as_ref().as_fd();
        let traffic = receive_window::traffic(far);
        let wanted = self.limit.window(traffic.round_trip);
        self.state().window.fit(far, wanted, read);
        traffic.framed
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.rest();
    }
}

/// Requests.
async fn up(
    mut near: OwnedReadHalf,
    mut far: OwnedWriteHalf,
    from_far: &OwnedReadHalf,
    share: &Share<'_>,
) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST];
    loop {
        let length = near.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        share.wake();
        share.fit(from_far, 0);
        far.write_all(&buffer[..length]).await?;
    }
}

/// Answers.
async fn down(far: &OwnedReadHalf, mut near: OwnedWriteHalf, share: &Share<'_>) -> io::Result<()> {
    let mut buffer = vec![0; MOST_QUANTUM];
    loop {
        let is_busy = share.state().is_busy;
        let round_trip = receive_window::traffic(far.as_ref().as_fd()).round_trip;
        if is_busy {
            match timeout(QUIET + round_trip, far.readable()).await {
                Ok(ready) => ready?,
                Err(_) => {
                    share.rest();
                    continue;
                }
            }
        } else {
            far.readable().await?;
            share.wake();
        }
        let turn = share.limit.turn_to_read(round_trip).await;
        let length = match far.try_read(&mut buffer[..turn.quantum]) {
            Ok(0) => return near.shutdown().await,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // A reset is passed on as one: an end might be taken for a body's.
                near.as_ref().set_zero_linger()?;
                return Err(error);
            }
        };
        let framed = share.fit(far, length);
        turn.charge(length as f64 * framed);
        near.write_all(&buffer[..length]).await?;
    }
}
