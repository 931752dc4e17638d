//! Forwards TCP connections on loopback, and breaks them on purpose.
//!
//! Each connection has a thread for each way; the way to the client counts what it passes on, and is harmed. The first
//! connections are broken as listed, later ones not at all.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the client's side that may wait in the kernel: what a reset destroys.
pub(crate) const SEND_BUFFER: usize = 64 << 10;

/// What is done to one connection, after so many bytes to the client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Harm {
    Nothing,
    /// FIN to both.
    Cut(u64),
    /// RST to both.
    Reset(u64),
    /// Nothing passes for a while, then all goes on.
    Stall(u64, Duration),
    /// Nothing passes any more; the connections stay.
    HalfOpen(u64),
    /// Each piece comes late.
    Delay(Duration),
}

/// Ends for new connections when dropped; those that are open end with their peers.
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    upstream: SocketAddr,
    harms: Mutex<VecDeque<Harm>>,
    /// To clients, all of it.
    passed: AtomicU64,
    harmed: AtomicU64,
}

impl Proxy {
    /// A proxy for the server at `upstream`.
    pub(crate) fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream,
            harms: Mutex::default(),
            passed: AtomicU64::new(0),
            harmed: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Some(shared) = weak.upgrade() else { return };
                // The proxy ignores clients and servers that have disconnected.
                let _ = shared.connect(client);
            }
        });
        Ok(Self { address, shared })
    }

    /// `127.0.0.1:port`
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    /// Breaks the next connections like this, one each; replaces the earlier list.
    pub(crate) fn break_next(&self, harms: impl IntoIterator<Item = Harm>) {
        *self.shared.harms() = harms.into_iter().collect();
    }

    /// Bytes to clients so far.
    pub(crate) fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    /// Connections that were broken so far.
    pub(crate) fn broken_connections(&self) -> u64 {
        self.shared.harmed.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Wakes the listener, so that it ends.
        self.shared.harms().clear();
        let address = self.address;
        std::thread::spawn(move || TcpStream::connect(address));
    }
}

impl Shared {
    fn harms(&self) -> std::sync::MutexGuard<'_, VecDeque<Harm>> {
        self.harms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: Arc<Self>, client: TcpStream) -> io::Result<()> {
        let server = TcpStream::connect(self.upstream)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&client, SEND_BUFFER / 2)?;
        let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            to.shutdown(Shutdown::Write)
        });
        let harm = self.harms().pop_front().unwrap_or(Harm::Nothing);
        std::thread::spawn(move || self.pass(server, client, harm));
        Ok(())
    }

    fn pass(&self, mut server: TcpStream, mut client: TcpStream, harm: Harm) -> io::Result<()> {
        let mut buffer = vec![0; 16 << 10];
        let (mut passed, mut is_due) = (0, true);
        let after = match harm {
            Harm::Cut(after) | Harm::Reset(after) | Harm::Stall(after, _) | Harm::HalfOpen(after) => after,
            Harm::Nothing | Harm::Delay(_) => u64::MAX,
        };
        loop {
            if let Harm::Delay(delay) = harm {
                std::thread::sleep(delay);
            }
            let left = usize::try_from(after.saturating_sub(passed)).unwrap_or(usize::MAX);
            if left == 0 && is_due {
                is_due = false;
                self.harmed.fetch_add(1, Ordering::Relaxed);
                match harm {
                    Harm::Cut(_) => {
                        server.shutdown(Shutdown::Both)?;
                        return client.shutdown(Shutdown::Both);
                    }
                    Harm::Reset(_) => {
                        for side in [&client, &server] {
                            rustix::net::sockopt::set_socket_linger(side, Some(Duration::ZERO))?;
                        }
                        // The thread of the other way holds them too: end it, and with it the last descriptor.
                        return server
                            .shutdown(Shutdown::Both)
                            .and(client.shutdown(Shutdown::Read));
                    }
                    Harm::Stall(_, pause) => std::thread::sleep(pause),
                    Harm::HalfOpen(_) => loop {
                        std::thread::park();
                    },
                    Harm::Nothing | Harm::Delay(_) => {}
                }
            }
            let limit = if is_due {
                left.min(buffer.len())
            } else {
                buffer.len()
            };
            let length = server.read(&mut buffer[..limit])?;
            if length == 0 {
                return client.shutdown(Shutdown::Both);
            }
            client.write_all(&buffer[..length])?;
            passed += length as u64;
            self.passed.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}
