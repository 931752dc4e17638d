//! The window of a socket: how much the other end may send before we have read what it sent.
//!
//! Two options are needed. `SO_RCVBUF` stops the kernel from growing the buffer by itself, and bounds what lies in it
//! unread: with the half of it for the kernel's own, which is why it takes twice the number that is set. `TCP_WINDOW_CLAMP`
//! bounds what may be under way, where the kernel needs less than the half.
//!
//! A window becomes smaller only by what was read: bytes that were promised and do not fit would be dropped and cross the
//! link again. It becomes larger no faster, for what is promised to one that then turns out to be one of several cannot be
//! taken back; so it doubles in a round trip, as TCP's own does at the start.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use libc::{c_int, socklen_t};

/// The window that Linux opens for a new connection: the half of `tcp_rmem`'s second number, which nobody changes.
pub(super) const FIRST: u32 = 64 << 10;

/// The smallest window: three packets, so that one is always under way; and what it begins with, at a low rate: two, for
/// each second one is acknowledged at once.
const LEAST: f64 = 4500.0;
const LEAST_FIRST: f64 = 3000.0;

/// The most that `SO_RCVBUF` is good for unless we may administrate the network: `net.core.rmem_max` as it is everywhere. A
/// larger window is left to the kernel, but for its clamp.
const MOST_FIXED: f64 = 208.0 * 1024.0;

/// No window is larger: the third number of `tcp_rmem` is 6 MB.
const MOST: f64 = 8.0 * 1024.0 * 1024.0;

/// Connections that may begin at the same time, at a low rate.
const BEGINNERS: f64 = 4.0;

/// A change by less than this part is not worth a system call.
const STEP: f64 = 1.0 / 16.0;

/// linux/tcp.h: where `struct tcp_info` has `tcpi_bytes_received`, `tcpi_segs_in`, and `tcpi_min_rtt` in microseconds (all of
/// them since Linux 4.6).
const BYTES_RECEIVED: usize = 128;
const SEGMENTS: usize = 140;
const MIN_RTT: usize = 148;
const TCP_INFO: usize = 152;

/// What a segment has beside its bytes: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12.
const HEADERS: f64 = 66.0;

/// What a frame has for each byte in it, where the kernel does not say: with 1448 bytes in each.
const FRAMED: f64 = 1.0 + HEADERS / 1448.0;

/// How far the window of one socket is open.
pub(super) struct Window {
    /// What it should have, and what was set last.
    open: f64,
    set: f64,
}

/// What a connection did so far.
pub(super) struct TcpStats {
    /// The shortest round trip.
    pub(super) round_trip: Duration,
    /// Bytes on the link for each one that is read.
    pub(super) framed: f64,
}

/// What a new socket's buffer should be, before it is connected: nothing if the largest window that it will ever need is
/// not below the kernel's first one, for a window that was small then can never have more than 64 KB. It begins with a
/// part, for others may begin at the same time.
pub(super) fn first(largest: Option<f64>) -> Option<u32> {
    let largest = largest.filter(|bytes| *bytes < f64::from(FIRST))?;
    Some((largest / BEGINNERS).max(LEAST_FIRST) as u32)
}

impl Window {
    /// That of a socket which was connected with `first`.
    pub(super) fn of(first: Option<u32>) -> Self {
        let open = f64::from(first.unwrap_or(FIRST));
        Self { open, set: 0.0 }
    }

    /// Opens or closes it for `wanted` bytes, nothing for no bound, after so many were read.
    pub(super) fn fit(&mut self, socket: BorrowedFd<'_>, wanted: Option<f64>, read: usize) {
        let wanted = wanted.map_or(MOST, |bytes| bytes.clamp(LEAST, MOST));
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
        if !set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes) && self.open <= MOST_FIXED {
            set(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes);
        }
        set(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes);
    }
}

/// What the kernel says of a connection.
pub(super) fn traffic(socket: BorrowedFd<'_>) -> TcpStats {
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
            framed: FRAMED,
        };
    }
    let came = u64::from_ne_bytes(field(&info, BYTES_RECEIVED));
    let segments = u32::from_ne_bytes(field(&info, SEGMENTS));
    // All ones before there is any.
    let round_trip = u32::from_ne_bytes(field(&info, MIN_RTT));
    TcpStats {
        round_trip: Duration::from_micros(if round_trip == u32::MAX {
            0
        } else {
            round_trip.into()
        }),
        framed: 1.0 + HEADERS * f64::from(segments) / (came as f64).max(1.0),
    }
}

/// A number in `tcp_info`.
fn field<const N: usize>(info: &[u8; TCP_INFO], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&info[at..at + N]);
    bytes
}

/// Whether it could be set. If not, bursts are longer; the average stays.
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
    fn a_window_moves_by_what_was_read_and_no_further() -> anyhow::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let mut window = Window::of(None);
        let mut fit = |wanted: Option<f64>, read: usize| {
            window.fit(socket.as_fd(), wanted, read);
            window.open
        };
        let first = f64::from(FIRST);
        assert_eq!(fit(Some(10_000.0), 0), first, "it was promised");
        assert_eq!(fit(Some(10_000.0), 5_000), first - 5_000.0);
        assert_eq!(fit(Some(10_000.0), 60_000), 10_000.0);
        assert_eq!(fit(Some(100_000.0), 0), 10_000.0);
        assert_eq!(fit(Some(100_000.0), 8_000), 18_000.0);
        assert_eq!(fit(Some(100_000.0), 90_000), 100_000.0);
        assert_eq!(fit(Some(1.0), 1_000_000), LEAST);
        assert_eq!(fit(None, usize::MAX), MOST);
        Ok(())
    }

    #[test]
    fn only_a_window_that_will_never_be_large_is_small_from_the_beginning() {
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
    fn the_kernel_says_what_a_connection_did() -> anyhow::Result<()> {
        use std::io::{Read as _, Write as _};
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        server.write_all(&[0; 1000])?;
        client.read_exact(&mut [0; 1000])?;
        let traffic = traffic(client.as_fd());
        assert!(
            traffic.round_trip < Duration::from_secs(1),
            "{:?}",
            traffic.round_trip
        );
        // The handshake's answer and the bytes, and perhaps an acknowledgement.
        assert!((1.05..1.3).contains(&traffic.framed), "{}", traffic.framed);
        Ok(())
    }
}
