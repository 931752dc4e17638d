//! Defines the order in which an upgrade needs the images of a release.

use super::release_manifests::ReleaseManifests;

/// The sandbox of every pod. No manifest names it.
const POD: &str = "pod";

/// When an upgrade needs an image of the release, by its first use; smaller is sooner. Images of one rank have no order,
/// because the components of one level are installed in parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpgradeRank {
    /// Every new pod needs it.
    Pod,
    /// The CVO waits for each run level before the next one.
    Level(u32),
    /// Only manifests without a run level name it.
    WithoutLevel,
    /// No manifest names it.
    Unnamed,
}

impl ReleaseManifests {
    /// When an upgrade needs the image with this tag.
    pub fn upgrade_rank(&self, tag: &str) -> UpgradeRank {
        if tag == POD {
            return UpgradeRank::Pod;
        }
        match self.uses(tag).first() {
            None => UpgradeRank::Unnamed,
            Some(first) => first.level.map_or(UpgradeRank::WithoutLevel, UpgradeRank::Level),
        }
    }
}
