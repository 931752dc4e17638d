//! Judges whether an upgrade finds its images in the store, from what is known of the node. Does no I/O.
//!
//! ```text
//! ImageFacts*, PinPatterns ─→ pinned, in use, collectable, missing … ─┐
//! disk, kubelet's settings, PinnedImageSets ─→ Obstacle*             ─┴─→ Verdict
//! ```
//!
//! The kubelet removes an image if CRI-O does not call it pinned and no container has it, running or ended, once the disk is
//! fuller than its threshold, under disk pressure, or when the image is older than `imageMaximumGCAge` (kubernetes
//! `image_gc_manager.go`, `eviction_manager.go`). A threshold of 100 % does not turn off the second. Images of additional
//! stores cannot be removed.

mod facts;
mod pin_patterns;

#[cfg(test)]
mod tests;

use crate::report::{
    Count, Obstacle, ObstacleKind, Span, UpgradeImage, UpgradeReport, UpgradeState, Verdict,
};

pub use facts::{ImageFacts, NodeFacts};
pub use pin_patterns::PinPatterns;

/// The verdict, with everything it follows from.
pub fn assess(node: NodeFacts) -> UpgradeReport {
    let pins = &node.pins;
    let images: Vec<UpgradeImage> = node.images.iter().map(|image| image.assess(pins)).collect();
    let collectable = images.iter().filter(|it| it.state == UpgradeState::Collectable);
    let collectable = collectable.count();
    let is_complete = node.is_complete && !images.iter().any(|image| image.state.is_unusable());
    let mut obstacles = node.obstacles;
    if let Some(disk) = node.disk.as_ref().filter(|disk| disk.headroom == 0) {
        obstacles.push(Obstacle {
            kind: ObstacleKind::DiskLine,
            message: format!(
                "the disk is {} % full, and from {} % on the kubelet removes images: the upgrade needs space too\nhint: free some \
                 space on the file system of the store",
                disk.used_percent, disk.threshold_percent
            ),
        });
    }
    if let Some(age) = node.image_maximum_gc_age.filter(|_| collectable > 0) {
        obstacles.push(Obstacle {
            kind: ObstacleKind::MaximumAge,
            message: format!(
                "the kubelet removes every image that no container has used for {}, however empty the disk is\nhint: pin the images \
                 with `--pin`",
                Span(age)
            ),
        });
    }
    let unwritten = node.images.iter().zip(&images).filter(|(facts, image)| {
        image.state == UpgradeState::Collectable && facts.has_name_of(&node.pinned_soon)
    });
    let count = unwritten.count();
    if count > 0 {
        obstacles.push(Obstacle {
            kind: ObstacleKind::PinsNotWritten,
            message: format!(
                "CRI-O does not pin {} of the PinnedImageSets of this node's pool yet: the Machine Config Operator writes \
                 `/etc/crio/crio.conf.d/50-pinned-images` when the node has every image of the sets",
                Count(count, "image")
            ),
        });
    }
    let verdict = match (is_complete, collectable == 0 && obstacles.is_empty()) {
        (false, _) => Verdict::NotReady,
        (true, true) => Verdict::Ready,
        (true, false) => Verdict::AtRisk,
    };
    UpgradeReport {
        verdict,
        images,
        left_out: node.left_out,
        obstacles,
        disk: node.disk,
        os_images: node.os_images,
    }
}
