//! Tests which layers are copied from layers of the store with the same content.

use super::*;
use crate::registry::LimitSettings;
use crate::store::StoreLocation;

/// A layer of the store with the content of a letter, on a parent that no image has.
fn stored(letter: char, number: u8) -> StoredLayer {
    StoredLayer {
        location: StoreLocation::GraphRoot,
        id: LayerId::of(Some(chain("h")[0]), DiffId(Digest::of(&[number]))),
        diff_id: diff_id(letter),
        tar_size: 7 * MIB,
        blob: Some((blob(letter), size(letter))),
    }
}

fn present(layers: &[StoredLayer]) -> Present {
    let mut stored: HashMap<DiffId, Vec<StoredLayer>> = HashMap::new();
    for layer in layers {
        stored.entry(layer.diff_id).or_default().push(layer.clone());
    }
    Present {
        stored,
        ..Present::default()
    }
}

#[test]
fn a_layer_with_known_content_is_copied_and_not_downloaded() {
    let donors = [stored('c', 0), stored('c', 1)];
    let images = vec![component("one", "ac"), component("two", "bcc")];
    let plan = Plan::build(images.clone(), vec![], &present(&donors));
    let copied: Vec<&LayerTask> = plan
        .layers
        .iter()
        .filter(|task| task.stored().is_some())
        .collect();
    assert_eq!(copied.len(), 3);
    for task in copied {
        assert_eq!(task.sources, donors.clone().map(LayerSource::Stored));
        assert_eq!((task.download().1, task.tar), (0, TarLength::Known(7 * MIB)));
    }
    let work = plan.blobs.iter().find(|task| task.source.is_some()).unwrap();
    assert_eq!((work.missing(), work.layers.len()), (0, 3));
    assert_eq!(work.images, [0, 1]);
    let totals = &plan.totals;
    assert_eq!((totals.layers_to_fetch, totals.layers_from_store), (5, 3));
    assert_eq!(totals.bytes_from_store, size('c'));
    assert_eq!(totals.bytes_to_fetch, size('a') + size('b'));
    assert_eq!((totals.bytes_saved, totals.blobs_to_fetch), (0, 2));
    let table = plan.table(
        &[],
        None,
        "",
        &LimitSettings::default(),
        jiff::Timestamp::UNIX_EPOCH,
    );
    assert!(
        table.contains("copied:    3 of the layers from others in the store, which saves 3.0 MiB\n"),
        "{table}"
    );
    let all = Plan::build(images, vec![], &present(&[])).totals;
    assert_eq!((all.layers_from_store, all.bytes_from_store), (0, 0));
}

#[test]
fn a_complete_blob_in_the_spool_is_used_before_a_layer_of_the_store() {
    let here = Present {
        blobs: HashMap::from([(blob('c'), size('c'))]),
        ..present(&[stored('c', 0)])
    };
    let plan = Plan::build(vec![component("one", "c")], vec![], &here);
    assert_eq!(plan.layers[0].sources, []);
}

#[test]
fn a_layer_of_the_store_comes_before_a_delta_and_never_serves_itself() {
    let small = delta('c', 0, 10);
    let mut own = stored('c', 0);
    own.id = chain("ac")[1];
    let mut additional = own.clone();
    additional.location = StoreLocation::Additional(0);
    let mut here = present(&[own, additional.clone()]);
    here.deltas = HashMap::from([(blob('c'), vec![small.clone()])]);
    let plan = Plan::build(vec![component("one", "ac")], vec![], &here);
    let expected = [LayerSource::Stored(additional), LayerSource::Delta(small)];
    assert_eq!(plan.layers[1].sources, expected);
    assert_eq!(plan.totals.layers_from_deltas, 0);
}

/// One of the two manifests is wrong, and its image must not take anything from the other.
#[test]
fn a_blob_with_two_contents_is_downloaded() {
    let mut other = layer('d');
    other.0 = layer('c').0;
    let images = vec![
        component("one", "c"),
        image("two", Requester::Additional, pull(vec![other])),
    ];
    let plan = Plan::build(images, vec![], &present(&[stored('c', 0)]));
    assert!(plan.layers.iter().all(|task| task.sources.is_empty()));
    assert_eq!(plan.blobs.len(), 1);
}
