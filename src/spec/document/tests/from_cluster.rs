//! Tests the release of the cluster's own API, alone and combined with files, and the newest recommended one.

use super::super::{NamedByFlags, SpecDocument, SpecInput};
use super::cluster_input::{A, B, C, cluster, policy, release, requested, upgrade_config};
use super::{config, config_map};
use crate::spec::VersionSpec;

const RECOMMENDED: NamedByFlags = NamedByFlags {
    release: false,
    images: false,
    recommended: true,
};

fn read(of_cluster: &[&str], files: &[&str], flags: NamedByFlags) -> Result<SpecDocument, String> {
    let mut input = SpecInput::default();
    for (index, text) in files.iter().enumerate() {
        input.add(&format!("{index}.yaml"), text.as_bytes()).unwrap();
    }
    for text in of_cluster {
        input.add_of_cluster(text.as_bytes()).unwrap();
    }
    input.read(flags).map_err(|error| error.to_string())
}

/// The release, or why there is none.
#[track_caller]
fn chosen(of_cluster: &[&str], flags: NamedByFlags) -> Result<String, String> {
    let document = read(of_cluster, &[], flags).unwrap();
    match (release(&document), document.nothing_requested) {
        (Some(release), None) => Ok(release),
        (None, Some(why)) => Err(why),
        other => panic!("{other:?}"),
    }
}

fn to(version: &str) -> String {
    upgrade_config(&format!("{{version: {version}, channel: stable-4.16}}"))
}

/// The cluster is moving to 4.16.8.
fn moving() -> String {
    let text = cluster("{version: 4.16.8}");
    let text = text.replace(
        &format!("desired: {{version: 4.16.3, image: '{A}'}}"),
        &format!("desired: {{version: 4.16.8, image: '{B}'}}"),
    );
    text.replace(
        "history: [",
        &format!("history: [{{state: Partial, version: 4.16.8, image: '{B}'}}, "),
    )
}

#[test]
fn the_update_that_the_cluster_requests_is_chosen() {
    let installed = cluster(&format!("{{image: '{A}', version: 4.16.3}}"));
    let any = NamedByFlags::default();
    for (objects, expected) in [
        (vec![cluster("{version: 4.16.8}")], Ok(B)),
        (vec![cluster("{version: 4.17.1}")], Ok(C)),
        (
            vec![cluster("null")],
            Err("no update is requested, and the cluster runs 4.16.3"),
        ),
        (
            vec![installed.clone()],
            Err("the requested release 4.16.3 is installed"),
        ),
        (vec![moving()], Ok(B)),
        (vec![cluster("null"), to("4.16.8")], Ok(B)),
        (vec![installed.clone(), to("4.17.1")], Ok(C)),
        // The operator keeps the object after the upgrade; what the ClusterVersion requests counts then.
        (
            vec![cluster("null"), to("4.16.3")],
            Err("no update is requested, and the cluster runs 4.16.3"),
        ),
        (vec![moving(), to("4.16.3")], Ok(B)),
        (
            vec![installed.clone(), upgrade_config(&format!("{{image: '{A}'}}"))],
            Err("the requested release 4.16.3 is installed"),
        ),
    ] {
        let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert_eq!(chosen(&objects, any), expected, "{objects:?}");
        let is_nothing = expected.is_err();
        let with_recommended = chosen(&objects, RECOMMENDED);
        assert_eq!(
            with_recommended,
            if is_nothing { Ok(B.to_owned()) } else { expected }
        );
    }
    // The time of an upgrade that is completed has no meaning.
    let upgrade_at = |version: &str| {
        let document = read(&[&cluster("null"), &to(version)], &[], any).unwrap();
        document.upgrade_at.map(|at| at.to_string())
    };
    assert_eq!(upgrade_at("4.16.8").as_deref(), Some("2026-01-31T22:00:00Z"));
    assert_eq!(upgrade_at("4.16.3"), None);
    let error = read(&[&cluster("null"), &to("4.15.30")], &[], any).unwrap_err();
    assert!(
        error.starts_with(
            "UpgradeConfig `managed-upgrade-config` of this cluster: downgrades are unsupported"
        ),
        "{error}"
    );
    let error = read(&[&cluster("{version: 4.16.9}")], &[], any).unwrap_err();
    assert!(
        error.contains("of this cluster: the desired version `4.16.9` is not on offer"),
        "{error}"
    );
}

#[test]
fn without_a_newer_recommended_update_there_is_nothing_to_do() {
    let newest = cluster("null").replace("4.16.8", "4.16.2");
    assert_eq!(
        chosen(&[&newest], RECOMMENDED).unwrap_err(),
        "no update is requested, and the cluster runs 4.16.3; no newer update is recommended in the channel `stable-4.16`"
    );
    let other_minor = cluster("null").replace("4.16.8", "4.17.8");
    chosen(&[&other_minor], RECOMMENDED).unwrap_err();
    // A ClusterVersion in a file is as good.
    let document = read(&[], &[&cluster("null")], RECOMMENDED).unwrap();
    assert_eq!(release(&document).as_deref(), Some(B));
    assert!(
        document.notes[0].ends_with("the newest recommended update is pulled"),
        "{document:?}"
    );
    // Without it, the newest update is unknown.
    let map = config_map("m", "additionalImages: 'quay.io/a:1'");
    for files in [&[][..], &[&map[..]], &["a: b"]] {
        let error = read(&[], files, RECOMMENDED).unwrap_err();
        assert!(
            error.starts_with("`--recommended` needs the ClusterVersion of the cluster"),
            "{error}"
        );
    }
}

#[test]
fn a_version_spec_without_a_release_is_combined_with_the_clusters() {
    let wanted = cluster("{version: 4.16.8}");
    let any = NamedByFlags::default();
    let map = config_map(
        "m",
        "additionalImages: 'quay.io/a:1', excludePrecachePatterns: aws",
    );
    let document = read(&[&wanted], &[&map], any).unwrap();
    assert_eq!(release(&document).as_deref(), Some(B));
    assert_eq!(document.spec.exclude_patterns, ["aws"]);
    assert_eq!(document.spec.additional_images.len(), 1);
    assert_eq!(
        document.title,
        "ConfigMap `m` in `0.yaml`, ClusterVersion `version` of this cluster"
    );
    let document = read(&[&wanted], &[&config("  additionalImages: [quay.io/a:1]\n")], any).unwrap();
    assert_eq!(release(&document).as_deref(), Some(B));
    let nothing = read(&[&cluster("null")], &[&map], any).unwrap();
    assert!(nothing.nothing_requested.is_some(), "{nothing:?}");
    assert_eq!(nothing.spec.additional_images.len(), 1);

    let mut input = SpecInput::default();
    input.add_of_cluster(wanted.as_bytes()).unwrap();
    let keys = VersionSpec {
        platform_image: None,
        exclude_patterns: vec!["azure".to_owned()],
        ..VersionSpec::default()
    };
    input.add_keys("the keys in `/etc/config`", keys.clone(), Vec::new());
    let document = input.read(any).unwrap();
    assert_eq!(document.spec.exclude_patterns, ["azure"]);
    assert_eq!(release(&document).as_deref(), Some(B));
}

#[test]
fn a_release_in_the_version_spec_and_in_the_cluster_is_an_error() {
    let by_flag = NamedByFlags {
        release: true,
        ..NamedByFlags::default()
    };
    for (file, object) in [
        (
            config_map("m", &format!("platform.image: '{C}'")),
            "ConfigMap `m` in `0.yaml`",
        ),
        (
            config(&format!("  overrides: {{platformImage: '{C}'}}\n")),
            "PreCachingConfig `n/c` in `0.yaml`",
        ),
    ] {
        for desired in ["null", "{version: 4.16.8}"] {
            let error = read(&[&cluster(desired)], &[&file], NamedByFlags::default()).unwrap_err();
            assert!(
                error.starts_with(&format!(
                    "{object} names a release, and so may the cluster\nhint: "
                )),
                "{error}"
            );
        }
        read(&[&cluster("null")], &[&file], by_flag).unwrap();
    }
    let error = read(&[&cluster("null")], &[&cluster("null")], NamedByFlags::default()).unwrap_err();
    assert!(
        error.starts_with(
            "two version specs: ClusterVersion `version` in `0.yaml` and ClusterVersion `version` of this cluster"
        ),
        "{error}"
    );
}

/// The hub would ask the update graph for the image.
#[test]
fn the_cluster_knows_the_image_of_a_version_in_a_policy() {
    let of_policy = policy(
        "v",
        "disabled: false",
        &requested("{desiredUpdate: {version: 4.16.8}}"),
    );
    let document = read(&[&cluster("null")], &[&of_policy], NamedByFlags::default()).unwrap();
    assert_eq!(release(&document).as_deref(), Some(B));
}
