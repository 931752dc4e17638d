//! Forwards packets between two TUN devices, with delay, loss and outages.
//!
//! # Design
//! A thread with a runtime of its own. Each way has a task that reads packets and notes when each is due, and one that waits
//! until then and writes it, with a queue between, so that delay costs no throughput. The rate is not made here: `tbf` at
//! the sending end holds packets back before they are read.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Packets that may be under way: 100 Mbit/s for 300 ms and some more.
const QUEUE: usize = 5000;

/// Ends when dropped.
pub(super) struct Forwarder {
    is_up: Arc<AtomicBool>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Forwarder {
    /// Carries packets each way with this delay and loss.
    pub(super) fn start(near: OwnedFd, far: OwnedFd, delay: Duration, loss: f64) -> Self {
        let is_up = Arc::new(AtomicBool::new(true));
        let (stop, stopped) = oneshot::channel();
        let up = is_up.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                // SAFETY: the descriptor is owned, so it stays what it is until the value goes.
                let device = |it| unsafe { AsyncFd::register(it) };
                let device = |it| Arc::new(device(it).expect("a device can be polled"));
                let (near, far) = (device(near), device(far));
                for (from, to) in [(near.clone(), far.clone()), (far, near)] {
                    let (late, due) = mpsc::channel(QUEUE);
                    tokio::spawn(read(from, late, up.clone(), delay, loss));
                    tokio::spawn(write(to, due));
                }
                let _ = stopped.await;
            });
        });
        Self {
            is_up,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Lets packets pass, or drops all of them.
    pub(super) fn set_up(&self, is_up: bool) {
        self.is_up.store(is_up, Ordering::Relaxed);
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed it.
            let _ = thread.join();
        }
    }
}

async fn read(
    from: Arc<AsyncFd<OwnedFd>>,
    late: mpsc::Sender<(Instant, Vec<u8>)>,
    is_up: Arc<AtomicBool>,
    delay: Duration,
    loss: f64,
) -> io::Result<()> {
    let mut buffer = [0; super::MTU as usize];
    loop {
        let mut ready = from.readable().await?;
        let read = ready.try_io(|device| Ok(rustix::io::read(device.as_fd(), &mut buffer)?));
        let Ok(length) = read else { continue };
        let packet = buffer[..length?].to_vec();
        if is_up.load(Ordering::Relaxed) && rand::random::<f64>() >= loss {
            // A full queue drops, as a router's does.
            let _ = late.try_send((Instant::now() + delay, packet));
        }
    }
}

async fn write(to: Arc<AsyncFd<OwnedFd>>, mut due: mpsc::Receiver<(Instant, Vec<u8>)>) {
    while let Some((at, packet)) = due.recv().await {
        tokio::time::sleep_until(at).await;
        // A device that takes nothing has a full queue: the packet is lost.
        let _ = rustix::io::write(to.as_fd(), &packet);
    }
}
