//! Tests the table and the JSON document of a plan.

use super::*;
use crate::registry::LimitSettings;

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
            bytes: Some(3 << 20),
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
        small_release().table(&[], None, "space: fits\n", &limit, now)
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
exclude aws-ebs-csi-driver         …e-dev/ocp-v4.0-art-dev@fedcfedcfedc     -     -     -    3.0 MiB
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
    let table = plan.table(&[], None, "", &LimitSettings::default(), now);
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
    let document = serde_json::to_value(PlanDocument::new(
        &plan,
        &[],
        None,
        None::<&()>,
        None::<&()>,
        None,
        None,
    ))
    .unwrap();
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
        serde_json::to_value(PlanDocument::new(
            &plan,
            &[],
            None,
            Some(&"fits"),
            None::<&()>,
            limit.report(now),
            None,
        ))
        .unwrap()
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
            "layersToFetch": 3, "layersFromDeltas": 0, "layersFromChunks": 0, "layersFromStore": 0, "layersToReuse": 0, "blobsToFetch": 3,
            "bytesToFetch": 6 * MIB, "bytesWhole": 6 * MIB, "bytesSaved": 0, "blobsFromMedia": 0, "bytesFromMedia": 0,
            "bytesFromStore": 0,
            "bytesInSpool": 0,
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
