//! The one retry loop.
//!
//! # Design
//!
//! An operation asks [`Attempts::next`] where to try, and says [`Attempts::failed`] when it did not work. Sources
//! come in the order of preference, those that are known to be slow last (`rates`), and without delay; one that failed for
//! good does not come again, nor one that gave the wrong content twice. When all have had
//! their turn there is a pause: a random part of an exponentially growing time ("full jitter"), so that the
//! workers of many nodes do not come back together. It is [`FIRST_PAUSE`] at most to begin with and [`LONGEST_PAUSE`]
//! at the end of an outage of any length, so that long it takes until the link's return is seen. A registry that says `Retry-After` is left alone by all
//! operations, for [`LONGEST_QUIET`] at most: the time until when is kept in [`RetryContext`], which they share.
//!
//! It ends when a source answers, when each has failed for good, when the run is to end, or after `give_up_after` in
//! which less than [`PROGRESS`] came, neither in this operation nor in any other: on a slow site the link may be dead for one
//! registry because another has all of it. That time is everybody's: operations that waited for their turn behind
//! others that got nothing try once and give up with them, not each after a time of its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::cancel::Cancel;
use crate::report::{Event, Observer, Operation};

use super::error::RegistryError;
use super::mirror_speed::{Rates, Rival, TELLING};
use super::mirrors::PullSource;
use super::rate_limit::Rate;
use super::watchdog::Watch;

/// The first pause is at most this long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// And no pause is longer, for links come back without notice.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A registry that wants more quiet than this is asked again nevertheless.
const LONGEST_QUIET: Duration = Duration::from_secs(15 * 60);

/// After a registry's quiet, workers come back spread over this time.
const SPREAD: Duration = Duration::from_secs(1);

/// How often a source may give the wrong content. Once may be an accident, and the end of the run would be a high price
/// for it; each further time costs the link all of it again, and a source that is wrong twice means it.
const ACCIDENTS: u32 = 1;

/// Bytes a second, over all of `give_up_after` and by all connections, that are progress. A release of 10 GB would take
/// most of a year at that.
const PROGRESS: u64 = 512;

/// An answer that brings less does not end the growing of pauses: who gives a byte for each request would never be asked
/// less often.
const GENEROUS: u64 = 16 << 10;

/// What all operations know of each other.
pub(super) struct RetryContext {
    pub(super) observer: Arc<dyn Observer>,
    pub(super) rates: Arc<Rates>,
    operations: AtomicU64,
    give_up_after: Option<Duration>,
    moved: Mutex<Moved>,
    /// Registries that asked for quiet, and until when.
    quiet: Mutex<HashMap<String, Instant>>,
}

/// When something last moved, anywhere.
struct Moved {
    /// Or when somebody last began to wait for that.
    at: Instant,
    /// Bytes since then, not yet enough to count.
    came: u64,
    /// Operations under way.
    waiting: usize,
}

impl std::fmt::Debug for RetryContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RetryContext")
            .field("give_up_after", &self.give_up_after)
            .finish_non_exhaustive()
    }
}

impl RetryContext {
    pub(super) fn new(
        observer: Arc<dyn Observer>,
        give_up_after: Option<Duration>,
        least: Option<Rate>,
    ) -> Self {
        Self {
            observer,
            rates: Arc::new(Rates::new(least)),
            operations: AtomicU64::default(),
            give_up_after,
            moved: Mutex::new(Moved {
                at: Instant::now(),
                came: 0,
                waiting: 0,
            }),
            quiet: Mutex::default(),
        }
    }

    fn quiet(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.quiet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn quiet_until(&self, source: &PullSource) -> Option<Instant> {
        let until = self.quiet().get(source.reference.domain()).copied();
        until.filter(|until| *until > Instant::now())
    }

    /// Whether the registry wants to be left alone.
    pub(super) fn is_quiet(&self, domain: &str) -> bool {
        self.quiet()
            .get(domain)
            .is_some_and(|until| *until > Instant::now())
    }

    /// How long there was no progress, if that is as long as may be.
    pub(super) fn stuck_for(&self) -> Option<Duration> {
        let stuck = self.moved().at.elapsed();
        self.give_up_after.filter(|after| stuck >= *after)
    }

    /// Takes note of bytes that nobody had before.
    fn came(&self, bytes: u64) {
        let mut moved = self.moved();
        moved.came = moved.came.saturating_add(bytes);
        let progress = self.give_up_after.unwrap_or_default().as_secs_f64() * PROGRESS as f64;
        if moved.came as f64 >= progress {
            (moved.at, moved.came) = (Instant::now(), 0);
        }
    }

    fn moved(&self) -> MutexGuard<'_, Moved> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One operation's way from source to source.
#[derive(Debug)]
pub struct Attempts {
    pace: Arc<RetryContext>,
    operation: Arc<Operation>,
    what: String,
    candidates: Vec<Candidate>,
    /// The candidate that was handed out last, and what watches its answers.
    current: usize,
    watch: Option<Arc<Watch>>,
    /// Bytes that it brought.
    brought: u64,
    /// Rounds since something moved here.
    round: u32,
    /// A failure that nobody was told of yet.
    untold: Option<String>,
}

#[derive(Debug)]
struct Candidate {
    source: PullSource,
    had_its_turn: bool,
    last: Option<RegistryError>,
    /// How often it gave the wrong content.
    accidents: u32,
    /// `last` is for good.
    is_out: bool,
    /// It gave all of the content where a part was wanted.
    is_rangeless: bool,
}

impl Candidate {
    /// Whether an answer may be expected of it, for all that is known.
    fn may_do(&self) -> bool {
        !self.is_out && matches!(self.last, None | Some(RegistryError::Slow { .. }))
    }

    fn domain(&self) -> &str {
        self.source.reference.domain()
    }
}

impl Attempts {
    pub(super) fn new(
        pace: &Arc<RetryContext>,
        what: String,
        images: Vec<String>,
        sources: Vec<PullSource>,
    ) -> Self {
        {
            let mut moved = pace.moved();
            if moved.waiting == 0 {
                (moved.at, moved.came) = (Instant::now(), 0);
            }
            moved.waiting += 1;
        }
        let candidates = sources.into_iter().map(|source| Candidate {
            source,
            had_its_turn: false,
            last: None,
            accidents: 0,
            is_out: false,
            is_rangeless: false,
        });
        Self {
            pace: Arc::clone(pace),
            operation: Arc::new(Operation {
                id: pace.operations.fetch_add(1, Ordering::Relaxed),
                images,
            }),
            what,
            candidates: candidates.collect(),
            current: 0,
            watch: None,
            brought: 0,
            round: 0,
            untold: None,
        }
    }

    /// Where to try next, after a pause if need be.
    pub async fn next(&mut self, cancel: &Cancel) -> Result<PullSource, RegistryError> {
        loop {
            match self.at_once(cancel)? {
                Some(source) => return Ok(source),
                None => self.pause(cancel).await?,
            }
        }
    }

    /// Where to try now; nothing if there has to be a [`pause`](Self::pause) before.
    pub fn at_once(&mut self, cancel: &Cancel) -> Result<Option<PullSource>, RegistryError> {
        cancel.check()?;
        if self.candidates.iter().all(|candidate| candidate.is_out) {
            return Err(self.verdict());
        }
        let ready = self.candidates.iter().enumerate().filter(|(_, candidate)| {
            !candidate.is_out && !candidate.had_its_turn && self.pace.quiet_until(&candidate.source).is_none()
        });
        let ready: Vec<usize> = ready.map(|(position, _)| position).collect();
        let domains = ready.iter().map(|position| self.candidates[*position].domain());
        let Some(chosen) = self.pace.rates.choose(domains) else {
            return Ok(None);
        };
        self.begin(ready[chosen]);
        self.tell(Duration::ZERO);
        Ok(Some(self.candidates[self.current].source.clone()))
    }

    /// Tries this source now, if it is one of them.
    pub fn begin_with(&mut self, source: &PullSource) {
        if let Some(position) = self.candidates.iter().position(|it| it.source == *source) {
            self.begin(position);
        }
    }

    fn begin(&mut self, position: usize) {
        self.candidates[position].had_its_turn = true;
        (self.current, self.watch, self.brought) = (position, None, 0);
    }

    /// The current source, and the others that may do, in the order of preference.
    pub fn open(&self) -> Vec<PullSource> {
        let candidates = self.candidates.iter().enumerate();
        let open = candidates.filter(|(position, it)| *position == self.current || it.may_do());
        open.map(|(_, candidate)| candidate.source.clone()).collect()
    }

    /// What is to watch the answers of the current source.
    pub(super) fn watch(&mut self) -> Arc<Watch> {
        let current = self.current;
        let make = || {
            let others = self.candidates.iter().enumerate();
            // To return to a source without ranges costs all that is here.
            let rivals = others
                .filter(|(position, other)| *position != current && other.may_do() && !other.is_rangeless);
            let rivals = rivals.map(|(position, other)| Rival {
                domain: other.domain().to_owned(),
                is_preferred: position < current,
            });
            let domain = self.candidates.get(current).map(Candidate::domain);
            Watch::new(
                Arc::clone(&self.pace),
                Arc::clone(&self.operation),
                domain.unwrap_or_default().to_owned(),
                rivals.collect(),
            )
        };
        Arc::clone(self.watch.get_or_insert_with(make))
    }

    /// Notes what the current source brought in which time. An error if another one is worth leaving it.
    pub fn judge(&mut self, bytes: u64, took: Duration) -> Result<(), RegistryError> {
        if bytes < TELLING {
            return Ok(());
        }
        let what = format!(
            "{} from `{}`",
            self.what,
            self.candidates[self.current].source.reference.repository()
        );
        self.watch().judge(&what, bytes, took).map(drop)
    }

    /// Takes note that the current source gives no ranges.
    pub fn is_rangeless(&mut self) {
        self.candidates[self.current].is_rangeless = true;
    }

    /// Takes note that the last source did not do.
    pub fn failed(&mut self, error: RegistryError) {
        let candidate = &mut self.candidates[self.current];
        if let Some(quiet) = error.retry_after() {
            let until = Instant::now() + quiet.min(LONGEST_QUIET);
            let host = candidate.source.reference.domain().to_owned();
            let mut all = self.pace.quiet();
            let known = all.entry(host).or_insert(until);
            *known = until.max(*known);
        }
        if self.brought == 0 && error.is_unreachable() {
            self.pace.rates.failed(candidate.source.reference.domain());
        }
        self.untold = Some(error.to_string());
        candidate.is_out = !error.may_pass();
        if candidate.is_out && error.may_be_an_accident() {
            candidate.accidents += 1;
            candidate.is_out = candidate.accidents > ACCIDENTS;
        }
        let other = match &error {
            RegistryError::Slow { other, .. } => Some(other.clone()),
            _ => None,
        };
        candidate.last = Some(error);
        if let Some(other) = other {
            self.pace.rates.tries(&other);
            // They are no worse for having had their turn.
            for (position, other) in self.candidates.iter_mut().enumerate() {
                other.had_its_turn &= position == self.current || !other.may_do();
            }
        }
    }

    /// Takes note of bytes that nobody had before.
    pub fn came(&mut self, bytes: u64) {
        self.brought = self.brought.saturating_add(bytes);
        if self.brought >= GENEROUS {
            self.round = 0;
        }
        self.pace.came(bytes);
    }

    /// Takes note that all is here that was wanted.
    pub fn done(&mut self) {
        self.round = 0;
        let mut others = self.candidates.iter().enumerate();
        let was_left = others.any(|(position, other)| {
            position != self.current && matches!(other.last, Some(RegistryError::Slow { .. }))
        });
        if was_left {
            self.watch().is_better();
        }
        {
            let mut moved = self.pace.moved();
            (moved.at, moved.came) = (Instant::now(), 0);
        }
        self.pace.observer.observe(Event::WaitEnded {
            operation: Arc::clone(&self.operation),
        });
    }

    /// Waits until a new round may begin, or gives up.
    pub async fn pause(&mut self, cancel: &Cancel) -> Result<(), RegistryError> {
        let now = Instant::now();
        let had_a_turn = self.candidates.iter().any(|candidate| candidate.had_its_turn);
        if had_a_turn && self.pace.stuck_for().is_some() {
            return Err(self.give_up(self.pace.give_up_after.unwrap_or_default()));
        }
        let mut pause = Duration::ZERO;
        if had_a_turn {
            let limit = FIRST_PAUSE
                .saturating_mul(1 << self.round.min(16))
                .min(LONGEST_PAUSE);
            pause = limit.mul_f64(rand::random());
            self.round = self.round.saturating_add(1);
        }
        let open = self.candidates.iter().filter(|candidate| !candidate.is_out);
        let quiet: Vec<_> = open
            .map(|candidate| self.pace.quiet_until(&candidate.source))
            .collect();
        // With one source that may be asked the pause is enough; otherwise the first must be waited for.
        if let Some(first) = quiet
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .and_then(|all| all.into_iter().min())
        {
            pause = pause.max(first.duration_since(now) + SPREAD.mul_f64(rand::random()));
        }
        self.tell(pause);
        for candidate in &mut self.candidates {
            candidate.had_its_turn = false;
        }
        cancel.sleep(pause).await?;
        Ok(())
    }

    /// Reports the failure that is being retried.
    fn tell(&mut self, after: Duration) {
        if let Some(why) = self.untold.take() {
            let operation = Arc::clone(&self.operation);
            self.pace.observer.observe(Event::Retrying {
                operation,
                why,
                after,
            });
        }
    }

    fn give_up(&mut self, after: Duration) -> RegistryError {
        let last = self.candidates[self.current].last.take();
        match last {
            Some(last) => RegistryError::GaveUp {
                after,
                last: Box::new(last),
            },
            None => self.verdict(),
        }
    }

    /// All have failed for good.
    fn verdict(&mut self) -> RegistryError {
        let mut failures: Vec<_> = self
            .candidates
            .iter_mut()
            .filter_map(|it| it.last.take())
            .collect();
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
        self.pace.moved().waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Told(Mutex<Vec<Duration>>);

    impl Observer for Told {
        fn observe(&self, event: Event) {
            if let Event::Retrying { after, .. } = event {
                self.0.lock().expect("no panic").push(after);
            }
        }
    }

    fn pace(told: &Arc<Told>, give_up_after: Option<u64>) -> Arc<RetryContext> {
        let give_up_after = give_up_after.map(Duration::from_secs);
        Arc::new(RetryContext::new(told.clone(), give_up_after, None))
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
    async fn mirrors_come_without_delay_then_all_that_may_pass_after_a_pause() -> Result<(), RegistryError> {
        let (told, cancel) = (Arc::new(Told::default()), Cancel::default());
        let pace = pace(&told, Some(60));
        let mut attempts = Attempts::new(
            &pace,
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
                        told.0
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
    async fn a_registry_that_asks_for_quiet_gets_it_from_all() -> Result<(), RegistryError> {
        let cancel = Cancel::default();
        let pace = pace(&Arc::default(), None);
        let began = Instant::now();
        let mut first = Attempts::new(&pace, "one".into(), Vec::new(), vec![source("m.io")]);
        first.next(&cancel).await?;
        first.failed(status(429, Some(100)));

        let mut second = Attempts::new(
            &pace,
            "two".into(),
            Vec::new(),
            vec![source("m.io"), source("o.io")],
        );
        assert_eq!(
            second.next(&cancel).await?,
            source("o.io"),
            "the quiet one is passed over"
        );
        assert_eq!(began.elapsed(), Duration::ZERO);
        second.failed(status(404, None));
        assert_eq!(second.next(&cancel).await?, source("m.io"));
        assert!(began.elapsed() >= Duration::from_secs(100) && began.elapsed() <= Duration::from_secs(101));
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_waited_for_their_turn_give_up_with_the_others() -> Result<(), RegistryError> {
        let cancel = Cancel::default();
        let pace = pace(&Arc::default(), Some(600));
        // Nobody waited all this time: it counts for nobody.
        tokio::time::sleep(Duration::from_secs(3600)).await;
        let began = Instant::now();
        let mut first = Attempts::new(&pace, "one".into(), Vec::new(), vec![source("o.io")]);
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

        let mut second = Attempts::new(&pace, "two".into(), Vec::new(), vec![source("o.io")]);
        drop(first);
        assert_eq!(until_given_up(&mut second).await, 1);
        assert_eq!(began.elapsed(), elapsed);
        second.done();
        drop(second);

        let mut third = Attempts::new(&pace, "three".into(), Vec::new(), vec![source("o.io")]);
        assert!(until_given_up(&mut third).await > 20);
        Ok(())
    }

    /// A night without a link, and a deadline in the place of patience.
    #[tokio::test(start_paused = true)]
    async fn hours_of_outage_are_waited_out_and_their_end_is_seen_soon() -> Result<(), RegistryError> {
        const OUTAGE: Duration = Duration::from_secs(10 * 3600);
        let (told, cancel) = (Arc::new(Told::default()), Cancel::default());
        let pace = pace(&told, None);
        let began = Instant::now();
        let blob = async |_| {
            let mut attempts = Attempts::new(
                &pace,
                "it".into(),
                Vec::new(),
                vec![source("m.io"), source("o.io")],
            );
            loop {
                attempts.next(&cancel).await?;
                if began.elapsed() >= OUTAGE {
                    attempts.done();
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
        let told = told.0.lock().expect("no panic");
        assert!(told.iter().all(|pause| *pause <= LONGEST_PAUSE));
        // Of four blobs, each at half of the longest pause on average.
        let (rounds, expected) = (
            told.iter().filter(|pause| !pause.is_zero()).count() as u64,
            4 * OUTAGE.as_secs() / (LONGEST_PAUSE.as_secs() / 2),
        );
        assert!(
            (expected * 8 / 10..expected * 12 / 10).contains(&rounds),
            "{rounds} rounds, {expected} expected"
        );
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn no_registry_is_left_alone_for_longer_than_a_quarter_of_an_hour() -> Result<(), RegistryError> {
        for seconds in [86_400 * 365, u64::MAX] {
            let cancel = Cancel::default();
            let pace = pace(&Arc::default(), None);
            let mut attempts = Attempts::new(&pace, "it".into(), Vec::new(), vec![source("o.io")]);
            let began = Instant::now();
            attempts.next(&cancel).await?;
            attempts.failed(status(503, Some(seconds)));
            attempts.next(&cancel).await?;
            let waited = began.elapsed();
            assert!(
                waited >= LONGEST_QUIET && waited <= LONGEST_QUIET + 2 * SPREAD,
                "{waited:?}"
            );
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn when_all_failed_for_good_each_is_named() {
        let cancel = Cancel::default();
        let pace = pace(&Arc::default(), None);
        let mut attempts = Attempts::new(
            &pace,
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
             404\nhint: correct the reference, or bring the image to that registry: a mirror may lack it"
        );
    }
}
