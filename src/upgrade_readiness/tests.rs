//! Tests the verdict with facts that differ in one point.

use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::report::UpgradeDisk;

fn image(name: &str) -> ImageFacts {
    ImageFacts {
        name: name.to_owned(),
        names: vec![name.to_owned()],
        ..ImageFacts::default()
    }
}

fn disk(headroom: u64) -> UpgradeDisk {
    UpgradeDisk {
        used_percent: 90,
        threshold_percent: 85,
        headroom,
    }
}

/// A node with one pinned image.
fn ready() -> NodeFacts {
    NodeFacts {
        images: vec![image("quay.io/a:1")],
        is_complete: true,
        pins: PinPatterns::new(["quay.io/a:1"]),
        disk: Some(disk(1)),
        ..NodeFacts::default()
    }
}

fn verdict(change: impl FnOnce(&mut NodeFacts)) -> (Verdict, Vec<UpgradeState>, Vec<ObstacleKind>) {
    let mut facts = ready();
    change(&mut facts);
    let report = assess(facts);
    let states = report.images.iter().map(|image| image.state).collect();
    let obstacles = report.obstacles.iter().map(|obstacle| obstacle.kind).collect();
    (report.verdict, states, obstacles)
}

#[test]
fn an_upgrade_is_ready_only_if_every_image_stays() {
    use ObstacleKind::{DiskLine, MaximumAge, PinsNotWritten};
    use UpgradeState::{Collectable, InUse, Missing, Pinned, ReadOnly};
    use Verdict::{AtRisk, NotReady, Ready};
    let unpin = |node: &mut NodeFacts| node.pins = PinPatterns::default();
    let day = Some(Duration::from_secs(86400));

    assert_eq!(verdict(|_| ()), (Ready, vec![Pinned], vec![]));
    assert_eq!(verdict(unpin), (AtRisk, vec![Collectable], vec![]));
    let in_use = verdict(|node| {
        unpin(node);
        node.images[0].is_in_use = true;
    });
    assert_eq!(in_use, (Ready, vec![InUse], vec![]));
    let read_only = verdict(|node| {
        unpin(node);
        node.images[0].is_read_only = true;
    });
    assert_eq!(read_only, (Ready, vec![ReadOnly], vec![]));
    let missing = verdict(|node| node.images[0].flaw = Some((Missing, "gone".to_owned())));
    assert_eq!(missing, (NotReady, vec![Missing], vec![]));
    let unknown = verdict(|node| node.is_complete = false);
    assert_eq!(unknown, (NotReady, vec![Pinned], vec![]));
    let left_out = verdict(|node| node.left_out = vec!["quay.io/b:1".to_owned()]);
    assert_eq!(left_out, (Ready, vec![Pinned], vec![]));

    let full = verdict(|node| node.disk = Some(disk(0)));
    assert_eq!(full, (AtRisk, vec![Pinned], vec![DiskLine]));
    let old = verdict(|node| {
        unpin(node);
        node.image_maximum_gc_age = day;
    });
    assert_eq!(old, (AtRisk, vec![Collectable], vec![MaximumAge]));
    let old_and_pinned = verdict(|node| node.image_maximum_gc_age = day);
    assert_eq!(old_and_pinned, (Ready, vec![Pinned], vec![]));
    let pinned_soon = verdict(|node| {
        unpin(node);
        node.pinned_soon = HashSet::from(["quay.io/a:1".to_owned()]);
    });
    assert_eq!(pinned_soon, (AtRisk, vec![Collectable], vec![PinsNotWritten]));
}
