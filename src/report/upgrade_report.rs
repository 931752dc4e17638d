//! Describes what `verify --for-upgrade` found: a verdict, the state of each image, and what may cause pulls.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Condition, Count, Printable, Size};

/// Lines of the summary are not longer.
const WIDTH: usize = 100;

/// Below a heading of the summary.
const INDENT: usize = 11;

/// Whether an upgrade finds its images in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeReport {
    /// The result.
    pub verdict: Verdict,
    /// Each requested image.
    pub images: Vec<UpgradeImage>,
    /// The images of the release that patterns or `--only-used` leave out and that are not in the store. The upgrade pulls
    /// those that it needs.
    pub left_out: Vec<String>,
    /// What may cause pulls although every image is in the store.
    pub obstacles: Vec<Obstacle>,
    /// The file system of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<UpgradeDisk>,
    /// Where the update takes the operating system from.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub os_images: Vec<OsImageReport>,
}

/// The result in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// Every image is in the store, and the kubelet removes none of them.
    Ready,
    /// Every image is in the store, but the upgrade may have to pull some.
    AtRisk,
    /// An image is missing, damaged or refused.
    NotReady,
}

/// One requested image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeImage {
    /// The normalised reference.
    pub name: String,
    /// What happens to it until the upgrade.
    pub state: UpgradeState,
    /// Why it cannot be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What happens to an image until the upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum UpgradeState {
    /// CRI-O pins it.
    Pinned,
    /// A container has it, running or ended.
    InUse,
    /// It is in an additional image store, where nothing is removed.
    ReadOnly,
    /// The kubelet may remove it.
    Collectable,
    /// The store does not have it.
    Missing,
    /// The store has it, but damaged.
    Damaged,
    /// The signature policy of the node refuses it.
    Refused,
}

/// What may cause pulls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// What kind.
    #[serde(rename = "type")]
    pub kind: ObstacleKind,
    /// For people, with a hint on a line of its own.
    pub message: String,
}

/// The kinds of obstacles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ObstacleKind {
    /// The disk is fuller than the kubelet's threshold.
    DiskLine,
    /// The kubelet removes images that are older than `imageMaximumGCAge`.
    MaximumAge,
    /// PinnedImageSets contain images that CRI-O does not pin yet.
    PinsNotWritten,
    /// The kubelet pulls images again that it did not pull itself.
    PullVerification,
    /// The signature policy of a namespace refuses images.
    NamespacePolicy,
    /// The update downloads the operating system again, which a pin or a name prevents.
    OsImage,
}

/// The file system of the store, as the kubelet counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeDisk {
    /// Used space in percent.
    pub used_percent: u64,
    /// From which percentage on the kubelet removes images.
    pub threshold_percent: u8,
    /// Bytes until then.
    pub headroom: u64,
}

/// Where the update takes an operating system from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OsImageReport {
    /// Its tag in the release.
    pub tag: String,
    /// Where from.
    pub origin: OsImageOrigin,
    /// Compressed bytes of its layers.
    pub bytes: u64,
    /// Why.
    pub message: String,
}

/// Where an update takes the operating system from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum OsImageOrigin {
    /// From the store.
    Store,
    /// It downloads the image again.
    Registry,
    /// That depends on something unknown.
    Unknown,
}

impl Verdict {
    fn words(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::AtRisk => "at risk",
            Self::NotReady => "not ready",
        }
    }
}

impl UpgradeState {
    /// In the order of the summary.
    const ALL: [Self; 7] = [
        Self::Pinned,
        Self::InUse,
        Self::ReadOnly,
        Self::Collectable,
        Self::Missing,
        Self::Damaged,
        Self::Refused,
    ];

    /// Whether a pod cannot use the image as it is.
    pub fn is_unusable(self) -> bool {
        matches!(self, Self::Missing | Self::Damaged | Self::Refused)
    }

    /// Its name and its meaning.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Pinned => ("pinned", "stay in the store"),
            Self::InUse => ("in use", "stay as long as a container has them"),
            Self::ReadOnly => ("read-only", "stay in an additional image store"),
            Self::Collectable => (
                "collectable",
                "may be removed by the kubelet: no pin, no container",
            ),
            Self::Missing => ("missing", "must be pulled"),
            Self::Damaged => ("damaged", "must be pulled again"),
            Self::Refused => ("refused", "may not be used by the node's signature policy"),
        }
    }
}

impl UpgradeReport {
    /// Reason and message of the condition.
    pub fn condition(&self) -> (&'static str, String) {
        let in_state =
            |state: &UpgradeState| self.images.iter().filter(|image| image.state == *state).count();
        let total = self.images.len();
        match self.verdict {
            Verdict::Ready => (
                Condition::AS_EXPECTED,
                format!("{} in the store to stay", Count(total, "image")),
            ),
            Verdict::AtRisk => (
                "AtRisk",
                format!(
                    "{} in the store, {} collectable, {}",
                    Count(total, "image"),
                    in_state(&UpgradeState::Collectable),
                    Count(self.obstacles.len(), "obstacle")
                ),
            ),
            Verdict::NotReady => {
                let unusable = self.images.iter().filter(|image| image.state.is_unusable());
                let message = match unusable.count() {
                    0 => "not every image is known".to_owned(),
                    count => format!("{count} of {} cannot be used", Count(total, "image")),
                };
                ("NotReady", message)
            }
        }
    }

    /// The lines of the summary.
    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        let (_, message) = self.condition();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "upgrade:   {}: {message}", self.verdict.words());
        let mut row = |count: usize, (name, meaning): (&str, &str)| {
            if count > 0 {
                let _ = writeln!(text, "{:INDENT$}{name:<11} {count:>5}  {meaning}", "");
            }
        };
        for state in UpgradeState::ALL {
            let count = self.images.iter().filter(|image| image.state == state).count();
            row(count, state.words());
        }
        row(
            self.left_out.len(),
            ("left out", "pulled by the upgrade if it needs them"),
        );
        if let Some(disk) = &self.disk {
            let _ = writeln!(
                text,
                "disk:      {} % used, {} until the kubelet removes images at {} %",
                disk.used_percent,
                Size(disk.headroom),
                disk.threshold_percent
            );
        }
        for image in &self.os_images {
            let message = format!("`{}` ({}): {}", image.tag, Size(image.bytes), image.message);
            text.push_str(&paragraph("os image:", &message));
        }
        for obstacle in &self.obstacles {
            text.push_str(&paragraph("obstacle:", &obstacle.message));
        }
        text
    }
}

/// The text below a heading, in lines of at most [`WIDTH`] columns, except longer words.
fn paragraph(heading: &str, message: &str) -> String {
    let mut text = String::new();
    let mut lead = heading;
    for line in message.lines() {
        let line = Printable(line).to_string();
        let mut column = 0;
        for word in line.split(' ') {
            let width = word.chars().count();
            if column == 0 {
                let _ = write!(text, "{lead:INDENT$}{word}");
                (lead, column) = ("", INDENT + width);
            } else if column + 1 + width > WIDTH {
                let _ = write!(text, "\n{:INDENT$}{word}", "");
                column = INDENT + width;
            } else {
                let _ = write!(text, " {word}");
                column += 1 + width;
            }
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_a_row_for_each_state_and_short_lines() {
        let image = |state| UpgradeImage {
            name: "quay.io/a/b:1".to_owned(),
            state,
            reason: None,
        };
        let report = UpgradeReport {
            verdict: Verdict::AtRisk,
            images: [
                UpgradeState::Pinned,
                UpgradeState::Collectable,
                UpgradeState::Collectable,
            ]
            .map(image)
            .to_vec(),
            left_out: vec!["quay.io/a/c:1".to_owned()],
            obstacles: vec![Obstacle {
                kind: ObstacleKind::MaximumAge,
                message: format!("{}\nhint: pin", "a word ".repeat(20).trim()),
            }],
            disk: Some(UpgradeDisk {
                used_percent: 62,
                threshold_percent: 85,
                headroom: 1 << 30,
            }),
            os_images: vec![OsImageReport {
                tag: "rhel-coreos".to_owned(),
                origin: OsImageOrigin::Store,
                bytes: 1 << 30,
                message: "the update takes it from the store".to_owned(),
            }],
        };
        let text = report.lines();
        assert_eq!(
            text,
            "upgrade:   at risk: 3 images in the store, 2 collectable, 1 obstacle\n           \
             pinned          1  stay in the store\n           \
             collectable     2  may be removed by the kubelet: no pin, no container\n           \
             left out        1  pulled by the upgrade if it needs them\n\
             disk:      62 % used, 1.0 GiB until the kubelet removes images at 85 %\n\
             os image:  `rhel-coreos` (1.0 GiB): the update takes it from the store\n\
             obstacle:  a word a word a word a word a word a word a word a word a word a word a word a word a\n           \
             word a word a word a word a word a word a word a word\n           \
             hint: pin\n"
        );
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }
}
