//! Tests which layers and blobs are fetched, and that each is fetched once.

use super::*;

#[test]
fn a_shared_layer_is_fetched_for_the_first_image_only() {
    let plan = Plan::build(
        vec![component("one", "ab"), component("two", "ac")],
        vec![],
        &Present::default(),
    );
    let actions: Vec<Vec<LayerAction>> = plan
        .images
        .iter()
        .map(|image| image.layers.iter().map(|planned| planned.action).collect())
        .collect();
    assert_eq!(
        actions,
        [
            [LayerAction::Fetch, LayerAction::Fetch],
            [LayerAction::Share, LayerAction::Fetch]
        ]
    );
    assert_eq!(plan.layers[0].images, [0, 1]);
    assert_eq!(plan.images[0].bytes, size('a') + size('b'));
    assert_eq!(plan.images[1].bytes, size('c'));
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b') + size('c'));
    assert_eq!(plan.totals.largest_layer, size('c'));
    assert_eq!(
        plan.totals.unpacked_estimate,
        unpacked('a') + unpacked('b') + unpacked('c')
    );
}

/// `c` as a blob of zstd, smaller than that of gzip.
fn zstd() -> (LayerDescriptor, DiffId) {
    let mut zstd = layer('c');
    (zstd.0.blob, zstd.0.size) = (blob('z'), MIB);
    zstd.0.media_type = "application/vnd.oci.image.layer.v1.tar+zstd".into();
    zstd
}

#[test]
fn one_content_under_two_compressions_on_two_parents_is_one_download() {
    let gzip = component("one", "ac");
    let other = |name: &str| image(name, Requester::Additional, pull(vec![layer('b'), zstd()]));
    let chosen = |images: Vec<ImageToPlan>, here: &Present| -> Vec<Digest> {
        let plan = Plan::build(images, vec![], here);
        let tasks = plan
            .layers
            .iter()
            .filter(|task| task.layer.diff_id() == diff_id('c'));
        let blobs: Vec<Digest> = tasks.map(|task| task.layer.blob).collect();
        let downloads: HashSet<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
        assert_eq!(blobs.len(), 2);
        assert!(
            plan.layers
                .iter()
                .all(|task| downloads.contains(&task.layer.blob))
        );
        blobs
    };
    let none = Present::default();
    assert_eq!(chosen(vec![gzip.clone(), other("two")], &none), [blob('z'); 2]);
    // A blob that only an unauthenticated image lists may have another content.
    let mut authenticated = gzip.clone();
    authenticated.authenticated = true;
    assert_eq!(chosen(vec![authenticated, other("two")], &none), [blob('c'); 2]);
    // A registry that fails must not fail images of another one.
    let elsewhere = other("registry.example/two");
    assert_eq!(
        chosen(vec![gzip.clone(), elsewhere], &none),
        [blob('c'), blob('z')]
    );
    // Nothing is downloaded for what is in the spool.
    let spooled = Present {
        blobs: HashMap::from([(blob('c'), size('c'))]),
        ..Present::default()
    };
    assert_eq!(chosen(vec![gzip, other("two")], &spooled), [blob('c'); 2]);
}

#[test]
fn one_blob_on_two_parents_is_two_layers_and_one_download() {
    let plan = Plan::build(
        vec![component("one", "ac"), component("two", "bcc")],
        vec![],
        &Present::default(),
    );
    assert_eq!(plan.totals.layers_to_fetch, 5);
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b') + size('c'));
    let shared = plan.blobs.iter().find(|task| task.digest == blob('c')).unwrap();
    assert_eq!(shared.images, [0, 1]);
    assert_eq!(shared.layers, [chain("ac")[1], chain("bcc")[1], chain("bcc")[2]]);
    assert_eq!(plan.layers[4].layer.parent(), Some(chain("bcc")[1]));
}

#[test]
fn an_image_that_lacks_only_its_record_costs_nothing() {
    let present = Present {
        layers: chain("ab").into_iter().collect(),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "ab")], vec![], &present);
    assert_eq!((plan.layers.len(), plan.blobs.len()), (0, 0));
    assert_eq!(
        plan.totals,
        PlanTotals {
            images_wanted: 1,
            images_to_pull: 1,
            layers_to_reuse: 2,
            ..PlanTotals::default()
        }
    );
}

#[test]
fn bytes_in_the_spool_are_not_fetched_again_and_whole_blobs_are_unpacked_first() {
    let present = Present {
        blobs: HashMap::from([(blob('a'), u64::MAX), (blob('b'), MIB), (blob('z'), MIB)]),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "abc")], vec![], &present);
    let order: Vec<(Digest, u64)> = plan
        .blobs
        .iter()
        .map(|task| (task.digest, task.missing()))
        .collect();
    assert_eq!(order, [(blob('a'), 0), (blob('b'), MIB), (blob('c'), size('c'))]);
    assert_eq!(plan.totals.blobs_to_fetch, 2);
    assert_eq!(plan.totals.bytes_in_spool, 2 * MIB);
}

#[test]
fn of_two_blobs_for_one_layer_the_cheaper_is_fetched() {
    let mut zstd = layer('a');
    zstd.0.blob = blob('z');
    zstd.0.size = 10;
    zstd.0.media_type = "application/vnd.oci.image.layer.v1.tar+zstd".into();
    let other = image("two", Requester::Additional, pull(vec![zstd]));
    let plan = Plan::build(
        vec![component("one", "a"), other.clone()],
        vec![],
        &Present::default(),
    );
    assert_eq!(plan.layers.len(), 1);
    assert_eq!(
        (plan.layers[0].layer.blob, plan.layers[0].layer.size),
        (blob('z'), 10)
    );
    // Only the second image's repository is known to have it, but the first needs it as well.
    assert_eq!(plan.blobs[0].images, [1]);
    assert_eq!(plan.layers[0].images, [0, 1]);

    let present = Present {
        blobs: HashMap::from([(blob('a'), MIB)]),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "a"), other], vec![], &present);
    assert_eq!(plan.layers[0].layer.blob, blob('a'));
    assert_eq!(plan.totals.bytes_to_fetch, 0);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = |letter| {
        let mut layer = layer(letter);
        layer.0.size = u64::MAX;
        layer
    };
    let plan = Plan::build(
        vec![image(
            "huge",
            Requester::Additional,
            pull(vec![huge('a'), huge('b')]),
        )],
        vec![],
        &Present::default(),
    );
    assert_eq!(plan.totals.bytes_to_fetch, u64::MAX);
    assert_eq!(plan.images[0].bytes, u64::MAX);
}

#[test]
fn the_shared_layers_of_200_images_are_planned_once() {
    let images: Vec<ImageToPlan> = (0..200)
        .map(|index: usize| {
            let layers = (0..5).map(|depth: usize| {
                // Many images share the lower layers, as in a release.
                let text = format!("{depth} {}", index / [200, 50, 10, 2, 1][depth]);
                let descriptor = LayerDescriptor {
                    blob: Digest::of(text.as_bytes()),
                    size: MIB,
                    media_type: GZIP.into(),
                };
                (descriptor, DiffId(Digest::of(format!("tar {text}").as_bytes())))
            });
            let name = format!("image-{index}");
            image(
                &name,
                Requester::Release { tag: name.clone() },
                pull(layers.collect()),
            )
        })
        .collect();
    let plan = Plan::build(images, vec![], &Present::default());
    assert_eq!(plan.totals.layers_to_fetch, 1 + 4 + 20 + 100 + 200);
}
