//! Prints the plan as a table for people, 100 columns wide.
//!
//! Names are shortened, because the first digits of a digest identify an image. Reasons are not: half an error explains
//! nothing.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;

use super::plan_json::action_of;
use super::{ImageAction, LayerAction, Plan, PlanTotals, PlannedImage};
use crate::registry::LimitSettings;
use crate::report::{OperatorReport, OperatorState, Printable, Size, Span};

/// Together with the columns of numbers and the gaps, 100.
const REQUESTER_WIDTH: usize = 26;
const NAME_WIDTH: usize = 36;

/// Digits of a digest that are shown, as podman does.
const SHORT_DIGEST: usize = 12;

/// Rates of typical links in Mbit/s, for the time estimate; the rate of the site's own link is not known before the run.
/// `--limit-rate` lowers them.
const RATES: [u64; 2] = [20, 100];

impl Plan {
    /// The table, then the operators that no catalog has, then the totals, then `space`, the result of the space check, if it
    /// is not empty. Times are calculated from `now`, because `limit` may depend on the time of day.
    pub fn table(
        &self,
        operators: &[OperatorReport],
        space: &str,
        limit: &LimitSettings,
        now: Timestamp,
    ) -> String {
        let mut table = String::new();
        row(
            &mut table,
            "ACTION",
            "SOURCE",
            "IMAGE",
            ["FETCH", "SHARE", "REUSE", "SIZE"],
        );
        for image in &self.images {
            image_rows(&mut table, image);
        }
        for image in &self.excluded {
            row(
                &mut table,
                "exclude",
                &image.requester.to_string(),
                &image.reference.to_string(),
                ["-"; 4],
            );
            line(&mut table, format_args!("        {}", Printable(&image.reason)));
        }
        for operator in operators {
            operator_rows(&mut table, operator);
        }
        totals(&mut table, &self.totals, limit, now);
        if !space.is_empty() {
            table.push('\n');
            table.push_str(space.trim_end());
            table.push('\n');
        }
        table
    }
}

fn totals(table: &mut String, totals: &PlanTotals, limit: &LimitSettings, now: Timestamp) {
    line(
        table,
        format_args!(
            "\nimages:    {} requested: {} present, {} to pull, {} failed; {} excluded",
            totals.images_wanted,
            totals.images_present,
            totals.images_to_pull,
            totals.images_failed,
            totals.images_excluded
        ),
    );
    line(
        table,
        format_args!(
            "layers:    {} to fetch, {} to reuse",
            totals.layers_to_fetch, totals.layers_to_reuse
        ),
    );
    line(
        table,
        format_args!(
            "to fetch:  {} in {} blobs, the largest {}; {} already in the spool",
            Size(totals.bytes_to_fetch),
            totals.blobs_to_fetch,
            Size(totals.largest_layer),
            Size(totals.bytes_in_spool)
        ),
    );
    if totals.bytes_to_fetch > 0 {
        let [slow, fast] = RATES.map(|rate| time_at(rate, totals.bytes_to_fetch, limit, now));
        let [slower, faster] = RATES;
        let times = match slow == fast && !limit.rate.is_unlimited() {
            true => format!("{} at the limit", Span(slow)),
            false => format!(
                "{} at {slower} Mbit/s, {} at {faster} Mbit/s",
                Span(slow),
                Span(fast)
            ),
        };
        line(table, format_args!("time:      {times}"));
    }
    if !limit.rate.is_unlimited() {
        line(table, format_args!("limit:     {}", limit.describe(now)));
    }
    if limit.rate.has_windows() {
        line(table, format_args!("           {}", limit.rate));
    }
    let guessed = match totals.unpacked_guessed {
        0 => String::new(),
        bytes => format!(", {} of it estimated with a usual ratio", Size(bytes)),
    };
    let (about, least) = match totals.unpacked_at_least {
        0 => ("about", String::new()),
        bytes => (
            "at least",
            format!(", {} of it stated by gzip modulo 4 GiB", Size(bytes)),
        ),
    };
    line(
        table,
        format_args!(
            "unpacked:  {about} {}{guessed}{least}",
            Size(totals.unpacked_estimate)
        ),
    );
}

/// Time at a rate in Mbit/s, or at the limit where that is lower, in whole seconds. Leaves out headers.
fn time_at(rate: u64, bytes: u64, limit: &LimitSettings, now: Timestamp) -> Duration {
    let lasts = limit.transfer_time(bytes, rate * 1_000_000, now);
    Duration::from_secs(lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0))
}

fn image_rows(table: &mut String, image: &PlannedImage) {
    let requester = match image.requesters.as_slice() {
        [] => String::new(),
        [requester] => requester.to_string(),
        [requester, others @ ..] => format!("{requester} (+{})", others.len()),
    };
    let cells = match image.action {
        ImageAction::Pull(_) => [
            image.count_layers(LayerAction::Fetch).to_string(),
            image.count_layers(LayerAction::Share).to_string(),
            image.count_layers(LayerAction::Reuse).to_string(),
            Size(image.bytes).to_string(),
        ],
        ImageAction::Present | ImageAction::Failed(_) => ["-"; 4].map(str::to_owned),
    };
    row(
        table,
        action_of(&image.action),
        &requester,
        &image.reference.to_string(),
        cells.each_ref().map(String::as_str),
    );
    if let ImageAction::Failed(reason) = &image.action {
        line(table, format_args!("        {}", Printable(reason)));
    }
}

fn operator_rows(table: &mut String, operator: &OperatorReport) {
    if operator.state != OperatorState::Found {
        row(table, "failed", "operator", &operator.name(), ["-"; 4]);
        let reason = operator.reason.as_deref().unwrap_or("its catalog was not read");
        line(table, format_args!("        {}", Printable(reason)));
    }
}

fn row(
    table: &mut String,
    action: &str,
    requester: &str,
    name: &str,
    [fetch, share, reuse, size]: [&str; 4],
) {
    let requester = shorten_end(&Printable(requester).to_string(), REQUESTER_WIDTH);
    let name = shorten_name(&Printable(name).to_string(), NAME_WIDTH);
    line(
        table,
        format_args!(
            "{action:<7} {requester:<REQUESTER_WIDTH$} {name:<NAME_WIDTH$} {fetch:>5} {share:>5} {reuse:>5} {size:>10}"
        ),
    );
}

fn line(table: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(table, "{text}");
}

/// Cuts the digest to its first digits, then the name from the left.
fn shorten_name(name: &str, width: usize) -> String {
    let name = match name.split_once("@sha256:") {
        Some((repository, digest)) => {
            format!(
                "{repository}@{}",
                digest.chars().take(SHORT_DIGEST).collect::<String>()
            )
        }
        None => name.to_owned(),
    };
    let length = name.chars().count();
    if length <= width {
        return name;
    }
    let kept = name.chars().skip(length + 1 - width);
    std::iter::once('…').chain(kept).collect()
}

fn shorten_end(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width - 1).chain(std::iter::once('…')).collect()
}
