//! Tests which layers are made from deltas, and what an authenticated image decides.

use super::*;

#[test]
fn a_layer_is_made_from_its_smallest_delta_that_saves_a_fifth() {
    let (small, large) = (delta('c', 0, size('c') / 10), delta('c', 1, size('c') / 2));
    let present = |deltas: &[&Arc<DeltaOption>], spool: &[(Digest, u64)]| Present {
        deltas: HashMap::from([(
            blob('c'),
            deltas.iter().map(|option| Arc::clone(option)).collect(),
        )]),
        blobs: spool.iter().copied().collect(),
        ..Present::default()
    };
    let planned = |present: &Present| {
        let images = vec![component("one", "ac"), component("two", "bcc")];
        Plan::build(images, vec![], present)
    };

    let plan = planned(&present(&[&large, &small], &[]));
    let made: Vec<&LayerTask> = plan
        .layers
        .iter()
        .filter(|task| task.layer.blob == blob('c'))
        .collect();
    assert_eq!(made.len(), 3);
    assert!(
        made.iter()
            .all(|task| task.sources == [&small, &large].map(|it| LayerSource::Delta(Arc::clone(it))))
    );
    assert_eq!(made[0].download(), (small.delta.blob, small.delta.size));
    let task = plan
        .blobs
        .iter()
        .find(|task| task.digest == small.delta.blob)
        .unwrap();
    assert_eq!(
        (&task.source, task.layers.len()),
        (&Some(LayerSource::Delta(small.clone())), 3)
    );
    assert_eq!(task.images, [0, 1]);
    assert!(plan.blobs.iter().all(|task| task.digest != blob('c')));
    let whole = size('a') + size('b') + size('c');
    assert_eq!(plan.totals.layers_from_deltas, 3);
    assert_eq!(plan.totals.bytes_whole, whole);
    assert_eq!(plan.totals.bytes_saved, size('c') - small.delta.size);
    assert_eq!(plan.totals.bytes_to_fetch, whole - plan.totals.bytes_saved);
    let one = &plan.images[0];
    assert_eq!(
        (one.delta_bytes, one.bytes_whole),
        (small.delta.size, size('a') + size('c'))
    );

    // The spool has most of the other one, or of the blob.
    let plan = planned(&present(
        &[&large, &small],
        &[(large.delta.blob, large.delta.size)],
    ));
    assert_eq!(plan.layers[1].download().0, large.delta.blob);
    let plan = planned(&present(&[&small], &[(blob('c'), size('c') - small.delta.size)]));
    assert_eq!(plan.layers[1].download().0, blob('c'));
    let plan = planned(&present(
        &[&small],
        &[(blob('c'), size('c')), (small.delta.blob, u64::MAX)],
    ));
    assert!(plan.layers.iter().all(|task| task.sources.is_empty()));
    // More than four fifths.
    let too_large = delta('c', 2, size('c') * 4 / 5 + 1);
    let plan = planned(&present(&[&too_large], &[]));
    assert_eq!((plan.totals.layers_from_deltas, plan.totals.bytes_saved), (0, 0));
}

#[test]
fn a_delta_that_contradicts_another_or_is_a_layer_itself_is_ignored() {
    let first = delta('a', 0, 100);
    let mut other_size = DeltaOption::clone(&first);
    (other_size.delta.target, other_size.delta.size) = (blob('b'), 50);
    let mut layer = DeltaOption::clone(&first);
    (layer.delta.target, layer.delta.blob) = (blob('c'), blob('a'));
    let present = Present {
        deltas: HashMap::from([
            (blob('a'), vec![first.clone()]),
            (blob('b'), vec![Arc::new(other_size)]),
            (blob('c'), vec![Arc::new(layer)]),
        ]),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "abc")], vec![], &present);
    let downloads: Vec<Digest> = plan.layers.iter().map(|task| task.download().0).collect();
    assert_eq!(downloads, [first.delta.blob, blob('b'), blob('c')]);
}

#[test]
fn a_delta_decides_which_of_two_blobs_of_a_layer_is_used() {
    let mut zstd = layer('c');
    (zstd.0.blob, zstd.0.size) = (blob('z'), MIB);
    let other = image("two", Requester::Additional, pull(vec![zstd]));
    let mut listed = component("one", "c");
    listed.authenticated = true;
    let present = Present {
        deltas: HashMap::from([(blob('c'), vec![delta('c', 0, 10)])]),
        ..Present::default()
    };
    let images = vec![listed, other];
    let plan = Plan::build(images.clone(), vec![], &present);
    assert_eq!(
        (plan.layers[0].layer.blob, plan.layers[0].sources.len()),
        (blob('c'), 1)
    );
    assert!(plan.layers[0].authenticated);
    let plan = Plan::build(images, vec![], &Present::default());
    assert_eq!(plan.layers[0].layer.blob, blob('z'));
    assert!(
        !plan.layers[0].authenticated,
        "no authenticated image lists this blob"
    );
}

#[test]
fn a_blob_is_not_authenticated_if_two_manifests_pair_it_with_different_diff_ids() {
    let mut listed = component("one", "c");
    listed.authenticated = true;
    let mut other = layer('d');
    other.0 = layer('c').0;
    let other = image("two", Requester::Additional, pull(vec![other]));
    for (images, expected) in [
        (vec![listed.clone()], true),
        (vec![listed.clone(), other.clone()], false),
        (vec![other, listed], false),
    ] {
        let plan = Plan::build(images, vec![], &Present::default());
        assert!(plan.layers.iter().any(|task| task.authenticated) == expected);
    }
}

#[test]
fn a_delta_states_a_better_guess_of_the_length_of_the_tar_if_the_ratio_is_ordinary() {
    let tar = |stated: u64, probed: Option<TarLength>| {
        let mut option = DeltaOption::clone(&delta('c', 0, 10));
        option.delta.tar_size = Some(stated);
        let present = Present {
            deltas: HashMap::from([(blob('c'), vec![Arc::new(option)])]),
            tars: probed.map(|length| (blob('c'), length)).into_iter().collect(),
            ..Present::default()
        };
        Plan::build(vec![component("one", "c")], vec![], &present).layers[0].tar
    };
    let guess = TarLength::Guessed(size('c') * 57 / 20);
    assert_eq!(tar(9 * MIB, None), TarLength::Guessed(9 * MIB));
    assert_eq!(tar(20 * size('c'), None), TarLength::Guessed(20 * size('c')));
    for absurd in [1, 20 * size('c') + 1, u64::MAX] {
        assert_eq!(tar(absurd, None), guess);
    }
    assert_eq!(
        tar(9 * MIB, Some(TarLength::Known(8 * MIB))),
        TarLength::Known(8 * MIB)
    );
}
