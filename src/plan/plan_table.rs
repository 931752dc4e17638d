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

/// The widths of the columns with text. Together with the columns of numbers and the gaps, 100.
struct Columns {
    requester: usize,
    name: usize,
    /// Whether there is a column with the bytes without deltas, which takes 11.
    has_whole: bool,
}

impl Columns {
    fn of(plan: &Plan) -> Self {
        match plan.totals.bytes_saved > 0 {
            true => Self {
                requester: 22,
                name: 29,
                has_whole: true,
            },
            false => Self {
                requester: 26,
                name: 36,
                has_whole: false,
            },
        }
    }
}

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
        let columns = Columns::of(self);
        columns.row(
            &mut table,
            "ACTION",
            "SOURCE",
            "IMAGE",
            ["FETCH", "SHARE", "REUSE", "SIZE", "WHOLE"],
        );
        for image in &self.images {
            image_rows(&mut table, &columns, image);
        }
        for image in &self.excluded {
            columns.row(
                &mut table,
                "exclude",
                &image.requester.to_string(),
                &image.reference.to_string(),
                ["-"; 5],
            );
            line(&mut table, format_args!("        {}", Printable(&image.reason)));
        }
        for operator in operators {
            operator_rows(&mut table, &columns, operator);
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
    if totals.bytes_saved > 0 {
        line(
            table,
            format_args!(
                "deltas:    {} saved: {} instead of {}; {} of the layers are made from deltas",
                Size(totals.bytes_saved),
                Size(totals.bytes_to_fetch),
                Size(totals.bytes_whole),
                totals.layers_from_deltas
            ),
        );
    }
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

fn image_rows(table: &mut String, columns: &Columns, image: &PlannedImage) {
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
            Size(image.bytes_whole).to_string(),
        ],
        ImageAction::Present | ImageAction::Failed(_) => ["-"; 5].map(str::to_owned),
    };
    columns.row(
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

fn operator_rows(table: &mut String, columns: &Columns, operator: &OperatorReport) {
    if operator.state != OperatorState::Found {
        columns.row(table, "failed", "operator", &operator.name(), ["-"; 5]);
        let reason = operator.reason.as_deref().unwrap_or("its catalog was not read");
        line(table, format_args!("        {}", Printable(reason)));
    }
}

impl Columns {
    fn row(
        &self,
        table: &mut String,
        action: &str,
        requester: &str,
        name: &str,
        [fetch, share, reuse, size, whole]: [&str; 5],
    ) {
        let (requester_width, name_width) = (self.requester, self.name);
        let requester = shorten_end(&Printable(requester).to_string(), requester_width);
        let name = shorten_name(&Printable(name).to_string(), name_width);
        let whole = match self.has_whole {
            true => format!(" {whole:>10}"),
            false => String::new(),
        };
        line(
            table,
            format_args!(
                "{action:<7} {requester:<requester_width$} {name:<name_width$} {fetch:>5} {share:>5} {reuse:>5} {size:>10}{whole}"
            ),
        );
    }
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
