//! Tests which images of a release are needed, and when too little is known to decide that.

#![allow(clippy::unwrap_used)]

use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::cluster_version::ClusterVersion;
use crate::oci::{Digest, Reference};
use crate::release::{Payload, PayloadImage};
use crate::store::PodContainer;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// The image `content` in a repository.
fn reference(content: &str) -> Reference {
    format!("quay.io/ocp/art@{}", Digest::of(content.as_bytes()))
        .parse()
        .unwrap()
}

/// A payload of tags with images: `etcd=e1`.
fn payload(version: &str, tags: &[&str]) -> Payload {
    let tag = |tag: &&str| {
        let (name, content) = tag.split_once('=').unwrap();
        PayloadImage {
            name: name.to_owned(),
            pullspec: reference(content).to_string(),
            reference: reference(content),
        }
    };
    Payload {
        version: version.to_owned(),
        tags: tags.iter().map(tag).collect(),
    }
}

fn release(version: &str, tags: &[&str]) -> StoredRelease {
    StoredRelease {
        image: ImageIdentity::of_reference(&reference(version)),
        payload: payload(version, tags),
    }
}

fn used_by(namespace: &str, container: &str, content: &str) -> ImageUse {
    ImageUse {
        image: ImageIdentity::of_reference(&reference(content)),
        user: ImageUser::Pod(PodContainer {
            container: container.to_owned(),
            pod: format!("{container}-0"),
            namespace: namespace.to_owned(),
        }),
    }
}

fn container(content: &str) -> ImageUse {
    used_by("ns", content, content)
}

/// Of a node that has been up for two days.
fn enough() -> Evidence {
    Evidence {
        up_for: DAY * 2,
        oldest_container: Some(DAY * 2),
        ..Evidence::default()
    }
}

fn cluster_version(completed: Option<&str>, partial: Option<&str>) -> ClusterVersion {
    let entry = |version: &str, state: &str| json!({"state": state, "image": reference(version).to_string()});
    let partial = partial.map(|version| entry(version, "Partial"));
    let history = partial
        .into_iter()
        .chain(completed.map(|version| entry(version, "Completed")));
    serde_json::from_value(json!({"status": {"history": history.collect::<Vec<_>>()}})).unwrap()
}

fn no_os(_: &str) -> Option<Result<(), String>> {
    None
}

const OLD: [&str; 6] = [
    "etcd=e1",
    "kas=k1",
    "pod=p1",
    "aws=a1",
    "cluster-version-operator=c1",
    "cli=k1",
];
const NEW: [&str; 7] = [
    "etcd=e2",
    "kas=k2",
    "pod=p2",
    "aws=a2",
    "cluster-version-operator=c2",
    "cli=l2",
    "novel=n2",
];

#[test]
fn used_new_and_indispensable_tags_are_needed() {
    let releases = [release("4.16.3", &OLD), release("4.16.4", &NEW)];
    let template = ImageUse {
        image: ImageIdentity::of_reference(&reference("e1")),
        user: ImageUser::Template {
            kind: "CronJob",
            namespace: "openshift-etcd".to_owned(),
            name: "backup".to_owned(),
        },
    };
    let uses = vec![container("k1"), template, container("unrelated")];
    let running = RunningRelease::find(&releases, None, &uses).unwrap();
    assert_eq!(running.payload().version, "4.16.3");
    let used = UsedTags::find(running, uses, &enough()).unwrap();
    let names: Vec<&str> = used.used().map(|(tag, _)| tag).collect();
    assert_eq!(names, ["cli", "etcd", "kas"], "`cli` and `kas` are one image");
    let verdicts = used.assess(&releases[1].payload, no_os);
    let shown: Vec<String> = verdicts
        .iter()
        .map(|it| format!("{}: {}", it.tag, it.need))
        .collect();
    assert_eq!(
        shown,
        [
            "etcd: used by CronJob `openshift-etcd/backup`",
            "kas: used by container `k1` of pod `ns/k1-0`",
            "pod: every update needs it",
            "aws: nothing on this node uses this image of 4.16.3",
            "cluster-version-operator: every update needs it",
            "cli: used by container `k1` of pod `ns/k1-0`",
            "novel: the running release does not have it",
        ]
    );
    let left_out = verdicts.iter().filter(|it| !it.need.is_needed());
    assert_eq!(left_out.map(|it| it.tag.as_str()).collect::<Vec<_>>(), ["aws"]);
}

#[test]
fn an_operating_system_is_needed_if_the_update_takes_it_from_the_store() {
    let releases = [release("4.18.3", &["etcd=e", "rhel-coreos=r1"])];
    let uses = vec![container("e")];
    let running = RunningRelease::find(&releases, None, &uses).unwrap();
    let used = UsedTags::find(running, uses, &enough()).unwrap();
    let new = payload("4.19.0", &["rhel-coreos=r2", "rhel-coreos-10=x2"]);
    let os = |tag: &str| {
        Some(if tag.ends_with("10") {
            Ok(())
        } else {
            Err("never".to_owned())
        })
    };
    let needs: Vec<Need> = used.assess(&new, os).into_iter().map(|it| it.need).collect();
    assert_eq!(needs, [Need::LeftOut("never".to_owned()), Need::OperatingSystem]);
}

/// As the kubelet and podman request images: with another repository, by tag, or with a manifest list.
#[test]
fn an_image_is_recognised_by_each_of_its_digests_and_by_its_name() {
    let mut old = payload("4.16.3", &["list=list", "mirrored=m"]);
    old.tags.push(PayloadImage {
        name: "by-tag".to_owned(),
        pullspec: "quay.io/a/b:1".to_owned(),
        reference: "quay.io/a/b:1".parse().unwrap(),
    });
    let stored = StoredRelease {
        image: ImageIdentity::default(),
        payload: old,
    };
    let mut instance = container("instance");
    instance.image.add(&reference("list"));
    let mirrored: Reference = format!("mirror.site/x@{}", Digest::of(b"m")).parse().unwrap();
    let uses = vec![
        instance,
        ImageUse {
            image: ImageIdentity::of_reference(&mirrored),
            user: ImageUser::Container("podman-0".to_owned()),
        },
        ImageUse {
            image: ImageIdentity::of_reference(&"quay.io/a/b:1".parse().unwrap()),
            user: ImageUser::Container("podman-1".to_owned()),
        },
    ];
    let releases = [stored];
    let running = RunningRelease::find(&releases, None, &uses).unwrap();
    let used = UsedTags::find(running, uses, &enough()).unwrap();
    assert_eq!(used.used().count(), 3);
}

#[test]
fn the_cluster_version_decides_which_release_runs() {
    let releases = [release("4.16.3", &OLD), release("4.16.4", &NEW)];
    let uses = [container("e1"), container("k1"), container("p1")];
    let find = |version: &ClusterVersion, uses: &[ImageUse]| {
        let running = RunningRelease::find(&releases, Some(version), uses);
        running
            .map(|it| it.payload().version.clone())
            .map_err(|why| why.to_string())
    };
    assert_eq!(
        find(&cluster_version(Some("4.16.3"), None), &uses).unwrap(),
        "4.16.3"
    );
    let updating = find(&cluster_version(Some("4.16.3"), Some("4.16.4")), &uses).unwrap_err();
    assert!(
        updating.starts_with("the cluster is being updated to `quay.io/ocp/art@sha256:"),
        "{updating}"
    );
    let absent = find(&cluster_version(Some("4.16.2"), None), &uses).unwrap_err();
    assert!(absent.contains("is not in the store"), "{absent}");
    let other = find(&cluster_version(Some("4.16.4"), None), &uses).unwrap_err();
    assert!(other.contains("no container has an image of 4.16.4"), "{other}");
    let none = find(&cluster_version(None, None), &uses).unwrap_err();
    assert!(none.contains("has no completed release"), "{none}");
}

#[test]
fn without_a_cluster_version_a_clear_majority_of_the_images_decides() {
    let releases = [release("4.16.3", &OLD), release("4.16.4", &NEW)];
    let find = |contents: &[&str]| {
        let uses: Vec<ImageUse> = contents.iter().map(|content| container(content)).collect();
        let running = RunningRelease::find(&releases, None, &uses);
        running
            .map(|it| it.payload().version.clone())
            .map_err(|why| why.to_string())
    };
    assert_eq!(find(&["e1", "k1", "p1", "e2", "x", "y", "z"]).unwrap(), "4.16.3");
    for (contents, why) in [
        (
            &["e1", "k1", "e2"][..],
            "of 3 images of releases that containers have, 2 are of 4.16.3",
        ),
        (&["e1", "e2"], "4.16.3 and 4.16.4 match the containers equally"),
        (&["x"], "no container has an image of a release in the store"),
    ] {
        let found = find(contents).unwrap_err();
        assert!(found.contains(why), "{found}");
    }
    let alone = RunningRelease::find(&releases[..1], None, &[container("x")]).unwrap_err();
    assert!(
        alone.to_string().contains("no container has an image of 4.16.3"),
        "{alone}"
    );
    let empty = RunningRelease::find(&[], None, &[container("x")]).unwrap_err();
    assert!(
        empty
            .to_string()
            .contains("there is no release image in the store"),
        "{empty}"
    );
}

/// The operator is the first that is replaced.
#[test]
fn an_operator_of_another_release_is_the_sign_of_an_update() {
    let releases = [release("4.16.3", &OLD), release("4.16.4", &NEW)];
    let operator = |version| used_by("openshift-cluster-version", "cluster-version-operator", version);
    let mut uses = vec![container("e1"), container("k1"), operator("4.16.3")];
    RunningRelease::find(&releases, None, &uses).unwrap();
    uses.push(operator("4.16.4"));
    assert_eq!(
        RunningRelease::find(&releases, None, &uses),
        Err(Refusal::Updating {
            to: "4.16.4".to_owned()
        })
    );
}

#[test]
fn thin_evidence_is_refused() {
    let releases = [release("4.16.3", &OLD)];
    let hour = Duration::from_secs(3600);
    let operator = |operator: &str, run_level| OperatorOfTag {
        operator: operator.to_owned(),
        run_level,
    };
    let operators = |tags: &[(&str, u32)]| {
        let own = tags
            .iter()
            .map(|(tag, level)| ((*tag).to_owned(), vec![operator(tag, *level)]));
        let shared = tags.iter().map(|(tag, level)| operator(tag, *level));
        own.chain([("cli".to_owned(), shared.collect())]).collect()
    };
    for (evidence, refusal) in [
        (enough(), None),
        (
            Evidence {
                up_for: hour,
                ..enough()
            },
            Some("the node started 1 h 0 min ago"),
        ),
        (
            Evidence {
                oldest_container: Some(hour),
                ..enough()
            },
            Some(
                "the oldest container of a pod is 1 h 0 min old, although the node has been up for 48 h 0 min",
            ),
        ),
        (
            Evidence {
                oldest_container: None,
                ..enough()
            },
            Some("the store has no container of a pod"),
        ),
        (
            Evidence {
                unknown_images: vec!["container `x`".to_owned(), "another".to_owned()],
                ..enough()
            },
            Some("the images of 2 containers are unknown; the first: container `x`"),
        ),
        (
            Evidence {
                operators: operators(&[("etcd", 20), ("aws", 50), ("kas", 10), ("pod", 70)]),
                ..enough()
            },
            None,
        ),
        (
            // The image of `cli`, which all of them name, is used.
            Evidence {
                operators: operators(&[("etcd", 20), ("aws", 50), ("pod", 30)]),
                ..enough()
            },
            Some("containers of only 1 of the 3 cluster operators of run levels 20 to 50 are on this node"),
        ),
    ] {
        let uses = vec![container("e1"), container("k1")];
        let running = RunningRelease::find(&releases, None, &uses).unwrap();
        let found = UsedTags::find(running, uses, &evidence)
            .map(|_| ())
            .map_err(|it| it.to_string());
        match refusal {
            None => assert_eq!(found, Ok(()), "{evidence:?}"),
            Some(text) => {
                let message = found.unwrap_err();
                assert!(
                    message.starts_with(text) && message.contains("\nhint: "),
                    "{message}"
                );
            }
        }
    }
}

fn payloads() -> impl Strategy<Value = (Vec<String>, Vec<String>, Vec<String>)> {
    let tags = || prop::collection::btree_map("[a-f]", "[s-z]", 1..6);
    (tags(), tags(), prop::collection::vec("[s-z]", 0..6)).prop_map(|(old, new, used)| {
        let lines = |tags: std::collections::BTreeMap<String, String>| {
            tags.into_iter()
                .map(|(tag, content)| format!("{tag}={content}"))
                .collect()
        };
        (lines(old), lines(new), used)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Neither the image itself nor the image of the same name in the new release.
    #[test]
    fn an_image_that_a_container_uses_is_never_left_out((old, new, used) in payloads()) {
        let lines = |tags: &[String]| -> Vec<String> { tags.to_vec() };
        let (old, new) = (lines(&old), lines(&new));
        let [old, new] = [&old, &new].map(|tags| tags.iter().map(String::as_str).collect::<Vec<_>>());
        let releases = [release("4.16.3", &old), release("4.16.4", &new)];
        let uses: Vec<ImageUse> = used.iter().map(|content| container(content)).collect();
        let used: HashSet<Reference> = used.iter().map(|content| reference(content)).collect();
        let Ok(running) = RunningRelease::find(&releases, Some(&cluster_version(Some("4.16.3"), None)), &uses) else {
            return Ok(());
        };
        let tags = UsedTags::find(running, uses, &enough()).unwrap();
        let of_old = |name: &str| releases[0].payload.tags.iter().find(|tag| tag.name == name);
        for (tag, verdict) in releases[1].payload.tags.iter().zip(tags.assess(&releases[1].payload, no_os)) {
            prop_assert_eq!(&tag.name, &verdict.tag);
            let is_used = used.contains(&tag.reference)
                || of_old(&tag.name).is_none_or(|old| used.contains(&old.reference));
            prop_assert_eq!(verdict.need.is_needed(), is_used, "{:?}", verdict);
        }
    }
}
