//! Tests what the manifests of a release add to the table and to the JSON document, and the order of a running update.

use std::collections::BTreeMap;

use super::*;
use crate::registry::LimitSettings;
use crate::release::Payload;
use crate::release::manifests::{Filter, Inclusion, ManifestFile, PayloadManifests, ReleaseManifests};

const PROFILE: &str = "self-managed-high-availability";

fn pullspec(tag: &str) -> String {
    format!("quay.io/r/c@{}", Digest::of(tag.as_bytes()))
}

/// A release whose `etcd` operator is updated at level 20 and `console` at level 50.
fn manifests() -> ReleaseManifests {
    let tags = ["console", "etcd", "hypershift", "pod"]
        .map(|tag| serde_json::json!({"name": tag, "from": {"kind": "DockerImage", "name": pullspec(tag)}}));
    let references = serde_json::json!({
        "kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "spec": {"tags": tags},
    });
    let metadata = br#"{"kind": "cincinnati-metadata-v0", "version": "4.16.3"}"#;
    let payload = Payload::parse(references.to_string().as_bytes(), metadata).unwrap();
    let annotations = format!("annotations: {{include.release.openshift.io/{PROFILE}: 'true'}}");
    let deployment = |tag: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d, namespace: n, {annotations}}}\n\
             spec: {{template: {{spec: {{containers: [{{env: [{{value: '{}'}}]}}]}}}}}}\n",
            pullspec(tag)
        )
    };
    let operator = |name: &str, version: &str| {
        format!(
            "apiVersion: config.openshift.io/v1\nkind: ClusterOperator\nmetadata: {{name: {name}, {annotations}}}\n\
             status: {{versions: [{{name: operator, version: {version}}}]}}\n"
        )
    };
    let files = [
        ("manifests/0000_00_cluster-version-operator_1.yaml", String::new()),
        (
            "release-manifests/0000_20_etcd-operator_1.yaml",
            deployment("etcd") + "---\n" + &operator("etcd", "4.16.3"),
        ),
        (
            "release-manifests/0000_50_console-operator_1.yaml",
            deployment("console") + "---\n" + &operator("console", "0.1.0") + "---\n" + &deployment("etcd"),
        ),
    ];
    let files = files.map(|(path, text)| ManifestFile {
        path: path.to_owned(),
        content: Ok(text.into_bytes()),
    });
    PayloadManifests::read(files, &payload).included(&Inclusion {
        profile: Some(PROFILE.to_owned()),
        feature_set: Some(String::new()),
        assumed: BTreeMap::from([(Filter::Capabilities, "no API is available".to_owned())]),
        ..Inclusion::default()
    })
}

fn component_of(tag: &str, letters: &str) -> ImageToPlan {
    let layers = letters.chars().map(layer).collect();
    image(
        &pullspec(tag),
        Requester::Release { tag: tag.into() },
        pull(layers),
    )
}

fn plan() -> Plan {
    let images = vec![
        image(
            "quay.io/r/release:1",
            Requester::ReleaseImage,
            ImageAction::Present,
        ),
        component_of("etcd", "ab"),
        component_of("pod", "a"),
    ];
    let excluded = ExcludedImage {
        reference: pullspec("console").parse().unwrap(),
        requester: Requester::Release {
            tag: "console".to_owned(),
        },
        reason: "pattern `console`".to_owned(),
        bytes: None,
    };
    Plan::build(images, vec![excluded], &Present::default())
}

#[test]
fn the_table_shows_level_and_component() {
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let table = plan().table(&[], Some(&manifests()), "", &LimitSettings::default(), now);
    let (images, rest) = table.split_once("\n\n").unwrap();
    assert_eq!(
        images,
        "\
ACTION  SOURCE                     LEVEL COMPONENT, OR IMAGE            FETCH SHARE REUSE       SIZE
present release image              quay.io/r/release:1                      -     -     -          -
pull    etcd                          20 etcd-operator                      2     0     0    3.0 MiB
pull    pod                            - (no manifest names it)             0     1     0    0.0 MiB
exclude console                       50 console-operator                   -     -     -          -
        pattern `console`"
    );
    let (_, release) = rest.split_once("\n\n").unwrap();
    assert_eq!(
        release,
        "\
release:   4.16.3 has 4 images; 2 of them are named by 5 of 5 manifests
filtered:  profile self-managed-high-availability, default feature set, all capabilities (assumed);
           assumed because no API is available
operators: 2 cluster operators, in the order in which an update reaches their run levels
           level 20, 1 image: etcd
           level 50, 1 image: console 0.1.0
unnamed:   2 images that no included manifest names: hypershift, pod
           an operator may still use them, so they are pulled unless you exclude them
"
    );
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn the_document_shows_every_use() {
    let (plan, manifests) = (plan(), manifests());
    let document = PlanDocument::new(&plan, &[], Some(&manifests), None::<&()>, None::<&()>, None, None);
    let document = serde_json::to_value(document).unwrap();
    let etcd = &document["images"][1];
    assert_eq!(
        (&etcd["level"], &etcd["component"]),
        (&20.into(), &"etcd-operator".into())
    );
    assert_eq!(
        etcd["uses"],
        serde_json::json!([
            {"tag": "etcd", "level": 20, "component": "etcd-operator", "namedIn": ["env"], "operators": ["etcd"]},
            {"tag": "etcd", "level": 50, "component": "console-operator", "namedIn": ["env"], "operators": ["console"]},
        ])
    );
    assert_eq!(document["images"][2].get("uses"), None);
    assert_eq!(document["excluded"][0]["uses"][0]["level"], 50);
    let release = &document["release"];
    assert_eq!(
        release["inclusion"],
        serde_json::json!({
            "profile": {"value": PROFILE, "known": true},
            "featureSet": {"value": "Default", "known": true},
            "capabilities": {"known": false, "reason": "no API is available"},
        })
    );
    assert_eq!(
        release["operators"][1],
        serde_json::json!({
            "name": "console", "level": 50, "component": "console-operator", "versions": {"operator": "0.1.0"},
        })
    );
    assert_eq!(
        release["unnamed"],
        serde_json::json!([
            {"tag": "hypershift", "mayBeExcluded": false, "reason": "the cluster's set of capabilities is unknown"},
            {"tag": "pod", "mayBeExcluded": false, "reason": "every cluster uses it"},
        ])
    );
}

#[test]
fn a_running_update_needs_images_by_run_level() {
    let manifests = manifests();
    // The last one completes most images per byte, and would be first.
    let tags = [
        ("hypershift", "b"),
        ("console", "e"),
        ("etcd", "fg"),
        ("pod", "h"),
    ];
    let names_in_order = |is_updating: bool| {
        let mut images: Vec<ImageToPlan> = tags
            .iter()
            .map(|(tag, letters)| component_of(tag, letters))
            .collect();
        for (image, (tag, _)) in images.iter_mut().zip(tags) {
            image.rank = is_updating.then(|| manifests.upgrade_rank(tag));
        }
        images.push(image("additional", Requester::Additional, pull(vec![layer('a')])));
        let plan = Plan::build(images, vec![], &Present::default());
        assert_eq!(plan.is_in_upgrade_order(), is_updating);
        let letter = |task: &BlobTask| ('a'..='h').find(|letter| blob(*letter) == task.digest).unwrap();
        plan.blobs.iter().map(letter).collect::<String>()
    };
    assert_eq!(names_in_order(false), "behfga");
    assert_eq!(names_in_order(true), "hfgeba");
}
