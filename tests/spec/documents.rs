//! Reads the documents of TALM's repository, `talm/` and `expected/talm-pre-cache-spec.json` of the corpus.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use spoke_precache::spec::{DocumentError, SpecDocument, VersionSpec, from_document, from_keys};

use crate::corpus;

fn talm(file: &str) -> Option<String> {
    corpus(&format!("talm/{file}"))
}

fn read(text: &str) -> SpecDocument {
    from_document(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn names<T: ToString>(items: &[T]) -> Vec<String> {
    items.iter().map(ToString::to_string).collect()
}

/// Every YAML file below a directory.
fn yaml_files(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            yaml_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
}

/// The kind of each file, by name; files that are not listed contain no version spec.
#[test]
fn every_file_of_the_hub_is_read_or_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/talm");
    if !root.exists() {
        return crate::notice::print("SKIPPED", &format!("no corpus at {}", root.display()));
    }
    let mut files = Vec::new();
    yaml_files(&root, &mut files);
    let (mut specs, mut others, mut two) = (Vec::new(), 0, Vec::new());
    for path in &files {
        let name = path.strip_prefix(&root).unwrap().display().to_string();
        match from_document(&fs::read(path).unwrap()) {
            Ok(document) => specs.push(format!("{name}: {}", document.title)),
            Err(DocumentError::Nothing { found }) => {
                others += 1;
                assert!(!found.is_empty(), "{name}");
            }
            Err(DocumentError::Several { .. }) => two.push(name),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    specs.sort();
    assert_eq!(
        specs,
        [
            "config-pre-cache/precachingconfig.yaml: PreCachingConfig `example-ns/example-config`",
            "deploy-pre-caching/pre-caching-config-cr.yaml: PreCachingConfig `default/pre-caching-config`",
            "deploy-pre-caching/pre-caching-config-overrides-configmap.yaml: ConfigMap `cluster-group-upgrade-overrides`",
            "samples-precache/catsrc-child-policy.yaml: Policy `my-cluster/default.common-catalog-source-policy`",
            "samples-precache/catsrc-parent-policy.yaml: Policy `default/common-catalog-source-policy`",
            "samples-precache/cluster-version-child-policy.yaml: Policy `my-cluster/default.common-cluster-version-policy`",
            "samples-precache/cluster-version-parent-policy.yaml: Policy `default/common-cluster-version-policy`",
            "samples-precache/operator-child-policy.yaml: Policy `my-cluster/default.common-operator-policy`",
            "samples-precache/operator-parent-policy.yaml: Policy `default/common-operator-policy`",
        ]
    );
    // The assertions of a test: a PreCachingConfig, and the ConfigMap of overrides beside it. Each alone is read.
    assert_eq!(two, ["kuttl/pre-caching-with-configs/01-assert.yaml"]);
    let both = talm(&two[0]).unwrap();
    let titles: Vec<String> = both
        .split("\n---")
        .filter_map(|document| from_document(document.as_bytes()).ok())
        .map(|document| document.title)
        .collect();
    assert_eq!(
        titles,
        [
            "PreCachingConfig `default/pre-caching-config`",
            "ConfigMap `cluster-group-upgrade-overrides`"
        ]
    );
    eprintln!(
        "{} files of the hub: {} version specs, {others} without",
        files.len(),
        specs.len()
    );
}

#[test]
fn the_configs_of_the_hub_have_their_documented_meaning() {
    let Some(config) = talm("deploy-pre-caching/pre-caching-config-cr.yaml") else {
        return;
    };
    let document = read(&config);
    assert_eq!(document.warnings, Vec::<String>::new());
    assert_eq!(
        names(&document.spec.additional_images),
        ["image1:latest", "image2:latest"]
    );
    assert_eq!(document.spec.space_required, 40 << 30);

    let overrides = read(&talm("deploy-pre-caching/pre-caching-config-overrides-configmap.yaml").unwrap());
    assert_eq!(
        overrides.spec.packages_and_channels,
        [
            "performance-addon-operator:stable",
            "ptp-operator:stable",
            "sriov-network-operator:stable"
        ]
    );
    assert_eq!(overrides.spec.exclude_patterns, ["aws", "azure"]);
    assert_eq!(
        names(overrides.spec.platform_image.as_slice()),
        ["this/should/be/ignored:latest"]
    );
}

/// The examples are commented out, their digests are too short, and one name has an upper-case letter; the test repairs that.
#[test]
fn the_commented_examples_are_read() {
    let (Some(config), Some(overrides)) = (
        talm("config-pre-cache/precachingconfig.yaml"),
        talm("config-pre-cache/overrides.yaml"),
    ) else {
        return;
    };
    assert_eq!(read(&config).spec.space_required, 35 << 30, "the hub's default");
    assert!(
        from_document(overrides.as_bytes())
            .unwrap_err()
            .to_string()
            .contains("without keys")
    );

    let digest = "3d5800990dee7cd4727d3fe238a97e2d2976d3808fc925ada29c559a47e2e1ef";
    let config: String = config
        .replace("#  Examples\n", "")
        .replace("applicationN", "application3")
        .lines()
        .map(|line| match line.split_once("@sha256:") {
            Some((image, _)) => format!("{image}@sha256:{digest}\n"),
            None => format!("{line}\n"),
        })
        .collect();
    let document = read(&config.replace("\n#", "\n"));
    let spec = &document.spec;
    let release = format!("quay.io/openshift-release-dev/ocp-release@sha256:{digest}");
    assert_eq!(
        names(spec.platform_image.as_slice()),
        std::slice::from_ref(&release)
    );
    assert_eq!(
        names(&spec.operators_indexes),
        ["registry.example.com:5000/custom-redhat-operators:1.0.0"]
    );
    assert_eq!(
        spec.packages_and_channels,
        [
            "local-storage-operator: stable",
            "ptp-operator: stable",
            "sriov-network-operator: stable"
        ]
    );
    assert_eq!(spec.exclude_patterns, ["aws", "vsphere"]);
    assert_eq!(spec.additional_images.len(), 3);
    assert_eq!(spec.space_required, 45 << 30);
    // Three packages without quotes, two overrides that the hub ignores, and its own image.
    assert_eq!(document.warnings.len(), 6, "{:#?}", document.warnings);

    let overrides = overrides.replace("  ## Examples\n", "").replace("\n  # ", "\n  ");
    let document = read(&overrides);
    assert_eq!(names(document.spec.platform_image.as_slice()), [release]);
    assert_eq!(document.spec.packages_and_channels.len(), 4);
    assert_eq!(
        document.spec.packages_and_channels[1],
        "performance-addon-operator: 4.9"
    );
    assert_eq!(
        document.spec.exclude_patterns,
        ["aws", "alibaba", "azure", "vsphere"]
    );
    assert_eq!(
        document.warnings,
        ["the version spec's key `precache.image` is unknown and ignored"]
    );
}

/// The ConfigMaps that the hub's tests expect, and the hub's statuses from which it generates them.
#[test]
fn the_printed_keys_equal_those_of_the_hub() {
    let Some(expected) = corpus("expected/talm-pre-cache-spec.json") else {
        return;
    };
    let cases: Vec<Value> = serde_json::from_str(&expected).unwrap();
    let (mut config_maps, mut statuses) = (0, 0);
    for case in &cases {
        if case["configmap"].is_object() {
            let data: BTreeMap<String, String> =
                serde_json::from_value(case["configmap"]["data"].clone()).unwrap();
            let document = read(&case["configmap"].to_string());
            assert_eq!(
                document.title,
                "ConfigMap `openshift-talo-pre-cache/pre-cache-spec`"
            );
            let mounted = data
                .iter()
                .map(|(key, text)| (key.clone(), text.clone().into_bytes()));
            assert_eq!(from_keys(&mounted.collect()).unwrap().0, document.spec);
            same_keys(&document.spec, &data, case);
            config_maps += 1;
        } else {
            let status = &case["status_precaching_spec"];
            let document = read(&pre_caching_config(status));
            same_keys(&document.spec, &hub_keys(status), case);
            statuses += 1;
        }
    }
    assert_eq!(config_maps + statuses, cases.len());
    eprintln!(
        "{config_maps} ConfigMaps and {statuses} statuses of the hub's tests are printed as the hub writes them"
    );
}

/// The PreCachingConfig that requests the same images as the hub's status.
fn pre_caching_config(status: &Value) -> String {
    let with_unit = status["spaceRequired"].as_str().map(|gib| format!("{gib} GiB"));
    serde_json::json!({
        "apiVersion": "ran.openshift.io/v1alpha1",
        "kind": "PreCachingConfig",
        "metadata": {"name": "made"},
        "spec": {
            "overrides": {
                "platformImage": status["platformImage"],
                "operatorsIndexes": status["operatorsIndexes"],
                "operatorsPackagesAndChannels": status["operatorsPackagesAndChannels"],
            },
            "excludePrecachePatterns": status["excludePrecachePatterns"],
            "additionalImages": status["additionalImages"],
            "spaceRequired": with_unit,
        },
    })
    .to_string()
}

/// `buildPrecacheSpecConfigMapAction` of the hub.
fn hub_keys(status: &Value) -> BTreeMap<String, String> {
    let joined = |field: &str| {
        let lines = status[field].as_array().map(Vec::as_slice).unwrap_or_default();
        lines
            .iter()
            .filter_map(Value::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    };
    let word = |field: &str, default: &str| status[field].as_str().unwrap_or(default).to_owned();
    BTreeMap::from(
        [
            ("platform.image", word("platformImage", "")),
            ("operators.indexes", joined("operatorsIndexes")),
            (
                "operators.packagesAndChannels",
                joined("operatorsPackagesAndChannels"),
            ),
            ("excludePrecachePatterns", joined("excludePrecachePatterns")),
            ("additionalImages", joined("additionalImages")),
            ("spaceRequired", word("spaceRequired", "35")),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    )
}

/// Compares all keys.
fn same_keys(spec: &VersionSpec, expected: &BTreeMap<String, String>, case: &Value) {
    for (key, value) in spec.keys() {
        let expected = expected.get(key).map_or("", String::as_str);
        let expected: Vec<&str> = expected.lines().collect();
        assert_eq!(value, expected.join("\n"), "{key} of {case}");
    }
}

/// The test `pre-caching-with-configs` of the hub: a PreCachingConfig, the ConfigMap of overrides and the policies' release
/// and index give the ConfigMap that its step 02 asserts.
#[test]
fn a_config_and_what_the_policies_add_give_the_asserted_config_map() {
    let (Some(config), Some(expected)) = (
        talm("deploy-pre-caching/pre-caching-config-cr.yaml"),
        corpus("expected/talm-pre-cache-spec.json"),
    ) else {
        return;
    };
    let overrides =
        read(&talm("deploy-pre-caching/pre-caching-config-overrides-configmap.yaml").unwrap()).spec;
    let cases: Vec<Value> = serde_json::from_str(&expected).unwrap();
    let step = "tests/kuttl/cgu/pre-caching-with-configs/02-assert.yaml";
    let asserted: Vec<&Value> = cases
        .iter()
        .filter(|case| case["source"] == step && case["configmap"].is_object())
        .collect();
    assert_eq!(asserted.len(), 4, "one for each spoke");
    for case in asserted {
        let data: BTreeMap<String, String> =
            serde_json::from_value(case["configmap"]["data"].clone()).unwrap();
        let spec = VersionSpec {
            // The hub's policies name these two.
            platform_image: Some(data["platform.image"].parse().unwrap()),
            operators_indexes: vec![data["operators.indexes"].parse().unwrap()],
            // The hub uses the overrides for fields that the PreCachingConfig does not set.
            packages_and_channels: overrides.packages_and_channels.clone(),
            exclude_patterns: overrides.exclude_patterns.clone(),
            ..read(&config).spec
        };
        same_keys(&spec, &data, case);
    }
}
