//! Serves DNS: one address, or an error.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Seconds for which an answer may be kept.
const TTL: u32 = 60;
/// And for which a name may be taken not to exist.
const NEGATIVE_TTL: u32 = 3600;

/// What every question gets.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Address(Ipv4Addr),
    /// SERVFAIL: those who know cannot be reached.
    Failure,
    /// NXDOMAIN, with the zone's word on how long that may be believed.
    NoSuchName,
    Silence,
}

/// Ends when dropped.
pub(crate) struct NameServer {
    reply: Arc<Mutex<Reply>>,
    asked: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    /// Answers who asks at `socket`.
    pub(crate) fn on(socket: UdpSocket, reply: Reply) -> Self {
        socket
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a socket takes a timeout");
        let (reply, asked, is_over) = (
            Arc::new(Mutex::new(reply)),
            Arc::<AtomicU64>::default(),
            Arc::<AtomicBool>::default(),
        );
        let (says, count, over) = (reply.clone(), asked.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            let mut question = [0; 512];
            while !over.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut question) else {
                    continue;
                };
                count.fetch_add(1, Ordering::Relaxed);
                let reply = *says.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(answer) = answer(&question[..length], reply) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self {
            reply,
            asked,
            is_over,
            thread: Some(thread),
        }
    }

    /// Changes the answer.
    pub(crate) fn say(&self, reply: Reply) {
        *self.reply.lock().unwrap_or_else(PoisonError::into_inner) = reply;
    }

    /// Questions so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has printed it.
            let _ = thread.join();
        }
    }
}

/// RFC 1035, 4.1: the question's id and text again, and one record: in the answer, or the zone's start.
fn answer(question: &[u8], reply: Reply) -> Option<Vec<u8>> {
    let name = question.get(12..)?;
    let end = 12 + name.iter().position(|byte| *byte == 0)? + 5;
    let kind = u16::from_be_bytes(question.get(end - 4..end - 2)?.try_into().ok()?);
    let (code, answers, authorities) = match reply {
        Reply::Silence => return None,
        Reply::Failure => (2, 0, 0),
        Reply::NoSuchName => (3, 0, 1),
        Reply::Address(_) => (0, u8::from(kind == 1), 0),
    };
    let mut answer = question[..2].to_vec();
    answer.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, authorities, 0, 0]);
    answer.extend(&question[12..end]);
    let mut record = |name: &[u8], kind: u8, ttl: u32, data: &[u8]| {
        answer.extend(name);
        answer.extend([0, kind, 0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend((data.len() as u16).to_be_bytes());
        answer.extend(data);
    };
    match reply {
        // The name is the question's.
        Reply::Address(address) if kind == 1 => record(&[0xc0, 12], 1, TTL, &address.octets()),
        Reply::NoSuchName => {
            // The root's: two empty names, serial, refresh, retry, expire, and how long a "no" holds.
            let times = [1, 3600, 3600, 86_400, NEGATIVE_TTL]
                .map(u32::to_be_bytes)
                .concat();
            record(&[0], 6, NEGATIVE_TTL, &[&[0, 0][..], &times].concat());
        }
        _ => {}
    }
    Some(answer)
}
