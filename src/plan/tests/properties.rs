//! Tests properties that every plan must have.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

prop_compose! {
    /// Images over few letters, so that chains share their lower layers and blobs have several parents.
    fn some_images()(chains in prop::collection::vec(("[a-f]{0,5}", 0..4u8), 0..12)) -> Vec<ImageToPlan> {
        chains.iter().enumerate().map(|(index, (letters, kind))| {
            let name = format!("image-{index}");
            let layers = pull(letters.chars().map(layer).collect());
            match kind {
                0 => image(&name, Requester::Additional, layers),
                1 => image(&name, Requester::Additional, ImageAction::Present),
                2 => image(&name, Requester::Release { tag: name.clone() }, ImageAction::Failed("gone".into())),
                _ => component(&name, letters),
            }
        }).collect()
    }
}

/// Layers with the content of these letters on a parent that no image has.
fn some_stored(letters: &str) -> HashMap<DiffId, Vec<StoredLayer>> {
    let layers = letters.chars().map(|letter| {
        let layer = StoredLayer {
            location: crate::store::StoreLocation::GraphRoot,
            id: LayerId::of(Some(chain("h")[0]), diff_id(letter)),
            diff_id: diff_id(letter),
            tar_size: MIB,
            blob: None,
        };
        (layer.diff_id, vec![layer])
    });
    layers.collect()
}

prop_compose! {
    /// A store has the parents of each of its layers, so it gets whole chains. A spool has any blobs.
    fn some_present()(
        chains in prop::collection::vec("[a-f]{0,5}", 0..4),
        spool in prop::collection::hash_map(prop::char::range('a', 'h'), 0..9 * MIB, 0..4),
        media in prop::collection::hash_set(prop::char::range('a', 'g'), 0..3),
        deltas in prop::collection::vec((prop::char::range('a', 'g'), 0..4 * MIB, 0..2 * MIB), 0..8),
        stored in "[a-h]{0,2}",
    ) -> Present {
        let mut spool: HashMap<Digest, u64> = spool.into_iter().map(|(letter, bytes)| (blob(letter), bytes)).collect();
        let mut options: HashMap<Digest, Vec<_>> = HashMap::new();
        for (number, (letter, size, spooled)) in deltas.into_iter().enumerate() {
            let option = delta(letter, number, size);
            spool.insert(option.delta.blob, spooled);
            options.entry(blob(letter)).or_default().push(option);
        }
        Present {
            deltas: options,
            blobs: spool,
            layers: chains.iter().flat_map(|letters| chain(letters)).collect(),
            tars: HashMap::new(),
            medium_tars: HashMap::new(),
            media: media.into_iter().map(|letter| (blob(letter), "/media/a".into())).collect(),
            stored: some_stored(&stored),
            chunked: HashMap::new(),
        }
    }
}

proptest! {
    #[test]
    fn the_order_of_the_input_does_not_change_the_sums(
        (images, shuffled) in some_images().prop_flat_map(|images| {
            (Just(images.clone()), Just(images).prop_shuffle())
        }),
        present in some_present(),
    ) {
        let plan = Plan::build(images, vec![], &present);
        let other = Plan::build(shuffled, vec![], &present);
        prop_assert_eq!(plan.totals, other.totals);
    }

    #[test]
    fn every_missing_layer_is_planned_once_and_no_present_one(images in some_images(), present in some_present()) {
        let plan = Plan::build(images.clone(), vec![], &present);

        let missing: BTreeSet<LayerId> = images
            .iter()
            .filter_map(|image| match &image.action {
                ImageAction::Pull(resolved) => Some(resolved.layer_ids()),
                _ => None,
            })
            .flatten()
            .filter(|id| !present.layers.contains(id))
            .collect();
        let tasks: Vec<LayerId> = plan.layers.iter().map(|task| task.layer.id()).collect();
        prop_assert_eq!(tasks.len(), missing.len());
        prop_assert_eq!(tasks.iter().copied().collect::<BTreeSet<_>>(), missing);

        // Parents are present or planned earlier.
        for (index, task) in plan.layers.iter().enumerate() {
            if let Some(parent) = task.layer.parent() {
                prop_assert!(present.layers.contains(&parent) || tasks[..index].contains(&parent));
            }
        }

        // Blobs are exactly what the layers need, each once, and their sum is the plan's.
        let needed: BTreeSet<Digest> = plan.layers.iter().map(|task| task.download().0).collect();
        let blobs: Vec<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
        prop_assert_eq!(blobs.len(), needed.len());
        prop_assert_eq!(blobs.iter().copied().collect::<BTreeSet<_>>(), needed);
        prop_assert_eq!(plan.blobs.iter().map(|task| task.layers.len()).sum::<usize>(), plan.layers.len());
        let total: u64 = plan.blobs.iter().map(BlobTask::missing).sum();
        prop_assert_eq!(plan.totals.bytes_to_fetch, total);
        prop_assert_eq!(plan.images.iter().map(|image| image.bytes).sum::<u64>(), total);
        let copied: u64 = plan.blobs.iter().map(BlobTask::missing_from_medium).sum();
        prop_assert_eq!(plan.totals.bytes_from_media, copied);
        prop_assert_eq!(plan.images.iter().map(|image| image.bytes_from_media).sum::<u64>(), copied);
        let is_delta = |task: &&BlobTask| task.source.as_ref().is_some_and(|source| source.delta().is_some());
        let deltas = plan.blobs.iter().filter(is_delta);
        let delta_bytes = plan.images.iter().map(|image| image.delta_bytes).sum::<u64>();
        prop_assert_eq!(delta_bytes, deltas.map(BlobTask::missing).sum::<u64>());

        // Deltas only save bytes, each where it saves enough, and the best is the first.
        let without = Plan::build(images, vec![], &Present { deltas: HashMap::new(), ..present.clone() });
        prop_assert_eq!(plan.totals.bytes_whole, without.totals.bytes_to_fetch);
        prop_assert_eq!(plan.totals.bytes_saved, without.totals.bytes_to_fetch - total);
        let missing = |blob: Digest, size: u64| match present.media.contains_key(&blob) {
            true => 0,
            false => size - present.blobs.get(&blob).copied().unwrap_or(0).min(size),
        };
        for task in &plan.layers {
            let whole = missing(task.layer.blob, task.layer.size);
            let deltas = task.sources.iter().filter_map(LayerSource::delta);
            let deltas: Vec<u64> = deltas.map(|option| missing(option.delta.blob, option.delta.size)).collect();
            prop_assert!(deltas.is_sorted());
            prop_assert!(deltas.iter().all(|bytes| whole > 0 && bytes * 5 <= whole * 4));
            let offered = present.deltas.get(&task.layer.blob).into_iter().flatten();
            let best = offered.map(|option| missing(option.delta.blob, option.delta.size)).min();
            let has_deltas = task.sources.iter().any(|source| source.delta().is_some());
            prop_assert_eq!(!has_deltas, whole == 0 || best.is_none_or(|bytes| bytes * 5 > whole * 4));
            let is_known = present.stored.contains_key(&task.layer.diff_id());
            let spooled = present.blobs.get(&task.layer.blob).copied().unwrap_or(0);
            prop_assert_eq!(task.stored().is_some(), spooled < task.layer.size && is_known);
        }

        // A layer lists every image that needs it, and each blob has a repository.
        for task in &plan.layers {
            let waiting: Vec<usize> = (0..plan.images.len())
                .filter(|index| plan.images[*index].layers.iter().any(|planned| planned.layer.id() == task.layer.id()))
                .collect();
            prop_assert_eq!(&task.images, &waiting);
        }
        prop_assert!(plan.blobs.iter().all(|task| !task.images.is_empty()));
    }
}
