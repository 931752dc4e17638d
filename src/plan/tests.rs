//! Tests plans of small releases, and properties that every plan must have. A letter stands for a layer.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::delta::{Format, LayerDelta};
use crate::oci::{Content, DiffId, LayerDescriptor};
use crate::registry::LimitSettings;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MIB: u64 = 1 << 20;

/// A layer whose blob, diffID and size follow from a letter: `a` has 1 MiB, `b` 2 MiB.
fn layer(letter: char) -> (LayerDescriptor, DiffId) {
    let descriptor = LayerDescriptor {
        blob: blob(letter),
        size: size(letter),
        media_type: GZIP.into(),
    };
    (descriptor, diff_id(letter))
}

fn blob(letter: char) -> Digest {
    Digest::of(format!("blob {letter}").as_bytes())
}

fn diff_id(letter: char) -> DiffId {
    DiffId(Digest::of(format!("tar {letter}").as_bytes()))
}

fn size(letter: char) -> u64 {
    u64::from(letter as u32 - 'a' as u32 + 1) * MIB
}

fn unpacked(letter: char) -> u64 {
    disk_estimate::disk_bytes(size(letter) * 57 / 20)
}

fn chain(letters: &str) -> Vec<LayerId> {
    LayerId::chain(letters.chars().map(diff_id))
}

fn pull(layers: Vec<(LayerDescriptor, DiffId)>) -> ImageAction {
    let config = format!("{layers:?}");
    ImageAction::Pull(Arc::new(ResolvedImage {
        list: None,
        manifest: Content::new(Bytes::from(format!("manifest of {config}"))),
        config: Content::new(Bytes::from(config)),
        layers: Layer::chain(layers),
        created: None,
        signatures: Vec::new(),
    }))
}

fn image(name: &str, requester: Requester, action: ImageAction) -> ImageToPlan {
    ImageToPlan {
        reference: name.parse().unwrap(),
        requesters: vec![requester],
        action,
        authenticated: false,
    }
}

/// An image of the release with one layer for each letter.
fn component(name: &str, letters: &str) -> ImageToPlan {
    image(
        name,
        Requester::Release { tag: name.into() },
        pull(letters.chars().map(layer).collect()),
    )
}

/// The delta of this number for the layer of a letter.
fn delta(letter: char, number: usize, size: u64) -> Arc<DeltaOption> {
    Arc::new(DeltaOption {
        delta: LayerDelta {
            blob: Digest::of(format!("delta {letter} {number}").as_bytes()),
            size,
            format: Format::TarDiff,
            target: blob(letter),
            tar_size: None,
        },
        repository: "example.com/deltas:1".parse().unwrap(),
        sources: Vec::new(),
    })
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.images.iter().map(|image| image.reference.path()).collect()
}

#[test]
fn the_release_image_goes_first_and_additional_images_last() {
    let plan = Plan::build(
        vec![
            image("extra", Requester::Additional, pull(vec![layer('a')])),
            component("etcd", "b"),
            component("cli", "c"),
            image("release", Requester::ReleaseImage, pull(vec![layer('d')])),
        ],
        vec![],
        &Present::default(),
    );
    assert_eq!(names(&plan), ["release", "etcd", "cli", "extra"]);
    let order: Vec<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
    assert_eq!(order, [blob('d'), blob('b'), blob('c'), blob('a')]);
}

#[test]
fn one_name_is_one_image_of_the_most_important_requester() {
    let mut additional = component("etcd", "ab");
    additional.requesters = vec![Requester::Additional];
    let failed = image(
        "etcd",
        Requester::Release {
            tag: "etcd-alias".into(),
        },
        ImageAction::Failed("late".into()),
    );
    let plan = Plan::build(
        vec![additional, component("etcd", "ab"), failed],
        vec![],
        &Present::default(),
    );
    assert_eq!(names(&plan), ["etcd"]);
    let requesters: Vec<String> = plan.images[0]
        .requesters
        .iter()
        .map(Requester::to_string)
        .collect();
    assert_eq!(requesters, ["etcd", "etcd-alias", "additional"]);
    assert_eq!(plan.totals.images_to_pull, 1);
}

#[test]
fn an_excluded_image_with_another_requester_is_not_excluded() {
    let exclusion = |name: &str| ExcludedImage {
        reference: name.parse().unwrap(),
        requester: Requester::Release { tag: name.into() },
        reason: "pattern".into(),
    };
    let plan = Plan::build(
        vec![image("aws", Requester::Additional, ImageAction::Present)],
        vec![exclusion("aws"), exclusion("gcp"), exclusion("gcp")],
        &Present::default(),
    );
    assert_eq!(plan.totals.images_excluded, 1);
    assert_eq!(plan.totals.images_present, 1);
}

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
            .all(|task| task.deltas == [small.clone(), large.clone()])
    );
    assert_eq!(made[0].download(), (small.delta.blob, small.delta.size));
    let task = plan
        .blobs
        .iter()
        .find(|task| task.digest == small.delta.blob)
        .unwrap();
    assert_eq!((task.delta.as_ref(), task.layers.len()), (Some(&small), 3));
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
    assert!(plan.layers.iter().all(|task| task.deltas.is_empty()));
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
        (plan.layers[0].layer.blob, plan.layers[0].deltas.len()),
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
fn an_image_that_contradicts_a_manifest_of_higher_priority_fails() {
    let mut wrong = layer('a');
    wrong.0.size = 7;
    let wrong_size = image(
        "wrong",
        Requester::Additional,
        pull(vec![wrong.clone(), layer('c')]),
    );
    let both = image(
        "both",
        Requester::Additional,
        pull(vec![layer('d'), layer('a'), wrong]),
    );
    let plan = Plan::build(
        vec![wrong_size, both, component("one", "ab")],
        vec![],
        &Present::default(),
    );
    let ImageAction::Failed(reason) = &plan.images[1].action else {
        panic!("{:?}", plan.images[1].action);
    };
    assert_eq!(
        *reason,
        format!(
            "contradictory manifests: layer `{}` has 7 bytes here and 1048576 bytes in `one:latest`",
            blob('a')
        )
    );
    assert!(
        matches!(&plan.images[2].action, ImageAction::Failed(reason) if reason.contains("both 1048576 and 7 bytes"))
    );
    assert_eq!(plan.totals.images_failed, 2);
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b'));
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

fn small_release() -> Plan {
    let digest = "0123456789abcdef".repeat(4);
    Plan::build(
        vec![
            image(
                &format!("quay.io/openshift-release-dev/ocp-release@sha256:{digest}"),
                Requester::ReleaseImage,
                pull(vec![layer('a'), layer('b')]),
            ),
            image(
                &format!("quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:{digest}"),
                Requester::Release {
                    tag: "cluster-node-tuning-operator".into(),
                },
                pull(vec![layer('a'), layer('c')]),
            ),
            image(
                "registry.example.com/tools/debug:latest",
                Requester::Additional,
                ImageAction::Present,
            ),
            image(
                "registry.example.com/tools/gone:v1",
                Requester::Additional,
                ImageAction::Failed("404 Not Found\u{1b}[2J".into()),
            ),
        ],
        vec![ExcludedImage {
            reference: format!(
                "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:{}",
                "fedc".repeat(16)
            )
            .parse()
            .unwrap(),
            requester: Requester::Release {
                tag: "aws-ebs-csi-driver".into(),
            },
            reason: "excluded by `aws`".into(),
        }],
        &Present::default(),
    )
}

#[test]
fn the_table_fits_100_columns() {
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let table = |rate: &str| {
        let limit = LimitSettings {
            rate: rate.parse().unwrap(),
            ..LimitSettings::default()
        };
        small_release().table(&[], "space: fits\n", &limit, now)
    };
    let times = |rate: &str| {
        let table = table(rate);
        let (_, rest) = table.split_once("time:      ").unwrap();
        rest.split_once("\nunpacked").unwrap().0.to_owned()
    };
    assert_eq!(times("1Mbit"), "51 s at the limit\nlimit:     1 Mbit/s");
    assert_eq!(
        times("50Mbit"),
        "3 s at 20 Mbit/s, 2 s at 100 Mbit/s\nlimit:     50 Mbit/s"
    );
    assert_eq!(
        times("12:01-13:00=10Mbit,else=64kbit"),
        "1 min 5 s at the limit\nlimit:     64 kbit/s until 12:01 (UTC), then 10 Mbit/s\n           \
         12:01-13:00 10 Mbit/s, else 64 kbit/s"
    );
    let table = table("unlimited");
    assert_eq!(
        table,
        "\
ACTION  SOURCE                     IMAGE                                FETCH SHARE REUSE       SIZE
pull    release image              …elease-dev/ocp-release@0123456789ab     2     0     0    3.0 MiB
pull    cluster-node-tuning-opera… …e-dev/ocp-v4.0-art-dev@0123456789ab     1     1     0    3.0 MiB
present additional                 …stry.example.com/tools/debug:latest     -     -     -          -
failed  additional                 registry.example.com/tools/gone:v1       -     -     -          -
        404 Not Found?[2J
exclude aws-ebs-csi-driver         …e-dev/ocp-v4.0-art-dev@fedcfedcfedc     -     -     -          -
        excluded by `aws`

images:    4 requested: 1 present, 2 to pull, 1 failed; 1 excluded
layers:    3 to fetch, 0 to reuse
to fetch:  6.0 MiB in 3 blobs, the largest 3.0 MiB; 0.0 MiB already in the spool
time:      3 s at 20 Mbit/s, 1 s at 100 Mbit/s
unpacked:  about 17.9 MiB, 17.9 MiB of it estimated with a usual ratio

space: fits
"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn the_table_shows_what_deltas_save() {
    let present = Present {
        deltas: HashMap::from([(blob('c'), vec![delta('c', 0, MIB / 4)])]),
        ..Present::default()
    };
    let images = vec![
        component("one", "ac"),
        image("two", Requester::Additional, ImageAction::Present),
    ];
    let plan = Plan::build(images, vec![], &present);
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let table = plan.table(&[], "", &LimitSettings::default(), now);
    let (images, totals) = table.split_once("\n\n").unwrap();
    assert_eq!(
        images,
        "\
ACTION  SOURCE                 IMAGE                         FETCH SHARE REUSE       SIZE      WHOLE
pull    one                    one:latest                        2     0     0    1.3 MiB    4.0 MiB
present additional             two:latest                        -     -     -          -          -"
    );
    assert!(
        totals.contains(
            "\ndeltas:    2.8 MiB saved: 1.3 MiB instead of 4.0 MiB; 1 of the layers are made from deltas\n"
        ),
        "{totals}"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let document = serde_json::to_value(PlanDocument::new(&plan, &[], None::<&()>, None)).unwrap();
    let one = &document["images"][0];
    assert_eq!(
        (&one["bytes"], &one["deltaBytes"], &one["bytesWhole"]),
        (&(MIB * 5 / 4).into(), &(MIB / 4).into(), &(4 * MIB).into())
    );
    assert_eq!(
        one["layers"][1]["delta"]["blob"],
        delta('c', 0, 0).delta.blob.to_string()
    );
    assert_eq!(document["totals"]["bytesSaved"], MIB * 11 / 4);
}

#[test]
fn the_document_has_the_same_facts_as_json() {
    let plan = small_release();
    let now = "2026-01-01T12:00:00Z".parse().unwrap();
    let document = |rate: &str| {
        let limit = LimitSettings {
            rate: rate.parse().unwrap(),
            ..LimitSettings::default()
        };
        serde_json::to_value(PlanDocument::new(&plan, &[], Some(&"fits"), limit.report(now))).unwrap()
    };
    assert_eq!(
        document("13:00-14:00=10Mbit,else=1Mbit")["limitRate"],
        serde_json::json!({
            "atStart": "1 Mbit/s until 13:00 (UTC), then 10 Mbit/s",
            "schedule": "13:00-14:00 10 Mbit/s, else 1 Mbit/s",
        })
    );
    let document = document("unlimited");
    assert_eq!(document.get("limitRate"), None);
    assert_eq!(document["apiVersion"], "spoke-precache/v1");
    assert_eq!(document["kind"], "Plan");
    assert_eq!(document["space"], "fits");
    assert_eq!(
        document["totals"],
        serde_json::json!({
            "imagesWanted": 4, "imagesPresent": 1, "imagesToPull": 2, "imagesFailed": 1, "imagesExcluded": 1,
            "layersToFetch": 3, "layersFromDeltas": 0, "layersToReuse": 0, "blobsToFetch": 3,
            "bytesToFetch": 6 * MIB, "bytesWhole": 6 * MIB, "bytesSaved": 0, "bytesInSpool": 0,
            "unpackedEstimate": unpacked('a') + unpacked('b') + unpacked('c'),
            "unpackedGuessed": unpacked('a') + unpacked('b') + unpacked('c'), "unpackedAtLeast": 0,
            "largestLayer": 3 * MIB,
        })
    );
    let tuning = &document["images"][1];
    assert_eq!(tuning["source"], "release");
    assert_eq!(
        tuning["tags"],
        serde_json::json!(["cluster-node-tuning-operator"])
    );
    assert_eq!(tuning["action"], "pull");
    assert_eq!(tuning["layers"][0]["action"], "share");
    assert_eq!(
        tuning["layers"][1],
        serde_json::json!({
            "id": chain("ac")[1].to_string(), "parent": chain("ac")[0].to_string(),
            "diffId": diff_id('c').to_string(), "blob": blob('c').to_string(),
            "size": 3 * MIB, "mediaType": GZIP, "action": "fetch",
        })
    );
    assert_eq!(document["images"][3]["reason"], "404 Not Found\u{1b}[2J");
    assert_eq!(document["excluded"][0]["tag"], "aws-ebs-csi-driver");
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

prop_compose! {
    /// A store has the parents of each of its layers, so it gets whole chains. A spool has any blobs.
    fn some_present()(
        chains in prop::collection::vec("[a-f]{0,5}", 0..4),
        spool in prop::collection::hash_map(prop::char::range('a', 'h'), 0..9 * MIB, 0..4),
        deltas in prop::collection::vec((prop::char::range('a', 'g'), 0..4 * MIB, 0..2 * MIB), 0..8),
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
        let deltas = plan.blobs.iter().filter(|task| task.delta.is_some());
        let delta_bytes = plan.images.iter().map(|image| image.delta_bytes).sum::<u64>();
        prop_assert_eq!(delta_bytes, deltas.map(BlobTask::missing).sum::<u64>());

        // Deltas only save bytes, each where it saves enough, and the best is the first.
        let without = Plan::build(images, vec![], &Present { deltas: HashMap::new(), ..present.clone() });
        prop_assert_eq!(plan.totals.bytes_whole, without.totals.bytes_to_fetch);
        prop_assert_eq!(plan.totals.bytes_saved, without.totals.bytes_to_fetch - total);
        let missing = |blob: Digest, size: u64| size - present.blobs.get(&blob).copied().unwrap_or(0).min(size);
        for task in &plan.layers {
            let whole = missing(task.layer.blob, task.layer.size);
            let deltas = task.deltas.iter().map(|option| missing(option.delta.blob, option.delta.size));
            let deltas: Vec<u64> = deltas.collect();
            prop_assert!(deltas.is_sorted());
            prop_assert!(deltas.iter().all(|bytes| whole > 0 && bytes * 5 <= whole * 4));
            let offered = present.deltas.get(&task.layer.blob).into_iter().flatten();
            let best = offered.map(|option| missing(option.delta.blob, option.delta.size)).min();
            prop_assert_eq!(task.deltas.is_empty(), whole == 0 || best.is_none_or(|bytes| bytes * 5 > whole * 4));
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
