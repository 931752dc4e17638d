//! Sets the TCP receive window of a socket: how much the peer may send before we read.
//!
//! It needs two socket options (socket(7), tcp(7)). `SO_RCVBUF` stops the kernel from growing the buffer and bounds the
//! unread bytes in it; the kernel doubles the number, and uses half for itself. `TCP_WINDOW_CLAMP` bounds the bytes in
//! flight where the kernel needs less than that half.
//!
//! A window shrinks only by the bytes read: the peer may already send the rest, and the kernel would drop what does not fit,
//! so that it crosses the link twice. A window grows no faster, because a connection may soon have to share with others and
//! an announced window cannot be taken back. So it doubles per round trip, as in TCP's slow start (RFC 5681).

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use libc::{c_int, socklen_t};

/// The initial window of Linux: half of the default in `net.ipv4.tcp_rmem`.
pub(super) const FIRST: u32 = 64 << 10;

/// The smallest window: three packets, so that one is always in flight. And the smallest initial window, at a low rate: two
/// packets, because TCP acknowledges every second one at once (RFC 1122, 4.2.3.2).
const MIN: f64 = 4500.0;
const MIN_FIRST: f64 = 3000.0;

/// The most that `SO_RCVBUF` can set without `CAP_NET_ADMIN`: the usual `net.core.rmem_max`. For a larger window only the
/// clamp is set.
const MAX_FIXED: f64 = 208.0 * 1024.0;

/// The largest window: the maximum in `net.ipv4.tcp_rmem` is 6 MB.
const MAX: f64 = 8.0 * 1024.0 * 1024.0;

/// How many connections may start at the same time, at a low rate.
const CONCURRENT_STARTS: f64 = 4.0;

/// A change below this share is not worth a system call.
const STEP: f64 = 1.0 / 16.0;

/// Offsets in `struct tcp_info` of linux/tcp.h: `tcpi_bytes_received`, `tcpi_segs_in`, and `tcpi_min_rtt` in microseconds
/// (all since Linux 4.6).
const BYTES_RECEIVED: usize = 128;
const SEGMENTS: usize = 140;
const MIN_RTT: usize = 148;
const TCP_INFO: usize = 152;

/// The headers of a segment: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
const HEADERS: f64 = 66.0;

/// Bytes on the link for each byte read, if the kernel does not report segments: with 1448 bytes in each.
const OVERHEAD: f64 = 1.0 + HEADERS / 1448.0;

/// The receive window of one socket.
pub(super) struct ReceiveWindow {
    /// The wanted size, and the size that was set last.
    open: f64,
    set: f64,
}

/// The kernel's statistics of a connection.
pub(super) struct TcpStats {
    /// The shortest round trip.
    pub(super) round_trip: Duration,
    /// Bytes on the link for each byte read.
    pub(super) overhead: f64,
}

/// The receive buffer of a new socket before it connects. `None` if the largest window that it ever needs is not below the
/// kernel's initial one: a window that is small at the handshake can never exceed 64 KB (no window scaling, RFC 7323). It
/// starts with a share, because other connections may start at the same time.
pub(super) fn first(largest: Option<f64>) -> Option<u32> {
    let largest = largest.filter(|bytes| *bytes < f64::from(FIRST))?;
    Some((largest / CONCURRENT_STARTS).max(MIN_FIRST) as u32)
}

impl ReceiveWindow {
    /// The window of a socket that connected with the receive buffer `first`.
    pub(super) fn of(first: Option<u32>) -> Self {
        let open = f64::from(first.unwrap_or(FIRST));
        Self { open, set: 0.0 }
    }

    /// Moves the window towards `wanted` bytes, `None` for no bound, after `read` bytes were read.
    pub(super) fn fit(&mut self, socket: BorrowedFd<'_>, wanted: Option<f64>, read: usize) {
        let wanted = wanted.map_or(MAX, |bytes| bytes.clamp(MIN, MAX));
        let read = read as f64;
        self.open = match wanted < self.open {
            true => wanted.max(self.open - read),
            false => wanted.min(self.open + read),
        };
        if (self.open - self.set).abs() < self.set * STEP {
            return;
        }
        self.set = self.open;
        let bytes = self.open as c_int;
        if !set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes) && self.open <= MAX_FIXED {
            set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
        }
        set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes);
    }
}

/// Reads the statistics of a connection (`TCP_INFO`).
pub(super) fn tcp_stats(socket: BorrowedFd<'_>) -> TcpStats {
    let (mut info, mut length) = ([0u8; TCP_INFO], TCP_INFO as socklen_t);
    // SAFETY: the kernel writes no more than `length` bytes.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if done != 0 || length as usize != TCP_INFO {
        return TcpStats {
            round_trip: Duration::ZERO,
            overhead: OVERHEAD,
        };
    }
    let received = u64::from_ne_bytes(field(&info, BYTES_RECEIVED));
    let segments = u32::from_ne_bytes(field(&info, SEGMENTS));
    // All ones before the first measurement.
    let round_trip = u32::from_ne_bytes(field(&info, MIN_RTT));
    TcpStats {
        round_trip: Duration::from_micros(if round_trip == u32::MAX {
            0
        } else {
            round_trip.into()
        }),
        overhead: 1.0 + HEADERS * f64::from(segments) / (received as f64).max(1.0),
    }
}

/// The bytes of one field of `tcp_info`.
fn field<const N: usize>(info: &[u8; TCP_INFO], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&info[at..at + N]);
    bytes
}

/// Sets a socket option and returns whether that worked. Without it bursts are longer; the average stays.
pub(super) fn set(socket: BorrowedFd<'_>, level: c_int, name: c_int, number: c_int) -> bool {
    let length = size_of::<c_int>() as socklen_t;
    // SAFETY: the kernel reads one number.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const number).cast(),
            length,
        ) == 0
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_window_moves_by_the_bytes_read_and_no_further() -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let mut window = ReceiveWindow::of(None);
        let mut fit = |wanted: Option<f64>, read: usize| {
            window.fit(socket.as_fd(), wanted, read);
            window.open
        };
        let first = f64::from(FIRST);
        assert_eq!(fit(Some(10_000.0), 0), first, "already announced");
        assert_eq!(fit(Some(10_000.0), 5_000), first - 5_000.0);
        assert_eq!(fit(Some(10_000.0), 60_000), 10_000.0);
        assert_eq!(fit(Some(100_000.0), 0), 10_000.0);
        assert_eq!(fit(Some(100_000.0), 8_000), 18_000.0);
        assert_eq!(fit(Some(100_000.0), 90_000), 100_000.0);
        assert_eq!(fit(Some(1.0), 1_000_000), MIN);
        assert_eq!(fit(None, usize::MAX), MAX);
        Ok(())
    }

    #[test]
    fn only_a_window_that_stays_small_starts_small() {
        for (largest, expected) in [
            (None, None),
            (Some(70_000.0), None),
            (Some(40_000.0), Some(10_000)),
            (Some(5_000.0), Some(3_000)),
        ] {
            assert_eq!(first(largest), expected, "{largest:?}");
        }
    }

    #[test]
    fn the_kernel_reports_round_trip_and_overhead() -> anyhow::Result<()> {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        server.write_all(&[0; 1000])?;
        client.read_exact(&mut [0; 1000])?;
        let stats = tcp_stats(client.as_fd());
        assert!(
            stats.round_trip < Duration::from_secs(1),
            "{:?}",
            stats.round_trip
        );
        // The SYN-ACK and the data, and perhaps an acknowledgement.
        assert!((1.05..1.3).contains(&stats.overhead), "{}", stats.overhead);
        Ok(())
    }
}
