//! Chooses the source for each attempt of one operation, and the pauses between attempts: the one retry loop.
//!
//! # Design
//!
//! An operation asks [`Attempts::next`] for a source and reports with [`Attempts::failed`] that it failed. Sources are tried
//! in the order of preference, those known to be slow last (`mirror_speed`), and without a pause in between. A source that
//! failed for good is not tried again, nor is one that sent the wrong content twice. After all sources were tried there is a
//! pause of exponential backoff with "full jitter", so that the workers of many nodes do not return together. The longest
//! pause is also the time after which the return of a link is noticed. A registry that sends `Retry-After` is left alone by
//! all operations until then ([`RetryContext::throttled_until`]).
//!
//! The operation ends when a source answers, when each has failed for good, when the run stops, or after `give_up_after`
//! without progress in any operation ([`RetryContext::stalled`]). An operation whose caller has an alternative ends after a
//! number of rounds ([`Attempts::give_up_after_rounds`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cancel::Cancel;
use crate::http::Backoff;
use crate::report::{Event, Operation};

use super::error::RegistryError;
use super::mirror_speed::{Alternative, MIN_SAMPLE};
use super::mirrors::PullSource;
use super::response_monitor::Watchdog;
use super::retry_context::RetryContext;

/// The first pause is at most this long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// No pause is longer, because links return without notice.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// After a registry's `Retry-After`, workers return spread over this time.
const SPREAD: Duration = Duration::from_secs(1);

/// How often a source may send the wrong content. Once may be an accident, and failing the run for it would be a high price;
/// each further time downloads all of it again.
const MAX_WRONG_CONTENTS: u32 = 1;

/// An answer with fewer bytes does not reset the backoff: otherwise a source that sends a byte for each request would never
/// be asked less often.
const RESETS_BACKOFF: u64 = 16 << 10;

/// The attempts of one operation at its sources.
#[derive(Debug)]
pub struct Attempts {
    context: Arc<RetryContext>,
    operation: Arc<Operation>,
    what: String,
    candidates: Vec<Candidate>,
    /// The candidate of the current attempt, what watches its answers, and the bytes received from it.
    current: usize,
    watchdog: Option<Arc<Watchdog>>,
    received: u64,
    backoff: Backoff,
    /// After how many rounds in which all sources fail it gives up, how many there were, and since when.
    max_rounds: Option<u32>,
    rounds: u32,
    failing_since: Instant,
    /// A failure that the observer has not been notified of.
    unreported: Option<String>,
}

/// A source, and what its attempts showed.
#[derive(Debug)]
struct Candidate {
    source: PullSource,
    /// In this round.
    was_tried: bool,
    last_error: Option<RegistryError>,
    wrong_contents: u32,
    failed_for_good: bool,
    /// It sent all of the blob when a range was requested.
    ignores_ranges: bool,
}

impl Candidate {
    /// Whether it is worth a request, as far as its attempts show.
    fn is_usable(&self) -> bool {
        !self.failed_for_good && matches!(self.last_error, None | Some(RegistryError::Slow { .. }))
    }

    fn domain(&self) -> &str {
        self.source.reference.domain()
    }
}

impl Attempts {
    pub(super) fn new(
        context: &Arc<RetryContext>,
        what: String,
        images: Vec<String>,
        sources: Vec<PullSource>,
    ) -> Self {
        let candidates = sources.into_iter().map(|source| Candidate {
            source,
            was_tried: false,
            last_error: None,
            wrong_contents: 0,
            failed_for_good: false,
            ignores_ranges: false,
        });
        Self {
            operation: context.begin_operation(images),
            context: Arc::clone(context),
            what,
            candidates: candidates.collect(),
            current: 0,
            watchdog: None,
            received: 0,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE, 0.0..1.0),
            max_rounds: None,
            rounds: 0,
            failing_since: Instant::now(),
            unreported: None,
        }
    }

    /// Gives up after so many rounds in which all sources fail.
    pub fn give_up_after_rounds(&mut self, rounds: u32) {
        self.max_rounds = Some(rounds);
    }

    /// The source for the next attempt, after a pause if one is due.
    pub async fn next(&mut self, cancel: &Cancel) -> Result<PullSource, RegistryError> {
        loop {
            match self.next_now(cancel)? {
                Some(source) => return Ok(source),
                None => self.pause(cancel).await?,
            }
        }
    }

    /// The source for an attempt now; nothing if a [`pause`](Self::pause) is due before.
    pub fn next_now(&mut self, cancel: &Cancel) -> Result<Option<PullSource>, RegistryError> {
        cancel.check()?;
        if self.candidates.iter().all(|candidate| candidate.failed_for_good) {
            return Err(self.final_error());
        }
        let ready = self.candidates.iter().enumerate().filter(|(_, candidate)| {
            let is_due = !candidate.failed_for_good && !candidate.was_tried;
            is_due && self.context.throttled_until(candidate.domain()).is_none()
        });
        let ready: Vec<usize> = ready.map(|(position, _)| position).collect();
        let domains = ready.iter().map(|position| self.candidates[*position].domain());
        let Some(chosen) = self.context.speeds.first_not_slow(domains) else {
            return Ok(None);
        };
        self.begin(ready[chosen]);
        self.report_retry(Duration::ZERO);
        Ok(Some(self.candidates[self.current].source.clone()))
    }

    /// Makes the first attempt at this source, if it is one of them.
    pub fn begin_with(&mut self, source: &PullSource) {
        if let Some(position) = self.candidates.iter().position(|it| it.source == *source) {
            self.begin(position);
        }
    }

    fn begin(&mut self, position: usize) {
        self.candidates[position].was_tried = true;
        (self.current, self.watchdog, self.received) = (position, None, 0);
    }

    /// The current source and the others that are worth a request, in the order of preference.
    pub fn usable_sources(&self) -> Vec<PullSource> {
        let candidates = self.candidates.iter().enumerate();
        let usable = candidates.filter(|(position, it)| *position == self.current || it.is_usable());
        usable.map(|(_, candidate)| candidate.source.clone()).collect()
    }

    /// What watches the answers of the current source.
    pub(super) fn watchdog(&mut self) -> Arc<Watchdog> {
        let current = self.current;
        let make = || {
            let others = self.candidates.iter().enumerate();
            // To return to a source without ranges would download again what is here.
            let others = others.filter(|(position, other)| {
                *position != current && other.is_usable() && !other.ignores_ranges
            });
            let alternatives = others.map(|(position, other)| Alternative {
                domain: other.domain().to_owned(),
                is_preferred: position < current,
            });
            let domain = self.candidates.get(current).map(Candidate::domain);
            Watchdog::new(
                Arc::clone(&self.context),
                Arc::clone(&self.operation),
                domain.unwrap_or_default().to_owned(),
                alternatives.collect(),
            )
        };
        Arc::clone(self.watchdog.get_or_insert_with(make))
    }

    /// Records what the current source sent in this time. An error if another source is much faster.
    pub fn assess(&mut self, bytes: u64, took: Duration) -> Result<(), RegistryError> {
        if bytes < MIN_SAMPLE {
            return Ok(());
        }
        let what = format!(
            "{} from `{}`",
            self.what,
            self.candidates[self.current].source.reference.repository()
        );
        let watchdog = self.watchdog();
        watchdog.assess(&what, watchdog.sample(bytes, took)).map(drop)
    }

    /// Records that the current source ignores ranges.
    pub fn ignores_ranges(&mut self) {
        self.candidates[self.current].ignores_ranges = true;
    }

    /// Records that the current attempt failed.
    pub fn failed(&mut self, error: RegistryError) {
        let candidate = &mut self.candidates[self.current];
        if let Some(wait) = error.retry_after() {
            self.context.throttle(candidate.domain(), wait);
        }
        if self.received == 0 && error.is_unreachable() {
            self.context.speeds.unreachable(candidate.domain());
        }
        self.unreported = Some(error.to_string());
        candidate.failed_for_good = !error.may_pass();
        if candidate.failed_for_good && error.may_be_an_accident() {
            candidate.wrong_contents += 1;
            candidate.failed_for_good = candidate.wrong_contents > MAX_WRONG_CONTENTS;
        }
        let faster = match &error {
            RegistryError::Slow { other, .. } => Some(other.clone()),
            _ => None,
        };
        candidate.last_error = Some(error);
        if let Some(faster) = faster {
            self.context.speeds.probed(&faster);
            // The others may be tried again in this round.
            for (position, other) in self.candidates.iter_mut().enumerate() {
                other.was_tried &= position == self.current || !other.is_usable();
            }
        }
    }

    /// Records that the current source answered, and has nothing of what is asked for.
    pub(super) fn has_nothing(&mut self) {
        self.candidates[self.current].failed_for_good = true;
    }

    /// Counts bytes that were received for the first time.
    pub fn received(&mut self, bytes: u64) {
        self.received = self.received.saturating_add(bytes);
        if self.received >= RESETS_BACKOFF {
            self.backoff.reset();
            self.rounds = 0;
        }
        self.context.received(bytes);
    }

    /// Records that the operation has all it asked for.
    pub fn succeeded(&mut self) {
        self.backoff.reset();
        let mut others = self.candidates.iter().enumerate();
        let has_left_a_source = others.any(|(position, other)| {
            position != self.current && matches!(other.last_error, Some(RegistryError::Slow { .. }))
        });
        if has_left_a_source {
            self.watchdog().record_short_answer();
        }
        self.context.succeeded();
        self.context.observer.observe(Event::WaitEnded {
            operation: Arc::clone(&self.operation),
        });
    }

    /// Waits until a new round may begin, or gives up.
    pub async fn pause(&mut self, cancel: &Cancel) -> Result<(), RegistryError> {
        let now = Instant::now();
        let was_tried = self.candidates.iter().any(|candidate| candidate.was_tried);
        if was_tried && let Some(after) = self.context.stalled() {
            return Err(self.gave_up(after));
        }
        let mut pause = Duration::ZERO;
        if was_tried {
            pause = self.backoff.next_pause();
            if self.rounds == 0 {
                self.failing_since = now;
            }
            self.rounds += 1;
            if self.max_rounds.is_some_and(|max| self.rounds > max) {
                return Err(self.gave_up(now.duration_since(self.failing_since)));
            }
        }
        let open = self.candidates.iter().filter(|it| !it.failed_for_good);
        let throttled = open.map(|candidate| self.context.throttled_until(candidate.domain()));
        // While one source may be asked the backoff is enough; otherwise the first `Retry-After` must pass.
        let throttled: Option<Vec<Instant>> = throttled.collect();
        if let Some(first) = throttled.and_then(|all| all.into_iter().min()) {
            pause = pause.max(first.duration_since(now) + SPREAD.mul_f64(rand::random()));
        }
        self.report_retry(pause);
        for candidate in &mut self.candidates {
            candidate.was_tried = false;
        }
        cancel.sleep(pause).await?;
        Ok(())
    }

    /// Notifies the observer of the failure that is retried.
    fn report_retry(&mut self, after: Duration) {
        if let Some(why) = self.unreported.take() {
            let operation = Arc::clone(&self.operation);
            self.context.observer.observe(Event::Retrying {
                operation,
                why,
                after,
            });
        }
    }

    fn gave_up(&mut self, after: Duration) -> RegistryError {
        match self.candidates[self.current].last_error.take() {
            Some(last) => RegistryError::GaveUp {
                after,
                last: Box::new(last),
            },
            None => self.final_error(),
        }
    }

    /// The error after all sources have failed for good.
    fn final_error(&mut self) -> RegistryError {
        let candidates = self.candidates.iter_mut();
        let mut failures: Vec<_> = candidates.filter_map(|it| it.last_error.take()).collect();
        match failures.pop() {
            Some(only) if failures.is_empty() => only,
            last => {
                failures.extend(last);
                RegistryError::Sources {
                    what: self.what.clone(),
                    failures,
                }
            }
        }
    }
}

impl Drop for Attempts {
    fn drop(&mut self) {
        self.context.end_operation();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::retry_context::LONGEST_THROTTLE;
    use super::*;
    use crate::report::Observer;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<Duration>>);

    impl Observer for Recorder {
        fn observe(&self, event: Event) {
            if let Event::Retrying { after, .. } = event {
                self.0.lock().expect("no panic").push(after);
            }
        }
    }

    fn context(recorder: &Arc<Recorder>, give_up_after: Option<u64>) -> Arc<RetryContext> {
        let give_up_after = give_up_after.map(Duration::from_secs);
        Arc::new(RetryContext::new(recorder.clone(), give_up_after, None))
    }

    fn source(name: &str) -> PullSource {
        PullSource {
            reference: format!("{name}/a:1").parse().expect("a reference"),
            insecure: false,
        }
    }

    fn status(status: u16, retry_after: Option<u64>) -> RegistryError {
        RegistryError::Status {
            what: "it".into(),
            status,
            message: Default::default(),
            retry_after: retry_after.map(Duration::from_secs),
            redirected: false,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn mirrors_are_tried_without_a_pause_and_again_after_one() -> Result<(), RegistryError> {
        let (recorder, cancel) = (Arc::new(Recorder::default()), Cancel::default());
        let context = context(&recorder, Some(60));
        let mut attempts = Attempts::new(
            &context,
            "it".into(),
            Vec::new(),
            vec![source("m.io"), source("o.io")],
        );
        let began = Instant::now();
        assert_eq!(attempts.next(&cancel).await?, source("m.io"));
        attempts.failed(status(404, None));
        assert_eq!(attempts.next(&cancel).await?, source("o.io"));
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..200 {
            attempts.failed(status(503, None));
            match attempts.next(&cancel).await {
                Ok(next) => assert_eq!(next, source("o.io")),
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.starts_with("gave up after 60 seconds") && text.contains("503"),
                        "{text}"
                    );
                    assert_eq!(error.kind(), super::super::Kind::Network);
                    assert!(began.elapsed() < Duration::from_secs(60) + LONGEST_PAUSE);
                    assert!(
                        recorder
                            .0
                            .lock()
                            .expect("no panic")
                            .iter()
                            .all(|pause| *pause <= LONGEST_PAUSE)
                    );
                    return Ok(());
                }
            }
        }
        panic!("never gave up");
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_throttles_is_left_alone_by_all_operations() -> Result<(), RegistryError> {
        let cancel = Cancel::default();
        let context = context(&Arc::default(), None);
        let began = Instant::now();
        let mut first = Attempts::new(&context, "one".into(), Vec::new(), vec![source("m.io")]);
        first.next(&cancel).await?;
        first.failed(status(429, Some(100)));

        let mut second = Attempts::new(
            &context,
            "two".into(),
            Vec::new(),
            vec![source("m.io"), source("o.io")],
        );
        assert_eq!(
            second.next(&cancel).await?,
            source("o.io"),
            "the throttled one is skipped"
        );
        assert_eq!(began.elapsed(), Duration::ZERO);
        second.failed(status(404, None));
        assert_eq!(second.next(&cancel).await?, source("m.io"));
        assert!(began.elapsed() >= Duration::from_secs(100) && began.elapsed() <= Duration::from_secs(101));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn operations_that_waited_for_their_turn_give_up_with_the_others() -> Result<(), RegistryError> {
        let cancel = Cancel::default();
        let context = context(&Arc::default(), Some(600));
        // No operation waited all this time, so it does not count.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let began = Instant::now();
        let mut first = Attempts::new(&context, "one".into(), Vec::new(), vec![source("o.io")]);
        let until_given_up = async |attempts: &mut Attempts| {
            let mut tries = 0;
            while attempts.next(&cancel).await.is_ok() {
                tries += 1;
                attempts.failed(status(503, None));
            }
            tries
        };
        assert!(until_given_up(&mut first).await > 20);
        let elapsed = began.elapsed();
        assert!(elapsed >= Duration::from_secs(600) && elapsed < Duration::from_secs(600) + LONGEST_PAUSE);

        let mut second = Attempts::new(&context, "two".into(), Vec::new(), vec![source("o.io")]);
        drop(first);
        assert_eq!(until_given_up(&mut second).await, 1);
        assert_eq!(began.elapsed(), elapsed);
        second.succeeded();
        drop(second);

        let mut third = Attempts::new(&context, "three".into(), Vec::new(), vec![source("o.io")]);
        assert!(until_given_up(&mut third).await > 20);
        Ok(())
    }

    /// A night without a link, and a deadline instead of `give_up_after`.
    #[tokio::test(start_paused = true)]
    async fn the_end_of_an_outage_of_hours_is_noticed_soon() -> Result<(), RegistryError> {
        const OUTAGE: Duration = Duration::from_secs(10 * 3600);
        let (recorder, cancel) = (Arc::new(Recorder::default()), Cancel::default());
        let context = context(&recorder, None);
        let began = Instant::now();
        let blob = async |_| {
            let mut attempts = Attempts::new(
                &context,
                "it".into(),
                Vec::new(),
                vec![source("m.io"), source("o.io")],
            );
            loop {
                attempts.next(&cancel).await?;
                if began.elapsed() >= OUTAGE {
                    attempts.succeeded();
                    return Ok::<_, RegistryError>(began.elapsed() - OUTAGE);
                }
                attempts.failed(RegistryError::Transport {
                    what: "it".into(),
                    why: "no route to host".into(),
                    lasting: false,
                });
            }
        };
        for late in futures::future::join_all((0..4).map(blob)).await {
            assert!(late? <= LONGEST_PAUSE);
        }
        let recorder = recorder.0.lock().expect("no panic");
        assert!(recorder.iter().all(|pause| *pause <= LONGEST_PAUSE));
        // Of four blobs, each at half of the longest pause on average.
        let (rounds, expected) = (
            recorder.iter().filter(|pause| !pause.is_zero()).count() as u64,
            4 * OUTAGE.as_secs() / (LONGEST_PAUSE.as_secs() / 2),
        );
        assert!(
            (expected * 8 / 10..expected * 12 / 10).contains(&rounds),
            "{rounds} rounds, {expected} expected"
        );
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn no_registry_is_throttled_for_longer_than_a_quarter_of_an_hour() -> Result<(), RegistryError> {
        for seconds in [86_400 * 365, u64::MAX] {
            let cancel = Cancel::default();
            let context = context(&Arc::default(), None);
            let mut attempts = Attempts::new(&context, "it".into(), Vec::new(), vec![source("o.io")]);
            let began = Instant::now();
            attempts.next(&cancel).await?;
            attempts.failed(status(503, Some(seconds)));
            attempts.next(&cancel).await?;
            let waited = began.elapsed();
            assert!(
                waited >= LONGEST_THROTTLE && waited <= LONGEST_THROTTLE + 2 * SPREAD,
                "{waited:?}"
            );
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_sources_failed_for_good_each_is_named() {
        let cancel = Cancel::default();
        let context = context(&Arc::default(), None);
        let mut attempts = Attempts::new(
            &context,
            "blob".into(),
            Vec::new(),
            vec![source("m.io"), source("n.io"), source("o.io")],
        );
        for code in [404, 400, 404] {
            attempts.next(&cancel).await.expect("a source");
            attempts.failed(status(code, None));
        }
        let error = attempts.next(&cancel).await.expect_err("none is left");
        assert_eq!(
            error.to_string(),
            "no source has blob:\n  it: the registry answers 404\n  it: the registry answers 400\n  it: the registry answers \
             404\nhint: correct the reference, or push the image to that registry: a mirror may lack it"
        );
    }
}
