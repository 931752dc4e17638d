//! Receive windows: how much a registry may send before we have read what it sent.
//!
//! reqwest says whom an answer came from, and not by which socket; so all sockets of this process that are connected to such
//! a peer are told. They are found by number below /proc/self/fd. Should one be closed and its number be given away in
//! between, another socket gets a smaller window, or the kernel says that it is no socket: neither does harm.
//!
//! Two options are needed. `TCP_WINDOW_CLAMP` makes the window smaller without taking back what was promised. `SO_RCVBUF`
//! stops the kernel from growing the buffer by itself, and bounds what lies in it unread; but bytes that were promised and
//! do not fit would be dropped and cross the link again. So it stays at what the kernel promises first until so much came.

use std::collections::HashSet;
use std::fs;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use libc::{c_int, socklen_t};

use super::AHEAD;

/// The window that Linux opens for a new connection: the half of `tcp_rmem`'s second number, which nobody changes.
pub(super) const FIRST: u32 = 64 << 10;

/// The smallest window: three packets, so that one is always under way.
const LEAST: f64 = 4500.0;

/// The most that `SO_RCVBUF` is good for unless we may administrate the network: `net.core.rmem_max` as it is everywhere. A
/// larger window is left to the kernel, but for its clamp.
const MOST_FIXED: f64 = 208.0 * 1024.0;

/// No window is larger: the third number of `tcp_rmem` is 6 MB.
const MOST: f64 = 8.0 * 1024.0 * 1024.0;

/// linux/tcp.h: where `struct tcp_info` has `tcpi_rtt` (microseconds), and `tcpi_bytes_received` (since Linux 4.1).
const RTT: usize = 68;
const BYTES_RECEIVED: usize = 128;
const TCP_INFO: usize = 136;

/// Sets the windows of all connections to `peers`, each of which may bring so many bytes a second; nothing if there is no
/// limit.
pub(super) fn set(peers: &HashSet<SocketAddr>, bytes_per_second: Option<f64>) {
    if peers.is_empty() {
        return;
    }
    // Without /proc bursts are longer; the average stays.
    let Ok(open) = fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<c_int>().ok());
    // All first, for the directory is one of them.
    for socket in numbers.collect::<Vec<_>>() {
        if peer(socket).is_some_and(|peer| peers.contains(&peer)) {
            set_one(socket, bytes_per_second);
        }
    }
}

fn set_one(socket: c_int, bytes_per_second: Option<f64>) {
    let Some(info) = option::<TCP_INFO>(socket, libc::IPPROTO_TCP, libc::TCP_INFO) else {
        return;
    };
    let rtt = f64::from(u32::from_ne_bytes(field(&info, RTT))) / 1e6;
    let came = u64::from_ne_bytes(field(&info, BYTES_RECEIVED));
    let mut window = bytes_per_second.map_or(MOST, |rate| {
        (rate * (AHEAD.as_secs_f64() + rtt)).clamp(LEAST, MOST)
    });
    let is_new = came < 2 * u64::from(FIRST) && window <= MOST_FIXED;
    if is_new {
        // Nor more: others may begin at the same time.
        window = window.min(f64::from(FIRST));
    }
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, window as c_int);
    let buffer = if is_new {
        f64::from(FIRST)
    } else if window <= MOST_FIXED {
        window
    } else {
        // The kernel says twice the number that was set. Less than it begins with was set by us, at another time of day.
        match option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF).map(u32::from_ne_bytes) {
            Some(now) if now < 2 * FIRST => MOST_FIXED,
            _ => return,
        }
    };
    if buffer <= MOST_FIXED {
        set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUF, buffer as c_int);
    }
}

/// A number in `tcp_info`.
fn field<const N: usize>(info: &[u8; TCP_INFO], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&info[at..at + N]);
    bytes
}

/// An option's bytes; nothing if it is no such socket, or an older kernel knows fewer.
fn option<const N: usize>(socket: c_int, level: c_int, name: c_int) -> Option<[u8; N]> {
    let (mut bytes, mut length) = ([0; N], N as socklen_t);
    // SAFETY: the kernel writes no more than `length` bytes, and looks itself what kind of file the number is.
    let done = unsafe { libc::getsockopt(socket, level, name, bytes.as_mut_ptr().cast(), &raw mut length) };
    (done == 0 && length as usize == N).then_some(bytes)
}

/// If it cannot be set, bursts are longer; the average stays.
fn set_option(socket: c_int, level: c_int, name: c_int, number: c_int) {
    let length = size_of::<c_int>() as socklen_t;
    // SAFETY: the kernel reads one number, and looks itself what kind of file the other number is.
    unsafe { libc::setsockopt(socket, level, name, (&raw const number).cast(), length) };
}

/// Whom a socket is connected to.
fn peer(socket: c_int) -> Option<SocketAddr> {
    // SAFETY: all of it may be zero.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_in6>() as socklen_t;
    // SAFETY: the kernel writes no more than `length` bytes, and looks itself what kind of file the number is. An address
    // that needs more is of neither kind below.
    if unsafe { libc::getpeername(socket, (&raw mut address).cast(), &raw mut length) } != 0 {
        return None;
    }
    let port = u16::from_be(address.sin6_port);
    match c_int::from(address.sin6_family) {
        // `sockaddr_in` has its address where the other has its flow.
        libc::AF_INET => Some((Ipv4Addr::from(address.sin6_flowinfo.to_ne_bytes()), port).into()),
        libc::AF_INET6 => Some((Ipv6Addr::from(address.sin6_addr.s6_addr), port).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd as _;
    use std::thread;

    use super::*;

    /// What lies unread in the kernel of a client when a sender has sent all that it may.
    fn unread(listen: &str, rate: Option<f64>) -> anyhow::Result<usize> {
        let listener = TcpListener::bind(listen)?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        assert_eq!(peer(client.as_raw_fd()), Some(listener.local_addr()?));
        let peers = HashSet::from([listener.local_addr()?]);
        let bring = |server: &mut TcpStream, client: &mut TcpStream| -> anyhow::Result<()> {
            for _ in 0..200 {
                server.write_all(&[0; 2000])?;
                client.read_exact(&mut [0; 2000])?;
            }
            Ok(())
        };
        set(&peers, rate);
        bring(&mut server, &mut client)?;
        set(&peers, rate);
        bring(&mut server, &mut client)?;
        server.set_nonblocking(true)?;
        let mut idle = 0;
        while idle < 20 {
            match server.write(&[0; 1000]) {
                Ok(bytes) if bytes > 0 => idle = 0,
                _ => {
                    idle += 1;
                    thread::sleep(std::time::Duration::from_millis(1));
                }
            }
        }
        let mut unread: c_int = 0;
        // SAFETY: the kernel writes one number.
        unsafe { libc::ioctl(client.as_raw_fd(), libc::FIONREAD, &raw mut unread) };
        Ok(usize::try_from(unread)?)
    }

    #[test]
    fn a_sender_gets_rid_of_a_window_and_no_more() -> anyhow::Result<()> {
        for listen in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(free) = unread(listen, None) else {
                // There is no IPv6.
                continue;
            };
            // 30 ms of 1 MB a second, and what packets of loopback waste.
            let narrow = unread(listen, Some(1e6))?;
            assert!(narrow < 100_000 && narrow < free, "{listen}: {narrow} of {free}");
        }
        Ok(())
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        assert_eq!(peer(-1), None);
        assert_eq!(peer(0).filter(|peer| peer.port() == 0), None);
        set_one(-1, Some(1e6));
    }
}
