//! Tests which image is begun next before an upgrade, one case at a time and over random plans.

use proptest::prelude::*;

use super::*;

fn capacity(likely: u64, at_most: u64) -> Capacity {
    Capacity {
        likely,
        expected: None,
        at_most,
    }
}

/// A queue of images with these blobs, in the plan's order.
fn queue(missing: &[u64], images: &[&[usize]]) -> ImageQueue {
    let mut images: Vec<QueuedImage> = images
        .iter()
        .enumerate()
        .map(|(index, blobs)| QueuedImage {
            index,
            is_begun: false,
            blobs: blobs.to_vec(),
        })
        .collect();
    images.sort_by_key(|image| image.blobs.last().copied());
    let digest = |index: usize| Digest::of(&index.to_be_bytes());
    ImageQueue {
        images,
        blobs: missing
            .iter()
            .map(|missing| QueuedBlob {
                missing: *missing,
                is_begun: false,
                is_ended: false,
            })
            .collect(),
        positions: (0..missing.len()).map(|index| (digest(index), index)).collect(),
        received_before: 0,
        ended: 0,
        more: 0,
    }
}

fn blob(index: usize, missing: u64) -> BlobTask {
    BlobTask {
        source: None,
        digest: Digest::of(&index.to_be_bytes()),
        size: missing,
        spooled: 0,
        medium: None,
        layers: Vec::new(),
        images: Vec::new(),
    }
}

#[test]
fn the_first_that_fits_is_begun_and_the_smallest_that_could_on_a_free_link() {
    let capacity = capacity(100, 400);
    for (costs, under_way, link, expected) in [
        (&[300, 60, 50][..], 0, Link::Free, Choice::Begin(1)),
        (&[300, 60, 50], 45, Link::Busy, Choice::Begin(2)),
        (&[300, 60, 50], 60, Link::Busy, Choice::Wait),
        (&[300, 60, 0], 600, Link::Busy, Choice::Begin(2)),
        (&[350, 300], 0, Link::Free, Choice::Begin(1)),
        (&[350, 300], 90, Link::Stalled, Choice::Begin(1)),
        (&[350, 300], 150, Link::Stalled, Choice::Wait),
        (&[500, 600], 0, Link::Free, Choice::GiveUp),
        (&[500, 600], 1, Link::Busy, Choice::Wait),
    ] {
        assert_eq!(
            choose(costs, under_way, link, &capacity),
            expected,
            "{costs:?} {under_way}"
        );
    }
}

#[test]
fn shared_blobs_count_once_and_those_that_ended_count_no_longer() {
    let mut queue = queue(&[80, 10, 20, 500], &[&[0, 1], &[0, 2], &[3]]);
    let likely = capacity(115, 115);
    assert_eq!(queue.begin(0, false, &likely), Begun::Blobs(vec![0, 1]));
    assert_eq!(
        queue.begin(0, false, &likely),
        Begun::Blobs(vec![2]),
        "its base is under way"
    );
    assert_eq!(queue.under_way(30), 80);
    assert_eq!(queue.begin(30, false, &likely), Begun::Nothing);
    for (index, missing) in [(1, 10), (0, 80)] {
        queue.blob_ended(&blob(index, missing), 95);
    }
    assert_eq!(queue.under_way(95), 15);
    assert_eq!(queue.missing(95, 15, false), [(2, 500)]);
    assert_eq!(queue.missing(95, 14, false), [(1, 20), (2, 500)]);
    // The last one was copied from the store.
    queue.blob_ended(&blob(2, 20), 95);
    assert_eq!(queue.under_way(95), 0);
    assert_eq!(queue.begin(95, false, &likely), Begun::GivenUp(vec![(2, 500)]));
    assert!(!queue.is_waiting());
}

#[test]
fn bytes_of_a_fallback_that_has_ended_do_not_keep_the_link_busy() {
    let mut queue = queue(&[10, 500], &[&[0], &[1]]);
    let likely = capacity(100, 100);
    assert_eq!(queue.begin(0, false, &likely), Begun::Blobs(vec![0]));
    queue.add(40);
    assert_eq!(queue.under_way(10), 40);
    queue.blob_ended(&blob(0, 10), 50);
    // Noted after the blob that it was for.
    queue.add(40);
    assert_eq!(queue.under_way(50), 0);
    assert_eq!(queue.begin(50, false, &likely), Begun::GivenUp(vec![(1, 500)]));
}

#[test]
fn an_image_that_misses_a_deadline_delays_those_after_it_only_if_it_is_begun() {
    let queue = queue(&[10, 500, 20], &[&[0], &[1], &[2]]);
    assert_eq!(queue.missing(0, 100, true), [(1, 500), (2, 20)]);
    assert_eq!(queue.missing(0, 100, false), [(1, 500)]);
}

proptest! {
    #[test]
    fn what_fits_is_begun_in_order_and_nothing_else(
        costs in prop::collection::vec(0..1000_u64, 1..20),
        under_way in 0..2000_u64,
        link in prop::sample::select(vec![Link::Busy, Link::Stalled, Link::Free]),
        likely in 0..2000_u64,
        more in 0..2000_u64,
    ) {
        let under_way = if link == Link::Free { 0 } else { under_way };
        let capacity = capacity(likely, likely + more);
        let fits = |cost: u64, capacity: u64| cost == 0 || under_way + cost <= capacity;
        let first = costs.iter().position(|cost| fits(*cost, likely));
        let could = costs.iter().any(|cost| fits(*cost, likely + more));
        match choose(&costs, under_way, link, &capacity) {
            Choice::Begin(chosen) => {
                prop_assert!(fits(costs[chosen], likely + more), "it cannot fit");
                match first {
                    Some(first) => prop_assert_eq!(chosen, first, "the plan's order"),
                    None => prop_assert!(link != Link::Busy, "it is in the way of others"),
                }
            }
            Choice::Wait => {
                prop_assert!(first.is_none(), "it fits");
                prop_assert!(link == Link::Busy || link == Link::Stalled && !could, "the link is free");
            }
            Choice::GiveUp => prop_assert!(link == Link::Free && !could),
        }
    }

    /// A link of a constant rate, that is known: everything that is begun is whole in time, each blob is begun once, and
    /// the link is free only if nothing that is left fits.
    #[test]
    fn at_a_constant_rate_all_that_is_begun_is_whole_in_time(
        missing in prop::collection::vec(0..300_u64, 1..12),
        uses in prop::collection::vec(prop::collection::btree_set(0..12_usize, 1..4), 1..12),
        time in 0..1500_u64,
    ) {
        let uses: Vec<Vec<usize>> = uses
            .into_iter()
            .map(|blobs| blobs.into_iter().map(|blob| blob % missing.len()).collect())
            .map(|mut blobs: Vec<usize>| {
                blobs.sort_unstable();
                blobs.dedup();
                blobs
            })
            .collect();
        let images: Vec<&[usize]> = uses.iter().map(Vec::as_slice).collect();
        let mut queue = queue(&missing, &images);
        let (mut now, mut received, mut requested) = (0, 0, Vec::new());
        let given_up = loop {
            // One byte in each unit of time.
            let left = time - now;
            match queue.begin(received, false, &capacity(left, left)) {
                Begun::Blobs(blobs) => requested.extend(blobs),
                Begun::GivenUp(images) => break images,
                Begun::Nothing if queue.is_waiting() => {
                    prop_assert!(queue.under_way(received) > 0, "the link is free");
                    let next = requested.iter().find(|index| !queue.blobs[**index].is_ended);
                    let index = *next.expect("a blob under way");
                    now += missing[index];
                    received += missing[index];
                    queue.blob_ended(&blob(index, missing[index]), received);
                }
                Begun::Nothing => break Vec::new(),
            }
        };
        let needed: u64 = requested.iter().map(|index| missing[*index]).sum();
        prop_assert!(needed <= time, "{needed} bytes in {time}");
        let mut once = requested.clone();
        once.sort_unstable();
        once.dedup();
        prop_assert_eq!(once.len(), requested.len());
        for (image, cost) in given_up {
            prop_assert!(cost > time - now, "image {image} with {cost} fits into {}", time - now);
        }
    }
}
