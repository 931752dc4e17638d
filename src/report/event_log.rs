//! Writes a log line for each event that people should see.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::completion_estimate::TimeEstimate;
use super::media_report::{MAX_NAMED, MediaCounts, MediumBytes};
use super::progress::{Progress, ProgressSnapshot};
use super::{
    Count, DeadlineSource, Event, Forecast, ImageLabel, ImagePhase, Observer, OperatorReport, OperatorState,
    Printable, Size, Span,
};

/// How often failed attempts, or waits, are logged. When a link goes down, every blob on it fails, and again at every
/// attempt. Those in between are logged at debug level.
const RETRIES_EVERY: Duration = Duration::from_secs(10);

/// How log lines name an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageNames {
    /// `etcd (8d1f2a3b4c5d)`, for people.
    #[default]
    Short,
    /// The same, with the whole reference in the field `image`, for programs.
    Field,
    /// The whole reference, as TALM's scripts log it.
    Reference,
}

/// Logs events, so that code that reports an event need not log it as well.
#[derive(Default)]
pub struct EventLog {
    names: ImageNames,
    state: Mutex<State>,
    retries: Mutex<Throttle>,
    waits: Mutex<Throttle>,
}

#[derive(Default)]
struct State {
    progress: Progress,
    estimate: TimeEstimate,
    media: MediaCounts,
    /// Listed images by reference: the label, and the compressed bytes to download for it.
    images: HashMap<String, (ImageLabel, u64)>,
}

/// Limits how often one kind of line is logged.
#[derive(Default)]
struct Throttle {
    logged: Option<Instant>,
    suppressed: u64,
}

impl Throttle {
    /// Whether to log one more line. If so, returns how many were suppressed before it.
    fn allow(&mut self, now: Instant) -> Option<u64> {
        if self
            .logged
            .is_some_and(|logged| now.duration_since(logged) < RETRIES_EVERY)
        {
            self.suppressed += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// An event that ends an image, as its log line shows it.
struct Image {
    label: ImageLabel,
    bytes: u64,
    media: Vec<MediumBytes>,
    progress: ProgressSnapshot,
}

impl EventLog {
    /// Logs with these names of images.
    pub fn new(names: ImageNames) -> Self {
        Self {
            names,
            ..Self::default()
        }
    }

    fn retrying(&self, why: &str, after: Duration) {
        let mut retries = self.retries.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = retries.allow(Instant::now());
        drop(retries);
        let after = Span(after);
        let more = match allowed {
            Some(others) if others > 0 => format!(" ({others} more failures since the last such line)"),
            _ => String::new(),
        };
        for_each_line(why, |line, is_first| {
            let again = match is_first {
                true => format!("; retrying in {after}{more}"),
                false => String::new(),
            };
            match allowed {
                None => tracing::debug!("{line}{again}"),
                Some(_) => tracing::warn!("{line}{again}"),
            }
        });
    }

    fn forecast(&self, forecast: &Forecast) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let line = forecast.line(|name| match (self.names, state.images.get(name)) {
            (ImageNames::Short | ImageNames::Field, Some((label, _))) => label.to_string(),
            _ => Printable(name).to_string(),
        });
        drop(state);
        match forecast.images {
            0 => tracing::info!("{line}"),
            _ => tracing::warn!("{line}"),
        }
    }

    fn waiting(&self, why: &str) {
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = waits.allow(Instant::now());
        drop(waits);
        match allowed {
            None => tracing::debug!("{}", Printable(why)),
            Some(_) => tracing::info!("waiting: {}", Printable(why)),
        }
    }

    fn image_done(&self, reference: &str, phase: ImagePhase, reason: Option<&str>, image: &Image) {
        let name = match self.names {
            ImageNames::Reference => Printable(reference).to_string(),
            ImageNames::Short | ImageNames::Field => image.label.to_string(),
        };
        // Before the first plan the number of images is unknown.
        let count = match image.progress.images {
            0 => String::new(),
            images => {
                let done = image.progress.images_here + image.progress.images_failed;
                format!(" [{done}/{images}]")
            }
        };
        let size = match image.bytes {
            0 => String::new(),
            bytes => format!(", {}", Size(bytes)),
        };
        let media = image.media.iter();
        let media: String = media
            .map(|it| format!(", {} from medium `{}`", Size(it.bytes), it.medium))
            .collect();
        let reason = reason.unwrap_or("the reason is unknown");
        let text = match phase {
            ImagePhase::Present => format!("Skipping existing image {name}{count}"),
            ImagePhase::Pulled => format!("Pulled {name}{count}{size}{media}"),
            ImagePhase::Failed | ImagePhase::Damaged => format!("Failed {name}{count}: {reason}"),
            ImagePhase::Excluded => format!("Excluded {name}: {reason}"),
            ImagePhase::Pending => format!("Pending {name}"),
        };
        let has_field = self.names == ImageNames::Field;
        let image = has_field.then(|| tracing::field::display(Printable(reference)));
        for_each_line(&text, |line, _| match phase {
            ImagePhase::Present | ImagePhase::Pulled => tracing::info!(image, "{line}"),
            ImagePhase::Failed | ImagePhase::Damaged => tracing::error!(image, "{line}"),
            ImagePhase::Excluded | ImagePhase::Pending => tracing::debug!(image, "{line}"),
        });
    }
}

impl Observer for EventLog {
    fn observe(&self, event: Event) {
        match &event {
            Event::Retrying { why, after, .. } => return self.retrying(why, *after),
            Event::Waiting { why, .. } => return self.waiting(why),
            _ => {}
        }
        let mut locked = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (state, now) = (&mut *locked, Instant::now());
        let is_new_plan = matches!(event, Event::Planned { bytes, bytes_from_media, .. } if bytes.saturating_add(bytes_from_media) != state.progress.snapshot(now).bytes);
        state.progress.note(&event, now);
        state.media.note(&event);
        let failures = match &event {
            Event::MediumFailed { medium, .. } => state.media.failures(medium),
            _ => 0,
        };
        let estimate = state.estimate.note(&event, now, || state.progress.snapshot(now));
        let image = state.image(&event, now);
        let plan = is_new_plan.then(|| state.progress.snapshot(now));
        // Released before anything is logged: a slow reader of the log must not hold up a download for longer than its
        // own line takes.
        drop(locked);
        match (&event, image, plan) {
            (Event::ImageDone { name, state, reason }, Some(image), _) => {
                self.image_done(name, *state, reason.as_deref(), &image);
            }
            (Event::Planned { images, present, .. }, _, Some(plan)) if plan.bytes > plan.fetched => {
                let media = match plan.to_copy {
                    0 => String::new(),
                    bytes => format!(", {} to copy from media", Size(bytes)),
                };
                tracing::info!(
                    "{} wanted, {present} present, {} to download{media}",
                    Count(*images as usize, "image"),
                    Size(plan.to_download())
                );
            }
            (Event::MediumFailed { medium, reason }, _, _) => medium_failed(medium, reason, failures),
            (Event::Forecast(forecast), _, _) => self.forecast(forecast),
            _ => log(&event),
        }
        if let Some(estimate) = estimate {
            tracing::info!("{estimate}");
        }
    }
}

impl State {
    /// Remembers an image that is listed, and returns one that is done.
    fn image(&mut self, event: &Event, now: Instant) -> Option<Image> {
        match event {
            Event::ImageListed {
                name, label, bytes, ..
            } => {
                let listed = self.images.entry(name.clone());
                let (_, sum) = listed.or_insert_with(|| (label.clone(), 0));
                *sum = sum.saturating_add(*bytes);
                None
            }
            Event::ImageDone { name, .. } => {
                let listed = self.images.get(name).cloned();
                let (label, bytes) = listed.unwrap_or_else(|| (ImageLabel::new(None, name), 0));
                Some(Image {
                    label,
                    bytes,
                    media: self.media.of_image(name).to_vec(),
                    progress: self.progress.snapshot(now),
                })
            }
            _ => None,
        }
    }
}

/// Calls `log` for each line, and whether it is the first. Each is a log line of its own, because people search the log for
/// some of them, and hints are easier to find.
fn for_each_line(text: &str, log: impl Fn(Printable<'_>, bool)) {
    for (index, line) in text.lines().enumerate() {
        log(Printable(line), index == 0);
    }
}

/// Logs a failure of a medium. `failures` is its number.
fn medium_failed(medium: &str, reason: &str, failures: u64) {
    let more = match failures == MAX_NAMED as u64 {
        true => "\nfurther failures of this medium are logged at level debug",
        false => "",
    };
    for_each_line(&format!("medium `{medium}`: {reason}{more}"), |line, _| {
        match failures <= MAX_NAMED as u64 {
            true => tracing::warn!("{line}"),
            false => tracing::debug!("{line}"),
        }
    });
}

/// Logs events that need nothing else.
fn log(event: &Event) {
    match event {
        Event::StepStarted(step) => tracing::debug!("{step:?} starts"),
        Event::StepEnded {
            step,
            ok: true,
            message,
            ..
        } => for_each_line(&format!("{step:?}: {message}"), |line, _| {
            tracing::info!("{line}")
        }),
        Event::StepEnded {
            step,
            ok: false,
            reason,
            message,
        } => for_each_line(&format!("{step:?}: {reason}: {message}"), |line, _| {
            tracing::error!("{line}")
        }),
        Event::SignaturePolicy(policy) => tracing::info!("{}", Printable(&policy.to_string())),
        Event::Warned { message } => for_each_line(message, |line, _| tracing::warn!("{line}")),
        Event::Operator(operator) => log_operator(operator),
        Event::DeltaApplied {
            delta,
            source,
            bytes,
            whole_bytes,
            ..
        } => tracing::debug!(
            "made a layer from the files of image `{source}` and the delta `{delta}`: {} instead of {}",
            Size(*bytes),
            Size(*whole_bytes)
        ),
        Event::ChunksUsed {
            blob,
            bytes,
            whole_bytes,
            ..
        } => tracing::debug!(
            "made a layer from files of this node and {} of the blob `{blob}` instead of {}",
            Size(*bytes),
            Size(*whole_bytes)
        ),
        Event::SourceFailed { name, reason, .. } => {
            for_each_line(&format!("`{name}`: {reason}"), |line, _| tracing::warn!("{line}"));
        }
        Event::LayerCopied { blob, bytes } => {
            tracing::debug!(
                "copied the layer of `{blob}` from another one in the store: {} less",
                Size(*bytes)
            );
        }
        Event::LayersReused { layers } => {
            tracing::debug!("{layers} layers of images to pull are in the store already");
        }
        Event::BlobStarted { blob, size, resumed } => {
            tracing::debug!(
                "fetching `{blob}`: {}, of which {} are in the spool",
                Size(*size),
                Size(*resumed)
            );
        }
        Event::BlobNotOnMedia { blob, bytes } => {
            tracing::debug!(
                "downloading `{blob}`, which was planned from a medium: {}",
                Size(*bytes)
            );
        }
        Event::Deadline {
            report,
            upgrade_at: Some(upgrade),
            ..
        } => match report.source {
            DeadlineSource::Upgrade => tracing::info!("{report}"),
            _ => tracing::info!("{report}, before the upgrade begins at {upgrade}"),
        },
        Event::BlobVerified { blob } => tracing::debug!("fetched and verified `{blob}`"),
        Event::BlobAbandoned { blob } => tracing::debug!("stopped the download of `{blob}`"),
        // A warning has the same message. `verify` logs each image's signatures; other runs have hundreds of images.
        Event::UpgradeAssessed(upgrade) => {
            for obstacle in &upgrade.obstacles {
                for_each_line(&obstacle.message, |line, _| tracing::warn!("{line}"));
            }
        }
        Event::StepInconclusive { .. }
        | Event::ReleaseRead { .. }
        | Event::SignaturesChecked { .. }
        | Event::RateLimited { .. }
        | Event::Planned { .. }
        | Event::Deadline { .. }
        | Event::Forecast(_)
        | Event::Stopped { .. }
        | Event::ImageListed { .. }
        | Event::ImageDone { .. }
        | Event::BlobListed { .. }
        | Event::BlobReceived { .. }
        | Event::BlobRepeated { .. }
        | Event::BlobCopied { .. }
        | Event::MediumFailed { .. }
        | Event::LayerCommitted { .. }
        | Event::Requested { .. }
        | Event::Waiting { .. }
        | Event::WaitEnded { .. }
        | Event::Retrying { .. } => (),
    }
}

fn log_operator(operator: &OperatorReport) {
    let name = operator.name();
    match (operator.state, &operator.reason) {
        (OperatorState::Found, _) => tracing::info!(
            "operator `{}` is `{}` of `{}`: {}",
            Printable(&name),
            Printable(operator.bundle.as_deref().unwrap_or_default()),
            Printable(operator.index.as_deref().unwrap_or("any catalog")),
            Count(operator.images.len(), "image")
        ),
        (OperatorState::Failed, reason) => {
            let reason = reason.as_deref().unwrap_or("the reason is unknown");
            for_each_line(&format!("operator `{name}`: {reason}"), |line, _| {
                tracing::error!("{line}")
            });
        }
        (OperatorState::Pending, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::report::{RequesterKind, Step};

    #[test]
    fn failures_of_a_broken_link_are_logged_now_and_then() {
        let (mut throttle, begun) = (Throttle::default(), Instant::now());
        let allowed = [0, 1, 9, 10, 11, 40].map(|second| throttle.allow(begun + Duration::from_secs(second)));
        assert_eq!(allowed, [Some(0), None, None, Some(2), None, Some(1)]);
    }

    /// What `events` log, without the time.
    fn logged(names: ImageNames, is_json: bool, events: Vec<Event>) -> String {
        let written = Arc::new(Mutex::new(Vec::new()));
        let writer = {
            let written = Arc::clone(&written);
            move || Written(Arc::clone(&written))
        };
        let format = tracing_subscriber::fmt()
            .without_time()
            .with_target(false)
            .with_ansi(false)
            .with_writer(writer);
        let log = move || {
            let observer = EventLog::new(names);
            for event in events {
                observer.observe(event);
            }
        };
        match is_json {
            true => tracing::subscriber::with_default(format.json().finish(), log),
            false => tracing::subscriber::with_default(format.finish(), log),
        }
        let bytes = written.lock().unwrap_or_else(PoisonError::into_inner).clone();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn pulled() -> Vec<Event> {
        let name = "quay.io/o/ocp-v4.0-art-dev@sha256:8d1f2a3b4c5d6e";
        vec![
            Event::ImageListed {
                name: name.to_owned(),
                label: ImageLabel::new(Some("etcd"), name),
                requester: RequesterKind::Release,
                bytes: 43_200_000,
            },
            Event::Planned {
                images: 190,
                present: 2,
                bytes: 43_200_000,
                bytes_from_media: 0,
            },
            Event::ImageDone {
                name: name.to_owned(),
                state: ImagePhase::Pulled,
                reason: None,
            },
        ]
    }

    #[test]
    fn images_have_the_names_that_people_know_and_programs_the_whole_reference() {
        assert_eq!(
            logged(ImageNames::Short, false, pulled()),
            " INFO 190 images wanted, 2 present, 41.2 MiB to download\n \
             INFO Pulled etcd (8d1f2a3b4c5d) [2/190], 41.2 MiB\n"
        );
        let json = logged(ImageNames::Field, true, pulled());
        let line: serde_json::Value =
            serde_json::from_str(json.lines().last().unwrap_or_default()).expect("JSON");
        assert_eq!(
            line["fields"],
            serde_json::json!({
                "message": "Pulled etcd (8d1f2a3b4c5d) [2/190], 41.2 MiB",
                "image": "quay.io/o/ocp-v4.0-art-dev@sha256:8d1f2a3b4c5d6e",
            })
        );
        let talm = logged(ImageNames::Reference, false, pulled());
        assert!(
            talm.ends_with("Pulled quay.io/o/ocp-v4.0-art-dev@sha256:8d1f2a3b4c5d6e [2/190], 41.2 MiB\n"),
            "{talm}"
        );
    }

    #[test]
    fn a_hint_has_its_own_line() {
        let events = vec![
            Event::ImageDone {
                name: "example.com/tool:v1".to_owned(),
                state: ImagePhase::Failed,
                reason: Some("the certificate is self-signed\nhint: add it".to_owned()),
            },
            Event::Warned {
                message: "odd\nhint: change it".to_owned(),
            },
            Event::Retrying {
                operation: Arc::default(),
                why: "refused\nhint: start it".to_owned(),
                after: Duration::from_secs(2),
            },
            Event::StepEnded {
                step: Step::Pull,
                ok: false,
                reason: "ImagesMissing",
                message: "1 image is missing\nhint: run again".to_owned(),
            },
        ];
        assert_eq!(
            logged(ImageNames::Short, false, events),
            "ERROR Failed tool:v1: the certificate is self-signed\n\
             ERROR hint: add it\n \
             WARN odd\n \
             WARN hint: change it\n \
             WARN refused; retrying in 2 s\n \
             WARN hint: start it\n\
             ERROR Pull: ImagesMissing: 1 image is missing\n\
             ERROR hint: run again\n"
        );
    }
}
