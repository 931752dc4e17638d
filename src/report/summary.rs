//! Summarises a report in words, for standard output.

use std::fmt::Write as _;

use super::conditions::Status;
use super::{
    Condition, Count, ImagePhase, OperatorState, Phase, Printable, Report, RequesterKind, Size, Span, Step,
};

/// Pending images that are listed one by one: after an outage all of them wait for the same thing.
const WAITING: usize = 10;

/// Below a heading of the summary.
const INDENT: &str = "           ";

/// Each line printable, the second and later ones indented: a hint has its own line.
fn indented(text: &str, indent: &str) -> String {
    let lines: Vec<String> = text.lines().map(|line| Printable(line).to_string()).collect();
    lines.join(&format!("\n{indent}"))
}

impl Report {
    /// Several lines; `meaning` is the meaning of the exit code.
    pub fn summary(&self, meaning: &str) -> String {
        let mut text = self.headline();
        text.push('\n');
        let totals = &self.totals;
        let pending = totals.images_missing().saturating_sub(totals.images_failed);
        let more = self.unlisted().map_or("", |_| " and more not known");
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "images:    {} pulled, {} present before, {} failed, {pending} pending{more}; {} excluded",
            totals.images_pulled,
            totals.images_present,
            totals.images_failed,
            self.in_state(ImagePhase::Excluded).count()
        );
        if totals.operators_wanted > 0 {
            let (wanted, found, failed) = (
                totals.operators_wanted,
                totals.operators_found,
                totals.operators_failed,
            );
            let _ = writeln!(
                text,
                "operators: {found} found, {failed} failed, {} pending",
                wanted.saturating_sub(found + failed)
            );
        }
        let _ = writeln!(
            text,
            "layers:    {} pulled, {} present before",
            totals.layers_pulled, totals.layers_reused
        );
        let _ = writeln!(
            text,
            "received:  {} of {} planned in {}; {} more were in the spool",
            Size(totals.bytes_fetched),
            Size(totals.bytes_planned),
            Span(self.complete_time.since(self.start_time)),
            Size(totals.bytes_resumed)
        );
        for medium in &self.media {
            let _ = writeln!(text, "medium:    {}", indented(&medium.to_string(), INDENT));
        }
        if totals.bytes_saved > 0 {
            let images = self.images.iter().filter(|image| image.delta.is_some()).count();
            let _ = writeln!(
                text,
                "deltas:    {} saved, for {}",
                Size(totals.bytes_saved),
                Count(images, "image")
            );
        }
        if totals.layers_from_store > 0 {
            let _ = writeln!(
                text,
                "copied:    {} from others in the store, which saved {}",
                Count(totals.layers_from_store as usize, "layer"),
                Size(totals.bytes_from_store)
            );
        }
        let mut fallbacks = self.images.iter().filter_map(|image| {
            let reason = image.fallback_reason.as_ref()?;
            Some((&image.name, reason))
        });
        if let Some((name, reason)) = fallbacks.next() {
            let images = 1 + fallbacks.count();
            let _ = writeln!(
                text,
                "fallback:  planned sources for {} could not be used; {}:\n{INDENT}{}",
                Count(images, "image"),
                Printable(name),
                indented(reason, INDENT)
            );
        }
        if let Some(limit) = &self.limit_rate {
            let _ = writeln!(text, "limit:     {}", Printable(&limit.at_start));
        }
        for problem in self.problems() {
            let _ = writeln!(text, "{}", indented(&problem, "  "));
        }
        for (name, reason) in self.failures() {
            let _ = writeln!(
                text,
                "failed:    {}\n{INDENT}{}",
                Printable(&name),
                indented(reason, INDENT)
            );
        }
        let mut waiting = self.waiting();
        for (name, reason) in waiting.by_ref().take(WAITING) {
            let _ = writeln!(
                text,
                "pending:   {}\n{INDENT}{}",
                Printable(name),
                indented(reason, INDENT)
            );
        }
        match waiting.count() {
            0 => {}
            more => {
                let _ = writeln!(text, "pending:   {more} more; the report has their reasons");
            }
        }
        if let Some(upgrade) = &self.upgrade {
            text.push_str(&upgrade.lines());
        }
        text.push_str(&self.warned());
        let _ = writeln!(text, "exit code {}: {meaning}", self.exit_code);
        text
    }

    /// The warnings, each with its hint below it.
    pub fn warned(&self) -> String {
        let warnings = self.warnings.iter();
        warnings
            .map(|warning| format!("warning:   {}\n", indented(warning, INDENT)))
            .collect()
    }

    /// The cause of an early stop and the first failure, on one line: the failed step, or else the failed image. `None` if
    /// there is neither.
    pub fn first_reason(&self) -> Option<String> {
        let failure = |(name, reason): (String, &str)| format!("{}: {}", Printable(&name), Printable(reason));
        let first = self
            .problems()
            .next()
            .map(|problem| Printable(&problem).to_string());
        let first = first.or_else(|| self.failures().next().map(failure));
        let waiting = || self.waiting().next();
        let first = first.or_else(|| waiting().map(|(name, why)| failure((name.to_owned(), why))));
        let reasons: Vec<String> = self.reason.clone().into_iter().chain(first).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// One line: the phase, how many images are in the store, and what deltas saved.
    pub fn headline(&self) -> String {
        let result = self.result();
        match self.totals.bytes_saved {
            0 => result,
            saved => format!(
                "{result}; received {} instead of {}",
                Size(self.totals.bytes_fetched),
                Size(self.totals.bytes_fetched.saturating_add(saved))
            ),
        }
    }

    fn result(&self) -> String {
        let (here, wanted) = (self.totals.images_here(), self.totals.images_wanted);
        let (phase, failed) = (self.phase, self.totals.operators_failed);
        let damaged = self.in_state(ImagePhase::Damaged).count() as u64;
        match (self.totals.images_missing(), self.unlisted()) {
            _ if wanted == 0 && phase == Phase::Succeeded => {
                let mut conditions = self.conditions.iter();
                let why = conditions.find(|it| it.reason == Condition::NOTHING_REQUESTED);
                let why = why.map_or("no image is requested", |it| it.message.as_str());
                format!("{phase:?}: {}", Printable(why))
            }
            _ if wanted == 0 => format!("{phase:?}: the run ended before any image was checked"),
            (_, Some(why)) if wanted == 1 => format!("{phase:?}: {why}"),
            (_, Some(why)) => {
                format!("{phase:?}: {why}; of the {wanted} known images {here} are in the store")
            }
            (0, None) if failed > 0 => format!(
                "{phase:?}: {here} of {wanted} images are in the store, and {} failed",
                Count(failed as usize, "operator")
            ),
            (0, None) if wanted == 1 => format!("{phase:?}: the image is in the store"),
            (0, None) => format!("{phase:?}: all {wanted} images are in the store"),
            (missing, None) if damaged == 0 => {
                format!("{phase:?}: {here} of {wanted} images are in the store, {missing} missing")
            }
            (missing, None) => {
                let missing = match missing.saturating_sub(damaged) {
                    0 => String::new(),
                    missing => format!(", {missing} missing"),
                };
                format!(
                    "{phase:?}: {here} of {wanted} images are undamaged in the store{missing}, {damaged} damaged"
                )
            }
        }
    }

    /// Why more images may be requested than are listed, if that is possible.
    fn unlisted(&self) -> Option<&'static str> {
        if self.phase == Phase::Succeeded {
            return None;
        }
        let status = |step| {
            self.conditions
                .iter()
                .find(|it| it.step == step)
                .map(|it| it.status)
        };
        let mut release = self
            .images
            .iter()
            .filter(|it| it.source == Some(RequesterKind::Release));
        // If it is the only one: the images that it names are listed as soon as they are known.
        let release = match (release.next(), release.next()) {
            (Some(release), None) => Some(release.state),
            _ => None,
        };
        let has_index = self
            .images
            .iter()
            .any(|it| it.source == Some(RequesterKind::Operator));
        match (release, status(Step::Release)) {
            (Some(state), Some(Status::False)) if state.is_failure() => {
                Some("the release image cannot be read, so the images that it names are unknown")
            }
            (Some(_), Some(Status::Unknown | Status::False)) => {
                Some("the release image is incomplete, and it names more images")
            }
            _ if has_index && status(Step::Operators) == Some(Status::Unknown) => {
                Some("the operator indexes are incomplete, and they name more images")
            }
            _ => None,
        }
    }

    /// The failed steps, with reason and message; a message may have several lines.
    pub(super) fn problems(&self) -> impl Iterator<Item = String> {
        let failed = self
            .conditions
            .iter()
            .filter(|condition| condition.status == Status::False);
        failed.map(|condition| {
            format!(
                "{:?}: {}: {}",
                condition.step, condition.reason, condition.message
            )
        })
    }

    /// The operators and images that failed, with the reason.
    pub(super) fn failures(&self) -> impl Iterator<Item = (String, &str)> {
        let operators = self.operators.iter();
        let operators = operators
            .filter(|operator| operator.state == OperatorState::Failed)
            .map(|operator| (format!("operator {}", operator.name()), &operator.reason));
        let images = self.images.iter().filter(|image| image.state.is_failure());
        let images = images.map(|image| (image.name.clone(), &image.reason));
        operators
            .chain(images)
            .map(|(name, reason)| (name, reason.as_deref().unwrap_or("the reason is unknown")))
    }

    /// The pending images, each with what it waited for last, if that is known.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&str, &str)> {
        let pending = self.in_state(ImagePhase::Pending);
        pending.filter_map(|image| Some((image.name.as_str(), image.reason.as_deref()?)))
    }

    fn in_state(&self, state: ImagePhase) -> impl Iterator<Item = &super::ImageReport> {
        self.images.iter().filter(move |image| image.state == state)
    }
}
