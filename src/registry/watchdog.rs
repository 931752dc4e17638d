//! Watches one answer come: says when a registry is silent, and ends it when another source is much faster.
//!
//! Every wait for a registry or a token server goes through here, so none is silent: after [`NOTICE`] without a byte it is
//! said for what the run waits, and again as long as it lasts. Time in which nobody asks for bytes does not count, for the
//! disk may be the slower side.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::report::{Event, Operation};

use super::error::RegistryError;
use super::mirror_speed::{Rates, Rival, TELLING};
use super::retry::RetryContext;

/// So long nothing may come before that is told.
const NOTICE: Duration = Duration::from_secs(5);

/// How long we wait for bytes before their rate is judged: longer than a slow start or a lost packet lasts.
const SPELL: Duration = Duration::from_secs(10);

/// As soon as this, a rate of some bytes is known well enough to claim more by it.
const FIRST_LOOK: Duration = Duration::from_secs(1);

/// In a spell that brings as much, the operation does not wait.
const MOVES: u64 = 16 << 10;

/// An answer that is awaited, and the next ones from the same source.
#[derive(Debug)]
pub(super) struct Watch {
    pace: Arc<RetryContext>,
    operation: Arc<Operation>,
    /// The source's registry.
    domain: String,
    /// Other sources that may be asked as well.
    rivals: Vec<Rival>,
    began: Instant,
    spell: Mutex<Spell>,
    /// Somebody was told that the operation waits.
    is_told: AtomicBool,
}

/// Time spent waiting, and what came in it.
#[derive(Clone, Copy, Debug, Default)]
struct Spell {
    waited: Duration,
    came: u64,
    /// The most answers that used the link at the same time.
    connections: usize,
}

impl Watch {
    pub(super) fn new(
        pace: Arc<RetryContext>,
        operation: Arc<Operation>,
        domain: String,
        rivals: Vec<Rival>,
    ) -> Arc<Self> {
        Arc::new(Self {
            pace,
            operation,
            domain,
            rivals,
            began: Instant::now(),
            spell: Mutex::default(),
            is_told: AtomicBool::new(false),
        })
    }

    pub(super) fn rates(&self) -> &Arc<Rates> {
        &self.pace.rates
    }

    /// A request of which nothing is known but that it was sent to `host`. Says so, and how long that lasts.
    pub(super) async fn head<T>(&self, what: &str, host: &str, sent: impl Future<Output = T>) -> T {
        self.tell(Event::Requested {
            operation: Arc::clone(&self.operation),
            host: host.to_owned(),
        });
        let (began, mut sent) = (Instant::now(), pin!(sent));
        loop {
            match tokio::time::timeout(NOTICE, &mut sent).await {
                Ok(answer) => return answer,
                Err(_elapsed) => self.tell_silence(what, host, began.elapsed()),
            }
        }
    }

    /// The next bytes of a body. An error if they come so slowly that another source is worth it.
    pub(super) async fn piece(
        &self,
        what: &str,
        next: impl Future<Output = Result<Option<Bytes>, RegistryError>>,
    ) -> Result<Option<Bytes>, RegistryError> {
        let (began, mut next) = (Instant::now(), pin!(next));
        let mut counted = began;
        loop {
            let piece = tokio::time::timeout(NOTICE, &mut next).await;
            let waited = std::mem::replace(&mut counted, Instant::now()).elapsed();
            match piece {
                Ok(piece) => {
                    let piece = piece?;
                    self.weigh(what, piece.as_ref().map_or(0, Bytes::len) as u64, waited)?;
                    return Ok(piece);
                }
                Err(_elapsed) => {
                    self.tell_silence(what, &self.domain, began.elapsed());
                    self.weigh(what, 0, waited)?;
                }
            }
        }
    }

    /// Notes that the operation does not wait any more.
    pub(super) fn moves(&self) {
        if self.is_told.swap(false, Ordering::Relaxed) {
            self.pace.observer.observe(Event::WaitEnded {
                operation: Arc::clone(&self.operation),
            });
        }
    }

    /// Notes that what came after another source was left for this one was all that was wanted: too little to tell a rate,
    /// but enough to ask this one first.
    pub(super) fn is_better(&self) {
        let Spell {
            came, connections, ..
        } = self.spell();
        if self.rates().pace(&self.domain) == 0 {
            self.rates()
                .note(&self.domain, came, self.began.elapsed(), connections);
        }
    }

    /// Notes what came in which time. Gives what all connections would bring, or an error if another source is worth it.
    pub(super) fn judge(&self, what: &str, came: u64, took: Duration) -> Result<u64, RegistryError> {
        let Spell { connections, .. } = self.spell();
        self.judge_one_of(connections, what, came, took)
    }

    fn judge_one_of(
        &self,
        connections: usize,
        what: &str,
        came: u64,
        took: Duration,
    ) -> Result<u64, RegistryError> {
        let share = self.rates().note(&self.domain, came, took, connections);
        let is_open = |rival: &&Rival| !self.pace.is_quiet(&rival.domain);
        let rivals: Vec<Rival> = self.rivals.iter().filter(is_open).cloned().collect();
        match self.rates().better(&self.domain, share, &rivals) {
            Some(other) => Err(RegistryError::Slow {
                what: what.into(),
                came,
                took,
                other,
            }),
            None => Ok(share),
        }
    }

    fn weigh(&self, what: &str, came: u64, waited: Duration) -> Result<(), RegistryError> {
        let (spell, is_over) = {
            let connections = self.rates().connections();
            let mut spell = self.spell.lock().unwrap_or_else(PoisonError::into_inner);
            spell.came += came;
            spell.waited += waited;
            spell.connections = spell.connections.max(connections);
            let is_over = spell.waited >= SPELL;
            let now = *spell;
            if is_over {
                *spell = Spell {
                    connections,
                    ..Spell::default()
                };
            }
            (now, is_over)
        };
        if spell.came >= MOVES {
            self.moves();
        }
        if !is_over {
            let is_telling = spell.came >= TELLING && spell.waited >= FIRST_LOOK;
            if is_telling && self.rates().pace(&self.domain) == 0 {
                self.rates()
                    .note(&self.domain, spell.came, spell.waited, spell.connections);
            }
            return Ok(());
        }
        let share = self.judge_one_of(spell.connections, what, spell.came, spell.waited)?;
        if self.rates().is_low(share) {
            let rate = spell.came as f64 / spell.waited.as_secs_f64();
            let domain = &self.domain;
            self.tell_waiting(format!("{what}: `{domain}` sends only {rate:.0} bytes a second"));
        }
        match self.pace.stuck_for() {
            // The retry loop gives up, if nothing else can be tried.
            Some(_) => Err(RegistryError::Transport {
                what: what.into(),
                why: format!("only {} bytes came in {} s", spell.came, spell.waited.as_secs()),
                lasting: false,
            }),
            None => Ok(()),
        }
    }

    fn spell(&self) -> Spell {
        *self.spell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_silence(&self, what: &str, host: &str, lasts: Duration) {
        self.tell_waiting(format!(
            "{what}: no answer from `{host}` for {} s",
            lasts.as_secs()
        ));
    }

    fn tell_waiting(&self, why: String) {
        self.tell(Event::Waiting {
            operation: Arc::clone(&self.operation),
            why,
        });
    }

    fn tell(&self, event: Event) {
        self.is_told.store(true, Ordering::Relaxed);
        self.pace.observer.observe(event);
    }
}

#[cfg(test)]
impl Watch {
    /// Of a source that is the only one, and that nobody needs.
    pub(super) fn idle() -> Arc<Self> {
        struct Nobody;
        impl crate::report::Observer for Nobody {
            fn observe(&self, _: Event) {}
        }
        let pace = Arc::new(RetryContext::new(Arc::new(Nobody), None, None));
        Self::new(pace, Arc::default(), "registry".to_owned(), Vec::new())
    }
}
