//! Defines what is known of the node before the verdict.

use std::collections::HashSet;
use std::time::Duration;

use super::PinPatterns;
use crate::report::{Obstacle, OsImageReport, UpgradeDisk, UpgradeImage, UpgradeState};

/// What is known of the node, its images and its cluster.
#[derive(Debug, Default)]
pub struct NodeFacts {
    /// The requested images.
    pub images: Vec<ImageFacts>,
    /// The names of images that were left out and are not in the store.
    pub left_out: Vec<String>,
    /// Whether the images are known to be all that are requested: no operator and no payload is missing.
    pub is_complete: bool,
    /// What CRI-O pins.
    pub pins: PinPatterns,
    /// The names in PinnedImageSets of the node's pools.
    pub pinned_soon: HashSet<String>,
    /// The file system of the store.
    pub disk: Option<UpgradeDisk>,
    /// The age at which the kubelet removes unused images, if it does.
    pub image_maximum_gc_age: Option<Duration>,
    /// Where the update takes the operating system from.
    pub os_images: Vec<OsImageReport>,
    /// Obstacles that are known already.
    pub obstacles: Vec<Obstacle>,
}

/// What is known of one image.
#[derive(Clone, Debug, Default)]
pub struct ImageFacts {
    /// Its name in the report.
    pub name: String,
    /// Why it cannot be used: missing, damaged or refused.
    pub flaw: Option<(UpgradeState, String)>,
    /// The names in its record.
    pub names: Vec<String>,
    /// Whether it is in an additional image store.
    pub is_read_only: bool,
    /// Whether a container has it.
    pub is_in_use: bool,
}

impl ImageFacts {
    /// Whether it has one of these names.
    pub(super) fn has_name_of(&self, names: &HashSet<String>) -> bool {
        names.contains(&self.name) || self.names.iter().any(|name| names.contains(name))
    }

    pub(super) fn assess(&self, pins: &PinPatterns) -> UpgradeImage {
        let (state, reason) = match &self.flaw {
            Some((state, reason)) => (*state, Some(reason.clone())),
            None if pins.matches(&self.names) => (UpgradeState::Pinned, None),
            None if self.is_read_only => (UpgradeState::ReadOnly, None),
            None if self.is_in_use => (UpgradeState::InUse, None),
            None => (UpgradeState::Collectable, None),
        };
        UpgradeImage {
            name: self.name.clone(),
            state,
            reason,
        }
    }
}
