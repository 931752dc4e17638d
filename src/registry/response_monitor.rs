//! Watches the answers of one source: reports a silent registry, and ends a slow answer when another source is faster.
//!
//! Every wait for a registry or a token server passes through here, so none is silent: after [`NOTICE`] without a byte the
//! observer is notified of what the run waits for, and again as long as that lasts. Only time spent waiting for bytes counts,
//! because the disk may be slower than the link.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::report::{Event, Operation};

use super::error::RegistryError;
use super::mirror_speed::{ActiveResponse, Alternative, MIN_SAMPLE, MirrorSpeeds, Sample};
use super::retry_context::RetryContext;
use super::upload_body::RequestBody;

/// How long a source may be silent before the observer is notified.
const NOTICE: Duration = Duration::from_secs(5);

/// The time spent waiting for bytes after which a source is compared with others: longer than a slow start or a lost packet
/// lasts.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time after which [`MIN_SAMPLE`] bytes are a first measurement of an unknown source.
const FIRST_MEASUREMENT: Duration = Duration::from_secs(1);

/// An operation that receives as much in an interval is not waiting.
const MOVES: u64 = 16 << 10;

/// How long an upload may stand still.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Before the whole body is sent.
    pub(super) idle: Duration,
    /// After it.
    pub(super) answer: Duration,
}

impl Patience {
    fn limit(self, is_whole: bool) -> Duration {
        match is_whole {
            true => self.answer,
            false => self.idle,
        }
    }
}

/// What watches the answers of one source to one operation.
#[derive(Debug)]
pub(super) struct Watchdog {
    context: Arc<RetryContext>,
    operation: Arc<Operation>,
    /// The source's registry.
    domain: String,
    /// Other sources that are worth a request.
    alternatives: Vec<Alternative>,
    began: Instant,
    /// What was received in the current interval.
    interval: Mutex<Sample>,
    /// The observer was notified that the operation waits.
    is_reported: AtomicBool,
}

impl Watchdog {
    pub(super) fn new(
        context: Arc<RetryContext>,
        operation: Arc<Operation>,
        domain: String,
        alternatives: Vec<Alternative>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context,
            operation,
            domain,
            alternatives,
            began: Instant::now(),
            interval: Mutex::default(),
            is_reported: AtomicBool::new(false),
        })
    }

    /// Counts a response as one that uses the link.
    pub(super) fn begin_response(&self) -> ActiveResponse {
        self.context.speeds.begin_response()
    }

    /// Waits for the head of an answer to the request that was `sent` to `host`, and reports how long that takes.
    pub(super) async fn head<T>(&self, what: &str, host: &str, sent: impl Future<Output = T>) -> T {
        self.report(Event::Requested {
            operation: Arc::clone(&self.operation),
            host: host.to_owned(),
        });
        let (began, mut sent) = (Instant::now(), pin!(sent));
        loop {
            match tokio::time::timeout(NOTICE, &mut sent).await {
                Ok(answer) => return answer,
                Err(_elapsed) => self.report_silence(what, host, began.elapsed()),
            }
        }
    }

    /// Waits for the answer to a request with a body that was `sent` to `host`. An error if the connection does not take the
    /// body, or if no answer follows it.
    pub(super) async fn upload<T>(
        &self,
        what: &str,
        host: &str,
        body: &RequestBody,
        patience: Patience,
        sent: impl Future<Output = T>,
    ) -> Result<T, RegistryError> {
        self.report(Event::Requested {
            operation: Arc::clone(&self.operation),
            host: host.to_owned(),
        });
        let mut sent = pin!(sent);
        let (mut taken, mut since) = (0, Instant::now());
        loop {
            match tokio::time::timeout(NOTICE.min(patience.idle), &mut sent).await {
                Ok(answer) => return Ok(answer),
                Err(_elapsed) => {}
            }
            let is_whole = body.is_taken();
            let progress = body.taken().saturating_sub(taken);
            if progress > 0 {
                (taken, since) = (taken + progress, Instant::now());
                self.context.received(body.newly_taken());
                self.report_progress();
                continue;
            }
            let (waited, limit) = (since.elapsed(), patience.limit(is_whole));
            if waited >= limit {
                let why = match is_whole {
                    true => format!("no answer for {} s after all of it was sent", waited.as_secs()),
                    false => format!("the registry accepted no bytes for {} s", waited.as_secs()),
                };
                return Err(RegistryError::Transport {
                    what: what.into(),
                    why,
                    lasting: false,
                });
            }
            self.report_silence(what, host, waited);
        }
    }

    /// Waits for the next bytes of a body. An error if they arrive so slowly that another source is worth a request.
    pub(super) async fn chunk(
        &self,
        what: &str,
        next: impl Future<Output = Result<Option<Bytes>, RegistryError>>,
    ) -> Result<Option<Bytes>, RegistryError> {
        let (began, mut next) = (Instant::now(), pin!(next));
        let mut counted = began;
        loop {
            let chunk = tokio::time::timeout(NOTICE, &mut next).await;
            let waited = std::mem::replace(&mut counted, Instant::now()).elapsed();
            match chunk {
                Ok(chunk) => {
                    let chunk = chunk?;
                    self.count(what, chunk.as_ref().map_or(0, Bytes::len) as u64, waited)?;
                    return Ok(chunk);
                }
                Err(_elapsed) => {
                    self.report_silence(what, &self.domain, began.elapsed());
                    self.count(what, 0, waited)?;
                }
            }
        }
    }

    /// Notifies the observer that the operation no longer waits.
    fn report_progress(&self) {
        if self.is_reported.swap(false, Ordering::Relaxed) {
            self.context.observer.observe(Event::WaitEnded {
                operation: Arc::clone(&self.operation),
            });
        }
    }

    /// Records the speed of a source that answered whole after another one was left: the answer was too short for a
    /// measurement, but shows that this source is to be asked first.
    pub(super) fn record_short_answer(&self) {
        let speeds = self.speeds();
        if speeds.bytes_per_second(&self.domain) == 0 {
            let took = self.began.elapsed();
            let answer = Sample {
                took,
                ..self.current_interval()
            };
            speeds.record(&self.domain, answer);
        }
    }

    /// A sample of the source, with as many connections as used the link in the current interval.
    pub(super) fn sample(&self, bytes: u64, took: Duration) -> Sample {
        Sample {
            bytes,
            took,
            ..self.current_interval()
        }
    }

    /// Records a sample and compares the source with the others. Returns what all connections would receive in a second, or
    /// an error if another source is worth leaving this one.
    pub(super) fn assess(&self, what: &str, sample: Sample) -> Result<u64, RegistryError> {
        let link = self.speeds().record(&self.domain, sample);
        let is_open = |other: &&Alternative| self.context.throttled_until(&other.domain).is_none();
        let alternatives: Vec<_> = self.alternatives.iter().filter(is_open).cloned().collect();
        match self.speeds().faster(&self.domain, link, &alternatives) {
            Some(other) => Err(RegistryError::Slow {
                what: what.into(),
                received: sample.bytes,
                took: sample.took,
                other,
            }),
            None => Ok(link),
        }
    }

    /// Adds bytes to the current interval, and assesses it when it is over.
    fn count(&self, what: &str, bytes: u64, waited: Duration) -> Result<(), RegistryError> {
        let speeds = self.speeds();
        let (sample, is_over) = {
            let connections = speeds.connections();
            let mut interval = self.interval.lock().unwrap_or_else(PoisonError::into_inner);
            interval.bytes += bytes;
            interval.took += waited;
            interval.connections = interval.connections.max(connections);
            let sample = *interval;
            let is_over = sample.took >= INTERVAL;
            if is_over {
                *interval = Sample {
                    connections,
                    ..Sample::default()
                };
            }
            (sample, is_over)
        };
        if sample.bytes >= MOVES {
            self.report_progress();
        }
        if !is_over {
            let is_measurement = sample.bytes >= MIN_SAMPLE && sample.took >= FIRST_MEASUREMENT;
            if is_measurement && speeds.bytes_per_second(&self.domain) == 0 {
                speeds.record(&self.domain, sample);
            }
            return Ok(());
        }
        let link = self.assess(what, sample)?;
        if speeds.is_slow(link) {
            let rate = sample.bytes as f64 / sample.took.as_secs_f64();
            let domain = &self.domain;
            self.report_waiting(format!("{what}: `{domain}` sends only {rate:.0} bytes a second"));
        }
        match self.context.stalled() {
            // `Attempts` gives up, if no other source can be tried.
            Some(_) => Err(RegistryError::Transport {
                what: what.into(),
                why: format!(
                    "received only {} bytes in {} s",
                    sample.bytes,
                    sample.took.as_secs()
                ),
                lasting: false,
            }),
            None => Ok(()),
        }
    }

    fn speeds(&self) -> &Arc<MirrorSpeeds> {
        &self.context.speeds
    }

    fn current_interval(&self) -> Sample {
        *self.interval.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report_silence(&self, what: &str, host: &str, lasts: Duration) {
        self.report_waiting(format!(
            "{what}: no answer from `{host}` for {} s",
            lasts.as_secs()
        ));
    }

    fn report_waiting(&self, why: String) {
        self.report(Event::Waiting {
            operation: Arc::clone(&self.operation),
            why,
        });
    }

    fn report(&self, event: Event) {
        self.is_reported.store(true, Ordering::Relaxed);
        self.context.observer.observe(event);
    }
}

#[cfg(test)]
impl Watchdog {
    /// One of a source without alternatives, which notifies no observer.
    pub(super) fn idle() -> Arc<Self> {
        struct NoObserver;
        impl crate::report::Observer for NoObserver {
            fn observe(&self, _: Event) {}
        }
        let context = Arc::new(RetryContext::new(Arc::new(NoObserver), None, None));
        Self::new(context, Arc::default(), "registry".to_owned(), Vec::new())
    }
}
