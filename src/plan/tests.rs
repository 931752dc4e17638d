//! Plans of small releases, written as `name: layer layer`, and the laws that every plan keeps.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::oci::{Content, LayerDescriptor};
use crate::registry::LimitSettings;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MIB: u64 = 1 << 20;

/// A layer whose blob, diffID and size follow from a letter: `a` has 1 MiB, `b` 2 MiB.
fn layer(letter: char) -> LayerDescriptor {
    LayerDescriptor {
        blob: blob(letter),
        size: size(letter),
        media_type: GZIP.into(),
        diff_id: diff_id(letter),
    }
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

fn resolved(layers: Vec<LayerDescriptor>) -> Need {
    let config = format!("{layers:?}");
    Need::Resolved(Arc::new(ResolvedImage {
        list: None,
        manifest: Content::new(Bytes::from(format!("manifest of {config}"))),
        config: Content::new(Bytes::from(config)),
        layers,
        created: None,
    }))
}

fn wanted(name: &str, requester: Requester, state: Need) -> Wanted {
    Wanted {
        reference: name.parse().unwrap(),
        requesters: vec![requester],
        state,
    }
}

/// An image of the release with one layer for each letter.
fn component(name: &str, letters: &str) -> Wanted {
    wanted(
        name,
        Requester::Release { tag: name.into() },
        resolved(letters.chars().map(layer).collect()),
    )
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.images.iter().map(|image| image.reference.path()).collect()
}

#[test]
fn the_release_image_goes_first_and_additional_images_last() {
    let plan = Plan::build(
        vec![
            wanted("extra", Requester::Additional, resolved(vec![layer('a')])),
            component("etcd", "b"),
            component("cli", "c"),
            wanted("release", Requester::ReleaseImage, resolved(vec![layer('d')])),
        ],
        vec![],
        &Here::default(),
    );
    assert_eq!(names(&plan), ["release", "etcd", "cli", "extra"]);
    let order: Vec<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
    assert_eq!(order, [blob('d'), blob('b'), blob('c'), blob('a')]);
}

#[test]
fn one_name_is_one_image_of_the_most_important_requester() {
    let mut additional = component("etcd", "ab");
    additional.requesters = vec![Requester::Additional];
    let failed = wanted(
        "etcd",
        Requester::Release {
            tag: "etcd-alias".into(),
        },
        Need::Failed("late".into()),
    );
    let plan = Plan::build(
        vec![additional, component("etcd", "ab"), failed],
        vec![],
        &Here::default(),
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
fn an_excluded_image_that_somebody_else_wants_is_not_excluded() {
    let exclusion = |name: &str| ExcludedImage {
        reference: name.parse().unwrap(),
        requester: Requester::Release { tag: name.into() },
        reason: "pattern".into(),
    };
    let plan = Plan::build(
        vec![wanted("aws", Requester::Additional, Need::Present)],
        vec![exclusion("aws"), exclusion("gcp"), exclusion("gcp")],
        &Here::default(),
    );
    assert_eq!(plan.totals.images_excluded, 1);
    assert_eq!(plan.totals.images_present, 1);
}

#[test]
fn a_shared_layer_is_fetched_for_the_first_image_only() {
    let plan = Plan::build(
        vec![component("one", "ab"), component("two", "ac")],
        vec![],
        &Here::default(),
    );
    let actions: Vec<Vec<Action>> = plan
        .images
        .iter()
        .map(|image| image.layers.iter().map(|layer| layer.action).collect())
        .collect();
    assert_eq!(
        actions,
        [[Action::Fetch, Action::Fetch], [Action::Share, Action::Fetch]]
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
        &Here::default(),
    );
    assert_eq!(plan.totals.layers_to_fetch, 5);
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b') + size('c'));
    let shared = plan.blobs.iter().find(|task| task.digest == blob('c')).unwrap();
    assert_eq!(shared.images, [0, 1]);
    assert_eq!(shared.layers, [chain("ac")[1], chain("bcc")[1], chain("bcc")[2]]);
    assert_eq!(plan.layers[4].parent, Some(chain("bcc")[1]));
}

#[test]
fn an_image_that_lacks_only_its_name_costs_nothing() {
    let here = Here {
        layers: chain("ab").into_iter().collect(),
        ..Here::default()
    };
    let plan = Plan::build(vec![component("one", "ab")], vec![], &here);
    assert_eq!((plan.layers.len(), plan.blobs.len()), (0, 0));
    assert_eq!(
        plan.totals,
        Totals {
            images_wanted: 1,
            images_to_pull: 1,
            layers_to_reuse: 2,
            ..Totals::default()
        }
    );
}

#[test]
fn bytes_in_the_spool_are_not_fetched_again_and_whole_blobs_are_unpacked_first() {
    let here = Here {
        blobs: HashMap::from([(blob('a'), u64::MAX), (blob('b'), MIB), (blob('z'), MIB)]),
        ..Here::default()
    };
    let plan = Plan::build(vec![component("one", "abc")], vec![], &here);
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
fn of_two_blobs_for_one_layer_the_cheaper_is_taken() {
    let mut zstd = layer('a');
    zstd.blob = blob('z');
    zstd.size = 10;
    zstd.media_type = "application/vnd.oci.image.layer.v1.tar+zstd".into();
    let other = wanted("two", Requester::Additional, resolved(vec![zstd]));
    let plan = Plan::build(
        vec![component("one", "a"), other.clone()],
        vec![],
        &Here::default(),
    );
    assert_eq!(plan.layers.len(), 1);
    assert_eq!((plan.layers[0].blob, plan.layers[0].size), (blob('z'), 10));
    // Only the second image's repository is known to hold it, but the first waits for it as well.
    assert_eq!(plan.blobs[0].images, [1]);
    assert_eq!(plan.layers[0].images, [0, 1]);

    let here = Here {
        blobs: HashMap::from([(blob('a'), MIB)]),
        ..Here::default()
    };
    let plan = Plan::build(vec![component("one", "a"), other], vec![], &here);
    assert_eq!(plan.layers[0].blob, blob('a'));
    assert_eq!(plan.totals.bytes_to_fetch, 0);
}

#[test]
fn who_contradicts_a_more_important_manifest_fails() {
    let mut wrong = layer('a');
    wrong.size = 7;
    let liar = wanted(
        "liar",
        Requester::Additional,
        resolved(vec![wrong.clone(), layer('c')]),
    );
    let torn = wanted(
        "torn",
        Requester::Additional,
        resolved(vec![layer('d'), layer('a'), wrong]),
    );
    let plan = Plan::build(vec![liar, torn, component("one", "ab")], vec![], &Here::default());
    let Need::Failed(reason) = &plan.images[1].need else {
        panic!("{:?}", plan.images[1].need);
    };
    assert_eq!(
        *reason,
        format!(
            "contradictory manifests: this one gives layer `{}` 7 bytes, that of `one:latest` 1048576",
            blob('a')
        )
    );
    assert!(
        matches!(&plan.images[2].need, Need::Failed(reason) if reason.contains("both 1048576 and 7 bytes"))
    );
    assert_eq!(plan.totals.images_failed, 2);
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b'));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = |letter| {
        let mut layer = layer(letter);
        layer.size = u64::MAX;
        layer
    };
    let plan = Plan::build(
        vec![wanted(
            "huge",
            Requester::Additional,
            resolved(vec![huge('a'), huge('b')]),
        )],
        vec![],
        &Here::default(),
    );
    assert_eq!(plan.totals.bytes_to_fetch, u64::MAX);
    assert_eq!(plan.images[0].bytes, u64::MAX);
}

fn small_release() -> Plan {
    let digest = "0123456789abcdef".repeat(4);
    Plan::build(
        vec![
            wanted(
                &format!("quay.io/openshift-release-dev/ocp-release@sha256:{digest}"),
                Requester::ReleaseImage,
                resolved(vec![layer('a'), layer('b')]),
            ),
            wanted(
                &format!("quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:{digest}"),
                Requester::Release {
                    tag: "cluster-node-tuning-operator".into(),
                },
                resolved(vec![layer('a'), layer('c')]),
            ),
            wanted(
                "registry.example.com/tools/debug:latest",
                Requester::Additional,
                Need::Present,
            ),
            wanted(
                "registry.example.com/tools/gone:v1",
                Requester::Additional,
                Need::Failed("404 Not Found\u{1b}[2J".into()),
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
        &Here::default(),
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
        let (_, rest) = table.split_once("in time:   ").unwrap();
        rest.split_once("\nunpacked").unwrap().0.to_owned()
    };
    assert_eq!(times("1Mbit"), "51 s, by the limit\nlimit:     1 Mbit/s");
    assert_eq!(
        times("50Mbit"),
        "3 s at 20 Mbit/s, 2 s at 100\nlimit:     50 Mbit/s"
    );
    assert_eq!(
        times("12:01-13:00=10Mbit,else=64kbit"),
        "1 min 5 s, by the limit\nlimit:     64 kbit/s until 12:01 (UTC), then 10 Mbit/s\n           \
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

images:    4 wanted: 1 present, 2 to pull, 1 failed; 1 excluded
layers:    3 to fetch, 0 to reuse
to fetch:  6.0 MiB in 3 blobs, each once, the largest 3.0 MiB; 0.0 MiB more in the spool
in time:   3 s at 20 Mbit/s, 1 s at 100
unpacked:  about 17.9 MiB, 17.9 MiB of it by a usual ratio

space: fits
"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn the_document_says_the_same_to_machines() {
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
            "layersToFetch": 3, "layersToReuse": 0, "blobsToFetch": 3, "bytesToFetch": 6 * MIB, "bytesInSpool": 0,
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
fn a_release_of_200_images_is_planned_in_an_instant() {
    let images: Vec<Wanted> = (0..200)
        .map(|index: usize| {
            let layers = (0..5).map(|depth: usize| {
                // The lower layers are shared by many, as in a release.
                let text = format!("{depth} {}", index / [200, 50, 10, 2, 1][depth]);
                LayerDescriptor {
                    blob: Digest::of(text.as_bytes()),
                    size: MIB,
                    media_type: GZIP.into(),
                    diff_id: DiffId(Digest::of(format!("tar {text}").as_bytes())),
                }
            });
            let name = format!("image-{index}");
            wanted(
                &name,
                Requester::Release { tag: name.clone() },
                resolved(layers.collect()),
            )
        })
        .collect();
    // The best of a few: a machine that is busy with other tests says nothing about this code.
    let mut plans = (0..5).map(|_| {
        let (images, start) = (images.clone(), Instant::now());
        let plan = Plan::build(images, vec![], &Here::default());
        (start.elapsed(), plan.totals.layers_to_fetch)
    });
    let best = plans.by_ref().min().unwrap();
    assert_eq!(best.1, 1 + 4 + 20 + 100 + 200);
    assert!(best.0 < Duration::from_millis(50), "{:?}", best.0);
}

prop_compose! {
    /// Images over few letters, so that chains share beginnings and blobs lie on several parents.
    fn some_images()(chains in prop::collection::vec(("[a-f]{0,5}", 0..4u8), 0..12)) -> Vec<Wanted> {
        chains.iter().enumerate().map(|(index, (letters, kind))| {
            let name = format!("image-{index}");
            let layers = resolved(letters.chars().map(layer).collect());
            match kind {
                0 => wanted(&name, Requester::Additional, layers),
                1 => wanted(&name, Requester::Additional, Need::Present),
                2 => wanted(&name, Requester::Release { tag: name.clone() }, Need::Failed("gone".into())),
                _ => component(&name, letters),
            }
        }).collect()
    }
}

prop_compose! {
    /// A store is closed under parents: take whole chains. A spool has anything.
    fn some_here()(
        chains in prop::collection::vec("[a-f]{0,5}", 0..4),
        spool in prop::collection::hash_map(prop::char::range('a', 'h'), 0..9 * MIB, 0..4),
    ) -> Here {
        Here {
            layers: chains.iter().flat_map(|letters| chain(letters)).collect(),
            blobs: spool.into_iter().map(|(letter, bytes)| (blob(letter), bytes)).collect(),
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
        here in some_here(),
    ) {
        let plan = Plan::build(images, vec![], &here);
        let other = Plan::build(shuffled, vec![], &here);
        prop_assert_eq!(plan.totals, other.totals);
    }

    #[test]
    fn every_missing_layer_is_planned_once_and_nothing_that_is_here(images in some_images(), here in some_here()) {
        let plan = Plan::build(images.clone(), vec![], &here);

        let missing: BTreeSet<LayerId> = images
            .iter()
            .filter_map(|image| match &image.state {
                Need::Resolved(resolved) => Some(resolved.layer_ids()),
                _ => None,
            })
            .flatten()
            .filter(|id| !here.layers.contains(id))
            .collect();
        let tasks: Vec<LayerId> = plan.layers.iter().map(|task| task.id).collect();
        prop_assert_eq!(tasks.len(), missing.len());
        prop_assert_eq!(tasks.iter().copied().collect::<BTreeSet<_>>(), missing);

        // Parents are here or come first.
        for (index, task) in plan.layers.iter().enumerate() {
            if let Some(parent) = task.parent {
                prop_assert!(here.layers.contains(&parent) || tasks[..index].contains(&parent));
            }
        }

        // Blobs are exactly what the layers need, each once, and their sum is the plan's.
        let needed: BTreeSet<Digest> = plan.layers.iter().map(|task| task.blob).collect();
        let blobs: Vec<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
        prop_assert_eq!(blobs.len(), needed.len());
        prop_assert_eq!(blobs.iter().copied().collect::<BTreeSet<_>>(), needed);
        prop_assert_eq!(plan.blobs.iter().map(|task| task.layers.len()).sum::<usize>(), plan.layers.len());
        let total: u64 = plan.blobs.iter().map(BlobTask::missing).sum();
        prop_assert_eq!(plan.totals.bytes_to_fetch, total);
        prop_assert_eq!(plan.images.iter().map(|image| image.bytes).sum::<u64>(), total);

        // Whoever waits for a layer is told, and each blob is in somebody's repository.
        for task in &plan.layers {
            let waiting: Vec<usize> = (0..plan.images.len())
                .filter(|index| plan.images[*index].layers.iter().any(|layer| layer.id == task.id))
                .collect();
            prop_assert_eq!(&task.images, &waiting);
        }
        prop_assert!(plan.blobs.iter().all(|task| !task.images.is_empty()));
    }
}
