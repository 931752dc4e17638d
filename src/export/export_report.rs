//! Reports an export: a summary for people, and the same with every image as JSON.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::exit_code::Failure;
use crate::oci::Digest;
use crate::report::{API_VERSION, Count, OperatorReport, OperatorState, Printable, Size, Span};

/// What an export did.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportReport {
    pub(super) api_version: &'static str,
    pub(super) kind: &'static str,
    /// The directory or the tar.
    pub output: String,
    /// Whether everything that the version spec needs is in it.
    pub is_complete: bool,
    /// The release's version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// The release whose blobs are left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Every image, in the order in which they are named.
    pub images: Vec<ExportedImageReport>,
    /// Every requested operator.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operators: Vec<OperatorReport>,
    /// The sums.
    pub totals: ExportTotals,
    /// What failed, for the exit code.
    #[serde(skip)]
    pub failures: Vec<Failure>,
}

/// How an image ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExportState {
    /// It is in the output, apart from what is left out.
    Exported,
    /// It is not, or is incomplete.
    Failed,
}

/// One image.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportedImageReport {
    /// Its name in the payload, or a short form of its reference.
    pub name: String,
    /// Its reference as it is named.
    pub reference: String,
    /// Digest of its index or manifest, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// How it ended.
    pub state: ExportState,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The sums over all images.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportTotals {
    /// Images in the output.
    pub exported: usize,
    /// Images that failed.
    pub failed: usize,
    /// Images of the release that the version spec excludes.
    pub excluded: usize,
    /// Distinct blobs of layers, without those that are left out.
    pub blobs: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, in the output before this export.
    pub bytes_present: u64,
    /// Bytes of blobs that are left out, because the nodes have them.
    pub bytes_left_out: u64,
    /// Bytes of blobs that this export received.
    pub bytes_received: u64,
    /// The duration of the export.
    pub seconds: f64,
}

impl ExportReport {
    /// The kind of the document.
    pub(super) const KIND: (&'static str, &'static str) = (API_VERSION, "Export");

    /// The report as JSON, with a line end.
    pub fn json(&self) -> String {
        let json = serde_json::to_string_pretty(self);
        json.expect("strings, numbers and lists always serialise") + "\n"
    }

    /// The report for people.
    pub fn text(&self) -> String {
        let (mut text, totals) = (String::new(), &self.totals);
        let failed = self
            .images
            .iter()
            .filter(|image| image.state == ExportState::Failed);
        for image in failed {
            let reason = image.reason.as_deref().unwrap_or_default();
            let _ = writeln!(
                text,
                "failed: {}: {}",
                Printable(&image.reference),
                Printable(reason)
            );
        }
        let lost = self
            .operators
            .iter()
            .filter(|row| row.state == OperatorState::Failed);
        for row in lost {
            let reason = row.reason.as_deref().unwrap_or_default();
            let _ = writeln!(
                text,
                "failed: operator {}: {}",
                Printable(&row.name()),
                Printable(reason)
            );
        }
        let _ = writeln!(
            text,
            "{} exported to `{}`, {} failed, {} excluded",
            Count(totals.exported, "image"),
            Printable(&self.output),
            totals.failed,
            totals.excluded
        );
        let _ = write!(text, "{} in {}", Size(totals.bytes), Count(totals.blobs, "blob"));
        if totals.bytes_present > 0 {
            let _ = write!(text, ", {} of it there before", Size(totals.bytes_present));
        }
        let _ = writeln!(text, ", {} received", Size(totals.bytes_received));
        if let Some(since) = &self.since {
            let _ = writeln!(
                text,
                "{} left out, because release {} has them",
                Size(totals.bytes_left_out),
                Printable(since)
            );
        }
        if !self.is_complete {
            let _ = writeln!(text, "the export is incomplete; another run continues it");
        }
        let _ = writeln!(text, "took {}", Span(Duration::from_secs_f64(totals.seconds)));
        text
    }
}
