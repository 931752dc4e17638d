//! Writes the log in the format of TALM's scripts, for people and programs that search it for the scripts' lines.
//!
//! ```text
//! upgrades.pre-cache 2026-11-20T13:39:00+00:00 [INFO]: Image pre-caching starting for platform-images
//! ```
//!
//! [`TalmFormat`] formats every line in this way. [`TalmLog`] adds lines of the scripts that this program would word
//! differently or not write. The scripts write most of these only at `PRE_CACHE_LOG_LEVEL=2`, which is their default; this
//! program writes them at level 1, its own default.
//! (openshift-kni/cluster-group-upgrades-operator, `pre-cache/{common,pull,release,olm}.sh`)

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use tracing::{Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::{Event, ImagePhase, Observer, Printable, RequesterKind, Step};

/// Writes log events as lines of TALM's scripts.
#[derive(Clone, Copy, Debug, Default)]
pub struct TalmFormat;

impl<S, N> FormatEvent<S, N> for TalmFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let now = Timestamp::now();
        // The scripts have three levels and no warnings.
        let (level, mark) = match *event.metadata().level() {
            Level::ERROR => ("ERROR", ""),
            Level::WARN => ("INFO", "warning: "),
            Level::INFO => ("INFO", ""),
            _ => ("DEBUG", ""),
        };
        for line in text.lines() {
            writeln!(
                writer,
                "upgrades.pre-cache {} [{level}]: {mark}{line}",
                // Like `date -Iseconds` in a container, whose time zone is UTC.
                now.strftime("%Y-%m-%dT%H:%M:%S+00:00")
            )?;
        }
        Ok(())
    }
}

/// The two lists of images that the scripts pull.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum List {
    Platform,
    Additional,
}

impl List {
    const ALL: [Self; 2] = [Self::Platform, Self::Additional];

    fn of(requester: RequesterKind) -> Self {
        match requester {
            RequesterKind::Release | RequesterKind::Operator => Self::Platform,
            RequesterKind::Additional => Self::Additional,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Platform => "platform-images",
            Self::Additional => "additional-images",
        }
    }
}

/// Logs the lines of TALM's scripts, in addition to [`super::EventLog`].
#[derive(Default)]
pub struct TalmLog(Mutex<Images>);

#[derive(Default)]
struct Images {
    /// Requester and phase of each image, by its name.
    listed: BTreeMap<String, (RequesterKind, ImagePhase)>,
    started: bool,
    /// A release or a catalog could not be read.
    unknown: bool,
}

fn is_here(images: &[(&str, ImagePhase)]) -> bool {
    images
        .iter()
        .all(|(_, state)| matches!(state, ImagePhase::Present | ImagePhase::Pulled))
}

#[derive(Debug, PartialEq, Eq)]
struct Line(Level, String);

impl Observer for TalmLog {
    fn observe(&self, event: Event) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner).note(event);
        // Released before the log is written, because its reader may be slow.
        for Line(level, text) in lines {
            if level == Level::ERROR {
                tracing::error!("{text}");
            } else {
                tracing::info!("{text}");
            }
        }
    }
}

impl Images {
    fn note(&mut self, event: Event) -> Vec<Line> {
        match event {
            Event::ImageListed { name, requester, .. } => {
                self.listed
                    .entry(name)
                    .or_insert((requester, ImagePhase::Pending));
                Vec::new()
            }
            Event::ImageDone { name, state, .. } => self.set_phase(&name, state),
            Event::StepEnded {
                step: Step::Spec,
                ok: true,
                ..
            } => self.not_specified(),
            Event::StepEnded {
                step: Step::Release | Step::Operators,
                ok: false,
                ..
            } => {
                self.unknown = true;
                Vec::new()
            }
            Event::StepStarted(Step::Pull) => self.start(),
            Event::StepEnded {
                step: Step::Verify,
                ok,
                ..
            } => {
                let mut lines = self.start();
                lines.extend(self.end(ok));
                lines
            }
            _ => Vec::new(),
        }
    }

    fn set_phase(&mut self, name: &str, state: ImagePhase) -> Vec<Line> {
        if let Some((_, known)) = self.listed.get_mut(name) {
            *known = state;
        }
        match state {
            ImagePhase::Failed | ImagePhase::Damaged => vec![Line(
                Level::ERROR,
                format!(
                    "Limit number of retries reached. The image {} could not be pulled.",
                    Printable(name)
                ),
            )],
            _ => Vec::new(),
        }
    }

    fn not_specified(&self) -> Vec<Line> {
        let lines = [
            (
                RequesterKind::Release,
                "Release index is not specified. Release images will not be pre-cached",
            ),
            (
                RequesterKind::Operator,
                "Operators index is not specified. Operators won't be pre-cached",
            ),
        ];
        let missing = lines
            .into_iter()
            .filter(|(wanted, _)| !self.listed.values().any(|(requester, _)| requester == wanted));
        missing
            .map(|(_, text)| Line(Level::INFO, text.to_owned()))
            .collect()
    }

    /// The images of a list, sorted by name like the output of `sort -u` in the scripts, without excluded ones.
    fn of(&self, list: List) -> Vec<(&str, ImagePhase)> {
        let of_list = self
            .listed
            .iter()
            .filter(|(_, (requester, state))| List::of(*requester) == list && *state != ImagePhase::Excluded);
        of_list
            .map(|(name, (_, state))| (name.as_str(), *state))
            .collect()
    }

    /// The scripts log "Pulling" when they start an image. Here all pending images start now and share the link.
    fn start(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        if std::mem::replace(&mut self.started, true) {
            return lines;
        }
        for list in List::ALL {
            let images = self.of(list);
            if !images.is_empty() {
                let text = format!("Image pre-caching starting for {}", list.name());
                lines.push(Line(Level::INFO, text));
            }
            for (at, (name, state)) in images.iter().enumerate() {
                if *state == ImagePhase::Pending {
                    let text = format!("Pulling {} [{}/{}]", Printable(name), at + 1, images.len());
                    lines.push(Line(Level::INFO, text));
                }
            }
        }
        lines
    }

    /// `ok`: whether every image is in the store, and every operator's images are known.
    fn end(&self, ok: bool) -> Vec<Line> {
        let mut lines = Vec::new();
        for list in List::ALL {
            let images = self.of(list);
            // If the images of a release or an operator are unknown, the list is not complete.
            let is_complete = is_here(&images)
                && match list {
                    List::Additional => true,
                    List::Platform => !self.unknown && (ok || !is_here(&self.of(List::Additional))),
                };
            if images.is_empty() {
                continue;
            }
            lines.push(match is_complete {
                true => Line(
                    Level::INFO,
                    format!("Image pre-caching complete for {}", list.name()),
                ),
                false => Line(
                    Level::ERROR,
                    format!(
                        "One or more images were not pre-cached successfully for {}",
                        list.name()
                    ),
                ),
            });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::report::ImageLabel;

    fn listed(name: &str, requester: RequesterKind) -> Event {
        Event::ImageListed {
            name: name.to_owned(),
            label: ImageLabel::new(None, name),
            requester,
            bytes: 1,
        }
    }

    fn done(name: &str, state: ImagePhase) -> Event {
        Event::ImageDone {
            name: name.to_owned(),
            state,
            reason: None,
        }
    }

    fn ended(step: Step, ok: bool) -> Event {
        Event::StepEnded {
            step,
            ok,
            reason: "AsExpected",
            message: String::new(),
        }
    }

    fn logged(events: impl IntoIterator<Item = Event>) -> Vec<String> {
        let mut images = Images::default();
        let lines = events.into_iter().flat_map(|event| images.note(event));
        lines.map(|Line(level, text)| format!("{level} {text}")).collect()
    }

    #[test]
    fn a_run_is_logged_like_by_the_scripts() {
        use ImagePhase::{Excluded, Failed, Present, Pulled};
        use RequesterKind::{Additional, Release};
        let lines = logged([
            listed("r/release", Release),
            listed("x/add", Additional),
            ended(Step::Spec, true),
            listed("r/b", Release),
            listed("r/a", Release),
            listed("r/no", Release),
            done("r/no", Excluded),
            done("r/release", Present),
            Event::StepStarted(Step::Pull),
            done("r/a", Pulled),
            done("r/b", Pulled),
            done("x/add", Failed),
            ended(Step::Verify, false),
        ]);
        assert_eq!(
            lines,
            [
                "INFO Operators index is not specified. Operators won't be pre-cached",
                "INFO Image pre-caching starting for platform-images",
                "INFO Pulling r/a [1/3]",
                "INFO Pulling r/b [2/3]",
                "INFO Image pre-caching starting for additional-images",
                "INFO Pulling x/add [1/1]",
                "ERROR Limit number of retries reached. The image x/add could not be pulled.",
                "INFO Image pre-caching complete for platform-images",
                "ERROR One or more images were not pre-cached successfully for additional-images",
            ]
        );
    }

    #[test]
    fn a_list_is_not_complete_while_operators_are_not_known() {
        let lines = logged([
            listed("o/index", RequesterKind::Operator),
            ended(Step::Spec, true),
            done("o/index", ImagePhase::Present),
            ended(Step::Verify, false),
        ]);
        assert_eq!(
            lines,
            [
                "INFO Release index is not specified. Release images will not be pre-cached",
                "INFO Image pre-caching starting for platform-images",
                "ERROR One or more images were not pre-cached successfully for platform-images",
            ]
        );
    }

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_line_has_the_format_of_the_scripts() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer()
            .event_format(TalmFormat)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), || {
            tracing::error!("not enough space\nhint: more");
            tracing::warn!(step = 3, "odd");
            tracing::info!("fine");
            tracing::debug!("deep");
        });
        let bytes = written.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let pattern = fancy_regex::Regex::new(
            r"^upgrades\.pre-cache \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 (\[(ERROR|INFO|DEBUG)\]: .*)$",
        )
        .expect("a pattern");
        let rests: Vec<_> = text
            .lines()
            .map(|line| match pattern.captures(line) {
                Ok(Some(parts)) => parts[1].to_owned(),
                other => panic!("{line}: {other:?}"),
            })
            .collect();
        assert_eq!(
            rests,
            [
                "[ERROR]: not enough space",
                "[ERROR]: hint: more",
                "[INFO]: warning: odd step=3",
                "[INFO]: fine",
                "[DEBUG]: deep",
            ]
        );
    }
}
