//! Reports a creation: a table of the images, and the same as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::oci::Digest;
use crate::registry::Kind;
use crate::report::{API_VERSION, Count, Printable, Size, Span};

/// What a creation did.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreationReport {
    api_version: &'static str,
    kind: &'static str,
    /// One for each old release, and for each pair of images.
    pub indexes: Vec<IndexReport>,
    /// The sums.
    pub totals: CreationTotals,
}

/// The deltas from one release, or image, to another.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IndexReport {
    /// The old release.
    pub from: String,
    /// The new release.
    pub to: String,
    /// The tag of the index.
    pub tag: String,
    /// Digest of the index; `None` if no image has deltas.
    pub digest: Option<Digest>,
    /// Images that both releases have.
    pub images_equal: usize,
    /// New images whose layers the old release or other images have.
    pub images_shared: usize,
    /// All other images.
    pub images: Vec<ImageOutcome>,
}

/// How an image ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageState {
    /// Deltas were created and published.
    Created,
    /// An earlier run published its deltas, or found that there is no worthwhile one.
    Present,
    /// There is no worthwhile delta.
    Skipped,
    /// Its deltas could not be created.
    Failed,
}

/// Why files of an old image make a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceReason {
    /// It has the same name in its release.
    Name,
    /// It was built from the same source, as its labels state.
    Source,
    /// It has the same base layers.
    Base,
    /// It has files that the first old image lacks.
    Files,
}

/// An old image whose files deltas read.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceImage {
    /// Its tag in the payload.
    pub name: String,
    /// Its reference by digest.
    pub reference: String,
    /// Why it serves.
    pub reason: SourceReason,
}

/// One image.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageOutcome {
    /// Its tag in the payload.
    pub name: String,
    /// Its reference by digest.
    pub reference: String,
    /// How it ended.
    pub state: ImageState,
    /// The old images, the one that all deltas may read first; empty if none serves.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub old_images: Vec<SourceImage>,
    /// How many layers needed a delta.
    pub layers: usize,
    /// Bytes of their blobs.
    pub bytes_whole: u64,
    /// Bytes that a node downloads instead: the smallest delta of each layer, or its blob. Unknown if this run created
    /// nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_delta: Option<u64>,
    /// The same with deltas for every program only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_standard: Option<u64>,
    /// Time for comparing and compressing.
    pub seconds: f64,
    /// Why layers have no delta, or the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    /// What the failure means for the exit code.
    #[serde(skip)]
    pub failure: Option<Kind>,
}

/// The sums over all images.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CreationTotals {
    /// Images with new deltas.
    pub created: usize,
    /// Images that an earlier run has dealt with.
    pub present: usize,
    /// Images without a worthwhile delta.
    pub skipped: usize,
    /// Images that failed.
    pub failed: usize,
    /// Bytes of the blobs of new layers, of images that this run created or skipped.
    pub bytes_whole: u64,
    /// Bytes that a node downloads for them.
    pub bytes_delta: u64,
    /// The duration of the run.
    pub seconds: f64,
}

impl CreationReport {
    pub(super) fn new(indexes: Vec<IndexReport>, elapsed: Duration) -> Self {
        let mut totals = CreationTotals {
            seconds: elapsed.as_secs_f64(),
            ..CreationTotals::default()
        };
        for image in indexes.iter().flat_map(|index| &index.images) {
            totals.add(image);
        }
        Self {
            api_version: API_VERSION,
            kind: "DeltaCreation",
            indexes,
            totals,
        }
    }

    /// The report as JSON, with a line end.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("strings, numbers and lists always serialise") + "\n"
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for index in &self.indexes {
            index.write(&mut text);
        }
        let totals = &self.totals;
        let _ = writeln!(
            text,
            "{} created, {} present, {} skipped, {} failed",
            Count(totals.created, "image"),
            totals.present,
            totals.skipped,
            totals.failed
        );
        if totals.bytes_whole > 0 {
            let _ = writeln!(
                text,
                "{} instead of {} ({})",
                Size(totals.bytes_delta),
                Size(totals.bytes_whole),
                percent(totals.bytes_delta, totals.bytes_whole)
            );
        }
        let _ = writeln!(text, "took {}", Span(Duration::from_secs_f64(totals.seconds)));
        text
    }
}

impl CreationTotals {
    fn add(&mut self, image: &ImageOutcome) {
        let count = match image.state {
            ImageState::Created => &mut self.created,
            ImageState::Present => &mut self.present,
            ImageState::Skipped => &mut self.skipped,
            ImageState::Failed => &mut self.failed,
        };
        *count += 1;
        if let Some(bytes) = image.bytes_delta {
            self.bytes_whole += image.bytes_whole;
            self.bytes_delta += bytes;
        }
    }
}

impl IndexReport {
    fn write(&self, text: &mut String) {
        let _ = writeln!(text, "{} → {}", Printable(&self.from), Printable(&self.to));
        let name = |image: &ImageOutcome| Printable(&image.name).to_string();
        let width = self.images.iter().map(|image| name(image).chars().count()).max();
        let width = width.unwrap_or_default().max("image".len());
        if !self.images.is_empty() {
            let _ = writeln!(
                text,
                "  {:width$}  {:>11}  {:>11}  {:>7}  {:>12}",
                "image", "whole", "delta", "", "time"
            );
        }
        let mut images: Vec<&ImageOutcome> = self.images.iter().collect();
        images.sort_by_key(|image| std::cmp::Reverse(image.bytes_whole));
        for image in images {
            let (delta, ratio) = match image.bytes_delta {
                Some(bytes) => (Size(bytes).to_string(), percent(bytes, image.bytes_whole)),
                None => ("-".to_owned(), String::new()),
            };
            let time = Span(Duration::from_secs_f64(image.seconds)).to_string();
            let _ = write!(
                text,
                "  {:width$}  {:>11}  {delta:>11}  {ratio:>7}  {time:>12}",
                name(image),
                Size(image.bytes_whole).to_string(),
            );
            let state = match image.state {
                ImageState::Present => Some("present"),
                ImageState::Failed => Some("failed"),
                ImageState::Created | ImageState::Skipped => None,
            };
            let why_not = image.why_not.as_deref().map(|why| Printable(why).to_string());
            let state: Vec<String> = state.map(str::to_owned).into_iter().chain(why_not).collect();
            let sources = image.old_images.iter().filter_map(SourceImage::note);
            let mut notes: Vec<String> = sources.collect();
            notes.extend((!state.is_empty()).then(|| state.join(": ")));
            let _ = match notes.is_empty() {
                true => writeln!(text),
                false => writeln!(text, "  {}", notes.join("; ")),
            };
        }
        let _ = writeln!(
            text,
            "  {} in both releases, {} of known layers; index: {}",
            Count(self.images_equal, "image"),
            self.images_shared,
            match &self.digest {
                Some(digest) => format!("{digest}, tag {}", self.tag),
                None => "none".to_owned(),
            }
        );
    }
}

impl SourceImage {
    /// For people; nothing about the usual case.
    fn note(&self) -> Option<String> {
        let name = Printable(&self.name);
        match self.reason {
            SourceReason::Name => None,
            SourceReason::Source => Some(format!("made from {name}, which has the same source")),
            SourceReason::Base => Some(format!("made from {name}, which has the same base layers")),
            SourceReason::Files => Some(format!("also made from {name}, which has some of its files")),
        }
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => String::new(),
        whole => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}
