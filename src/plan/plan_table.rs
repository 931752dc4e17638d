//! Prints the plan as a table for people, 100 columns wide.
//!
//! If the release's manifests are known, the images of the release have run level and component in place of their names, which
//! differ only in their digests.
//!
//! Names are shortened, because the first digits of a digest identify an image. Reasons are not: half an error explains
//! nothing.

use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;

use super::plan_json::action_of;
use super::release_section;
use super::{ImageAction, LayerAction, Plan, PlannedImage};
use crate::image_request::Requester;
use crate::oci::Reference;
use crate::registry::LimitSettings;
use crate::release::manifests::ReleaseManifests;
use crate::report::{OperatorReport, OperatorState, Printable, Size, Span};

/// The widths of the columns with text. Together with the columns of numbers and the gaps, 100.
struct Columns {
    requester: usize,
    name: usize,
    /// Whether there is a column with the bytes without deltas, which takes 11.
    has_whole: bool,
    /// Whether there is a column with the bytes from media, which takes 11.
    has_media: bool,
}

impl Columns {
    fn of(plan: &Plan) -> Self {
        let has_whole = plan.totals.bytes_saved > 0;
        let has_media = plan.totals.bytes_from_media > 0;
        let (requester, name) = match u8::from(has_whole) + u8::from(has_media) {
            0 => (26, 36),
            1 => (22, 29),
            _ => (17, 23),
        };
        Self {
            requester,
            name,
            has_whole,
            has_media,
        }
    }
}

/// Digits of a digest that are shown, as podman does.
const SHORT_DIGEST: usize = 12;

/// Rates of typical links in Mbit/s, for the time estimate; the rate of the site's own link is not known before the run.
/// `--limit-rate` lowers them.
const RATES: [u64; 2] = [20, 100];

impl Plan {
    /// The table, then the operators that no catalog has, then the totals, then what `manifests` say about the release, then
    /// `space`, the result of the space check, if it is not empty. Times are calculated from `now`, because `limit` may depend
    /// on the time of day.
    pub fn table(
        &self,
        operators: &[OperatorReport],
        manifests: Option<&ReleaseManifests>,
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
            match manifests {
                Some(_) => "LEVEL COMPONENT, OR IMAGE",
                None => "IMAGE",
            },
            ["FETCH", "SHARE", "REUSE", "SIZE", "WHOLE", "MEDIA"],
        );
        for image in &self.images {
            image_rows(&mut table, &columns, manifests, image);
        }
        for image in &self.excluded {
            let size = image
                .bytes
                .map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string());
            columns.row(
                &mut table,
                "exclude",
                &image.requester.to_string(),
                &columns.name(
                    &image.reference,
                    std::slice::from_ref(&image.requester),
                    manifests,
                ),
                ["-", "-", "-", &size, "-", "-"],
            );
            line(&mut table, format_args!("        {}", Printable(&image.reason)));
        }
        for operator in operators {
            operator_rows(&mut table, &columns, operator);
        }
        totals(&mut table, self, limit, now);
        if let Some(manifests) = manifests {
            table.push('\n');
            release_section::write(&mut table, manifests);
        }
        if !space.is_empty() {
            table.push('\n');
            table.push_str(space.trim_end());
            table.push('\n');
        }
        table
    }
}

fn totals(table: &mut String, plan: &Plan, limit: &LimitSettings, now: Timestamp) {
    let totals = &plan.totals;
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
    let largest = match totals.blobs_to_fetch {
        0 => String::new(),
        _ => format!(", the largest {}", Size(totals.largest_layer)),
    };
    line(
        table,
        format_args!(
            "to fetch:  {} in {} blobs{largest}; {} already in the spool",
            Size(totals.bytes_to_fetch),
            totals.blobs_to_fetch,
            Size(totals.bytes_in_spool)
        ),
    );
    for (medium, bytes) in plan.bytes_by_medium() {
        let medium = Printable(medium);
        line(table, format_args!("medium:    {} from `{medium}`", Size(bytes)));
    }
    if totals.bytes_saved > 0 {
        let (label, sources) = match (totals.layers_from_deltas, totals.layers_from_chunks) {
            (_, 0) => ("deltas:", "deltas"),
            (0, _) => ("chunks:", "chunks"),
            _ => ("deltas:", "deltas or chunks"),
        };
        line(
            table,
            format_args!(
                "{label}    {} saved: {} instead of {}; {} of the layers are made from {sources}",
                Size(totals.bytes_saved),
                Size(totals.bytes_to_fetch),
                Size(totals.bytes_whole),
                totals
                    .layers_from_deltas
                    .saturating_add(totals.layers_from_chunks),
            ),
        );
    }
    if totals.layers_from_store > 0 {
        line(
            table,
            format_args!(
                "copied:    {} of the layers from others in the store, which saves {}",
                totals.layers_from_store,
                Size(totals.bytes_from_store)
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

fn image_rows(
    table: &mut String,
    columns: &Columns,
    manifests: Option<&ReleaseManifests>,
    image: &PlannedImage,
) {
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
            Size(image.bytes_from_media).to_string(),
        ],
        ImageAction::Present | ImageAction::Failed(_) => ["-"; 6].map(str::to_owned),
    };
    columns.row(
        table,
        action_of(&image.action),
        &requester,
        &columns.name(&image.reference, &image.requesters, manifests),
        cells.each_ref().map(String::as_str),
    );
    if let ImageAction::Failed(reason) = &image.action {
        line(table, format_args!("        {}", Printable(reason)));
    }
}

fn operator_rows(table: &mut String, columns: &Columns, operator: &OperatorReport) {
    if operator.state != OperatorState::Found {
        let name = shorten_name(&Printable(&operator.name()).to_string(), columns.name);
        columns.row(table, "failed", "operator", &name, ["-"; 6]);
        let reason = operator.reason.as_deref().unwrap_or("its catalog was not read");
        line(table, format_args!("        {}", Printable(reason)));
    }
}

impl Columns {
    /// The first use of an image of the release, or the name of another image, as wide as its column.
    fn name(
        &self,
        reference: &Reference,
        requesters: &[Requester],
        manifests: Option<&ReleaseManifests>,
    ) -> String {
        let tags = requesters.iter().filter_map(|requester| match requester {
            Requester::Release { tag } => Some(tag.as_str()),
            _ => None,
        });
        let ranks = manifests.and_then(|manifests| {
            let tag = tags.min_by_key(|tag| manifests.upgrade_rank(tag))?;
            Some(manifests.uses(tag).first())
        });
        let (level, component) = match ranks {
            None => return shorten_name(&Printable(&reference.to_string()).to_string(), self.name),
            Some(None) => (None, "(no manifest names it)"),
            Some(Some(first)) => (first.level, first.component.as_deref().unwrap_or("(unknown)")),
        };
        let level = level.map_or("-".to_owned(), |level| level.to_string());
        shorten_end(&format!("{level:>5} {}", Printable(component)), self.name)
    }

    fn row(
        &self,
        table: &mut String,
        action: &str,
        requester: &str,
        name: &str,
        [fetch, share, reuse, size, whole, media]: [&str; 6],
    ) {
        let (requester_width, name_width) = (self.requester, self.name);
        let requester = shorten_end(&Printable(requester).to_string(), requester_width);
        let whole = match self.has_whole {
            true => format!(" {whole:>10}"),
            false => String::new(),
        };
        let media = match self.has_media {
            true => format!(" {media:>10}"),
            false => String::new(),
        };
        line(
            table,
            format_args!(
                "{action:<7} {requester:<requester_width$} {name:<name_width$} {fetch:>5} {share:>5} {reuse:>5} {size:>10}{whole}{media}"
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
