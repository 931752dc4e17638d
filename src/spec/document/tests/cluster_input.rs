//! Tests ClusterVersions, UpgradeConfigs and policies as version specs, on real files (`../shared/corpus`) and on made ones.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::super::{NamedByFlags, SpecDocument, SpecInput, from_document};
use crate::notice;

pub(super) const A: &str =
    "quay.io/r@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
pub(super) const B: &str =
    "quay.io/r@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
pub(super) const C: &str =
    "quay.io/r@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

fn read_with(texts: &[&str], flags: NamedByFlags) -> Result<SpecDocument, String> {
    let mut input = SpecInput::default();
    for (index, text) in texts.iter().enumerate() {
        let added = input.add(&format!("{index}.yaml"), text.as_bytes());
        added.unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
    input.read(flags).map_err(|error| error.to_string())
}

fn read(texts: &[&str]) -> SpecDocument {
    read_with(texts, NamedByFlags::default()).unwrap_or_else(|error| panic!("{error}\n{texts:?}"))
}

fn error(texts: &[&str]) -> String {
    match read_with(texts, NamedByFlags::default()) {
        Ok(document) => panic!("{document:?}"),
        Err(error) => error,
    }
}

pub(super) fn release(document: &SpecDocument) -> Option<String> {
    document.spec.platform_image.as_ref().map(ToString::to_string)
}

/// The cluster is at 4.16.3 (A); 4.16.8 (B) is recommended, 4.17.1 (C) has a risk.
pub(super) fn cluster(desired_update: &str) -> String {
    format!(
        "apiVersion: config.openshift.io/v1
kind: ClusterVersion
metadata: {{name: version}}
spec: {{channel: stable-4.16, desiredUpdate: {desired_update}}}
status:
  desired: {{version: 4.16.3, image: '{A}'}}
  history: [{{state: Completed, version: 4.16.3, image: '{A}'}}]
  availableUpdates: [{{version: 4.16.8, image: '{B}'}}]
  conditionalUpdates:
  - release: {{version: 4.17.1, image: '{C}'}}
    risks: [{{name: Risky}}]
    conditions: [{{type: Recommended, status: 'False', reason: Risky, message: It is.}}]
"
    )
}

pub(super) fn upgrade_config(desired: &str) -> String {
    format!(
        "apiVersion: upgrade.managed.openshift.io/v1alpha1
kind: UpgradeConfig
metadata: {{name: managed-upgrade-config}}
spec: {{type: OSD, upgradeAt: '2026-01-31T22:00:00Z', PDBForceDrainTimeout: 60, desired: {desired}}}
"
    )
}

/// A policy with object templates in flow style.
pub(super) fn policy(name: &str, spec: &str, templates: &str) -> String {
    format!(
        "apiVersion: policy.open-cluster-management.io/v1
kind: Policy
metadata: {{name: {name}, namespace: default}}
spec:
  {spec}
  policy-templates:
  - objectDefinition:
      apiVersion: policy.open-cluster-management.io/v1
      kind: ConfigurationPolicy
      metadata: {{name: c}}
      spec: {{{templates}}}
"
    )
}

fn must_have(object: &str) -> String {
    format!("object-templates: [{{complianceType: musthave, objectDefinition: {object}}}]")
}

pub(super) fn requested(spec: &str) -> String {
    must_have(&format!(
        "{{apiVersion: config.openshift.io/v1, kind: ClusterVersion, metadata: {{name: version}}, spec: {spec}}}"
    ))
}

fn olm(kind: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: operators.coreos.com/v1alpha1, kind: {kind}, metadata: {{name: n}}, spec: {spec}}}"
    )
}

fn corpus(directory: &str) -> Option<Vec<PathBuf>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../shared/corpus")
        .join(directory);
    let Ok(entries) = fs::read_dir(path) else {
        notice::print("SKIPPED", "no ../shared/corpus");
        return None;
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    Some(paths)
}

#[test]
fn talms_sample_policies_become_what_its_hub_would_send() {
    let Some(paths) = corpus("talm/samples-precache") else {
        return;
    };
    let texts: Vec<String> = paths
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let document = read(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let keys = document.spec.keys().map(|(_, value)| value);
    assert_eq!(
        keys,
        [
            "quay.io/openshift-release-dev/ocp-release@sha256:0f72e150329db15279a1aeda1286c9495258a4892bc5bf1bf5bb89942cd432de",
            "registry.redhat.io/redhat/redhat-operator-index:v4.9",
            "cluster-logging:stable",
            "",
            "",
            "35"
        ]
    );
    assert_eq!(document.warnings, Vec::<String>::new());
    assert_eq!(document.ignored.len(), 2, "{:?}", document.ignored);
}

#[test]
fn real_cluster_versions_request_what_the_corpus_says() {
    let Some(paths) = corpus("expected") else { return };
    let answers = fs::read(paths[0].with_file_name("clusterversion.json")).unwrap();
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    for case in answers["cases"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let path = paths[0].with_file_name("..").join(file);
        let text = fs::read_to_string(path).unwrap();
        match case["choose"][1].as_str() {
            Some(image) => assert_eq!(release(&read(&[&text])).as_deref(), Some(image), "{file}"),
            None => {
                let error = error(&[&text]);
                let expected = "ClusterVersion `version`: no update is requested; recommended: ";
                assert!(error.starts_with(expected), "{file}: {error}");
            }
        }
    }
}

#[test]
fn real_upgrade_configs_are_read() {
    let Some(paths) = corpus("upgradeconfig") else {
        return;
    };
    assert_eq!(paths.len(), 7);
    let answers = fs::read(paths[0].with_file_name("../expected/upgradeconfig.json")).unwrap();
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    for path in &paths {
        let text = fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let mut cases = answers.as_array().unwrap().iter();
        let case = cases.find(|case| case["file"] == format!("upgradeconfig/{name}"));
        let Some(spec) = case.map(|case| &case["spec"]) else {
            assert!(
                error(&[&text]).contains("found: CustomResourceDefinition `upgradeconfigs"),
                "{name}"
            );
            continue;
        };
        let at = spec["upgradeAt"].as_str().unwrap();
        if let Some(image) = spec["desired"]["image"].as_str() {
            let document = read(&[&text]);
            assert_eq!(release(&document).as_deref(), Some(image), "{name}");
            assert_eq!(document.upgrade_at.unwrap().to_string(), at, "{name}");
            continue;
        }
        let version = spec["desired"]["version"].as_str().unwrap();
        let expected = format!(
            "UpgradeConfig `managed-upgrade-config`: `spec.desired` has the version `{version}` without an image"
        );
        assert!(error(&[&text]).starts_with(&expected), "{name}");
        let channel = spec["desired"]["channel"].as_str().unwrap();
        let cluster = format!(
            "apiVersion: config.openshift.io/v1\nkind: ClusterVersion\nspec: {{channel: {channel}}}\n\
             status: {{availableUpdates: [{{version: {version}, image: '{B}'}}]}}"
        );
        let document = read(&[&text, &cluster]);
        assert_eq!(release(&document).as_deref(), Some(B), "{name}");
        assert_eq!(document.upgrade_at.unwrap().to_string(), at, "{name}");
    }
}

#[test]
fn a_cluster_version_is_read_alone_and_among_others() {
    let wanted = cluster("{version: 4.16.8}");
    let document = read(&[&wanted]);
    assert_eq!(release(&document).as_deref(), Some(B));
    assert_eq!(document.spec.space_required, 0);
    assert_eq!(
        document.notes,
        [format!(
            "the release 4.16.8 of ClusterVersion `version` is `{B}`: a recommended update"
        )]
    );
    let in_list = wanted.trim().replace('\n', "\n    ");
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n  - {in_list}\n  - {{apiVersion: v1, kind: Secret, metadata: {{name: s}}}}\n"
    );
    let document = read(&[&list]);
    assert_eq!(release(&document).as_deref(), Some(B));
    assert_eq!(document.ignored, ["Secret `s` of `v1`"]);

    let risky = read(&[&cluster("{version: 4.17.1}")]);
    assert_eq!(
        risky.warnings,
        [
            "ClusterVersion `version`: the update to 4.17.1 has known risks: Risky; Recommended is False (Risky): It is."
        ]
    );
    let present = read(&[&cluster(&format!("{{image: '{A}', version: 4.16.3}}"))]);
    assert!(present.notes[0].ends_with("already desired by the cluster, and pulled if this node lacks it"));
}

#[test]
fn without_a_desired_update_the_offers_are_named() {
    let nothing = cluster("null");
    assert_eq!(
        error(&[&nothing]),
        "ClusterVersion `version`: no update is requested; recommended: 4.16.8; with known risks: 4.17.1\n\
         hint: set `spec.desiredUpdate`, or name the release with `--platform-image`"
    );
    assert!(error(&[&cluster("{version: 4.16.9}")]).contains("`4.16.9` is not on offer"));
    // A release by flag needs no choice.
    let flags = NamedByFlags {
        release: true,
        ..NamedByFlags::default()
    };
    for desired in ["null", "{version: 4.16.9}"] {
        let document = read_with(&[&cluster(desired)], flags).unwrap();
        assert_eq!(release(&document), None);
    }
    let source = olm("CatalogSource", "{image: quay.io/i:1}");
    let document = read(&[&nothing, &source]);
    assert_eq!(release(&document), None);
    assert!(
        document.warnings[0].contains("no update is requested"),
        "{document:?}"
    );
    assert_eq!(
        error(&[&nothing, &nothing]),
        "two version specs: ClusterVersion `version` in `0.yaml` and ClusterVersion `version` in `1.yaml`\n\
         hint: leave only one of them in the input"
    );
}

#[test]
fn an_upgrade_config_has_the_rules_of_its_operator() {
    let own = cluster(&format!("{{image: '{A}'}}"));
    let version = |version: &str| upgrade_config(&format!("{{version: {version}, channel: stable-4.16}}"));
    assert_eq!(release(&read(&[&version("4.16.8"), &own])).as_deref(), Some(B));
    assert_eq!(release(&read(&[&own, &version("4.17.1")])).as_deref(), Some(C));
    assert_eq!(
        release(&read(&[&upgrade_config(&format!("{{image: '{C}'}}"))])).as_deref(),
        Some(C)
    );
    let old_group = version("4.16.8").replace("upgrade.managed", "managed");
    assert!(read(&[&old_group, &own]).warnings[0].contains("its group is `managed.openshift.io`"));
    for (text, expected) in [
        (
            version("4.16.3"),
            "the desired version `4.16.3` is the cluster's current version",
        ),
        (
            version("4.15.30"),
            "downgrades are unsupported: the desired version is `4.15.30`, the cluster's is `4.16.3`",
        ),
        (version("4.16.9"), "`4.16.9` is not on offer"),
        (version("'4.16'"), "must be a semantic version"),
        (
            upgrade_config("{version: 4.17.3, channel: fast-4.17}"),
            "has the updates of the channel `stable-4.16`, not of `fast-4.17`",
        ),
        (
            upgrade_config("{version: 4.16.8}"),
            "`spec.desired` needs either an image, or a version and a channel",
        ),
        (upgrade_config("{}"), "`spec.desired` needs either an image"),
        (
            version("4.16.8").replace("2026-01-31T22", "2026-01-31 22"),
            "`spec.upgradeAt`, line 4, column 30: `2026-01-31 22:00:00Z` is not an RFC 3339 time",
        ),
        (
            version("4.16.8").replace("upgradeAt", "at"),
            "`spec.upgradeAt`, line 1, column 1: `` is not an RFC 3339 time",
        ),
    ] {
        let error = error(&[&text, &own]);
        assert!(
            error.starts_with("UpgradeConfig `managed-upgrade-config`"),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn policies_have_the_rules_of_talms_hub() {
    let version = policy(
        "v",
        "disabled: false",
        &requested(&format!("{{desiredUpdate: {{image: '{B}'}}}}")),
    );
    let operators = policy(
        "o",
        "remediationAction: inform",
        &format!(
            "object-templates: [{{complianceType: musthave, objectDefinition: {}}}, {{complianceType: mustnothave, \
             objectDefinition: {}}}, {{objectDefinition: {}}}, {{objectDefinition: {}}}]",
            olm("Subscription", "{name: ptp, channel: stable, source: n}"),
            olm("Subscription", "{name: gone, channel: stable}"),
            olm("Subscription", "{name: sriov, source: absent}"),
            olm("CatalogSource", "{image: 'quay.io/index:v4.16'}"),
        ),
    );
    let document = read(&[&version, &operators]);
    let keys = document.spec.keys().map(|(_, value)| value);
    assert_eq!(
        keys,
        [B, "quay.io/index:v4.16", "ptp:stable\nsriov:", "", "", "35"]
    );
    assert_eq!(document.warnings.len(), 1);
    assert!(document.warnings[0].starts_with("Subscriptions need the CatalogSource `absent`"));

    for (left_out, reason) in [
        ("disabled: true", "disabled"),
        ("remediationAction: Enforce", "`enforce`"),
    ] {
        let text = operators.replace("remediationAction: inform", left_out);
        let document = read(&[&version, &text]);
        assert!(document.spec.packages_and_channels.is_empty());
        assert!(document.warnings[0].contains(reason), "{document:?}");
    }
    // The copy in a cluster's namespace has the resolved templates.
    let template = version.replace(B, "{{hub .x hub}}");
    let copy = version.replace("name: v, namespace: default", "name: default.v, namespace: spoke");
    assert_eq!(release(&read(&[&template, &copy])).as_deref(), Some(B));
    let error = error(&[&template]);
    assert!(
        error.starts_with(
            "ClusterVersion `version` in Policy `default/v`: `spec.desiredUpdate.image`, line 11, column "
        ) && error.contains("`{{hub .x hub}}` is a template"),
        "{error}"
    );
}

#[test]
fn raw_object_templates_are_read_without_their_templates() {
    let raw = |image: &str| {
        let text = format!(
            "\n{{{{- range $x := (list 1) }}}}\n- complianceType: musthave\n  objectDefinition: {}\n{{{{ end }}}}",
            olm(
                "CatalogSource",
                &format!("{{image: '{image}', displayName: '{{{{ $x }}}}'}}")
            )
        );
        policy("r", "disabled: false", "object-templates-raw: x").replace(
            "{object-templates-raw: x}",
            &format!(
                "{{object-templates-raw: {}}}",
                serde_json::to_string(&text).unwrap()
            ),
        )
    };
    let document = read(&[&raw("quay.io/i:1")]);
    assert_eq!(document.spec.operators_indexes.len(), 1);
    assert!(document.warnings[0].contains("which TALM's hub refuses: olm index provided, but no packages"));
    for image in ["{{ $x }}", "quay.io/i:{{hub .v hub}}"] {
        let text = raw(image);
        match read_with(&[&text], NamedByFlags::default()) {
            Err(error) => assert!(
                error.contains("template") || error.contains("reference"),
                "{error}"
            ),
            Ok(document) => panic!("{document:?}"),
        }
    }
    let both = policy(
        "b",
        "disabled: false",
        "object-templates: [], object-templates-raw: ''",
    );
    assert!(error(&[&both]).contains("it has `object-templates` and `object-templates-raw`"));
}

#[test]
fn objects_that_the_hub_would_misread_are_errors() {
    let with = |object: &str| policy("p", "disabled: false", &must_have(object));
    for (text, expected) in [
        (
            with(&olm("CatalogSource", "{}")),
            "`spec.image`, line 11, column 78: the index image is missing",
        ),
        (
            with(&olm("CatalogSource", "{image: 'a b'}")),
            "`a b` is not an image reference",
        ),
        (
            with(&olm("Subscription", "{channel: x}")),
            "the package is missing",
        ),
        (
            with(&olm("Subscription", "{name: a, channel: 4.9}")),
            "it is a number, not a text\nhint: put it in double quotes",
        ),
        (with(&olm("Subscription", "{name: 'a:b'}")), "`a:b` is not a name"),
        (
            with(&olm("Subscription", "{name: '{{hub x hub}}'}")),
            "is a template",
        ),
        (
            policy(
                "p",
                "disabled: false",
                &requested("{upstream: u, channel: c, desiredUpdate: {version: 4.16.8}}"),
            ),
            "has the version `4.16.8` without an image; TALM's hub asks the update graph for it",
        ),
        (
            policy("p", "disabled: false", "x: y"),
            "it has no `object-templates`, which TALM's hub refuses",
        ),
        (
            policy(
                "p",
                "disabled: false",
                "object-templates: [{complianceType: musthave}]",
            ),
            "it has no `objectDefinition`",
        ),
        (
            "apiVersion: policy.open-cluster-management.io/v1\nkind: Policy\nspec: {}".to_owned(),
            "Policy without a name: `spec.policy-templates`, line 1, column 1: it is missing",
        ),
        (
            policy("p", "disabled: false", &requested("{channel: stable-4.16}")),
            "no update is requested\nhint: ",
        ),
    ] {
        let error = error(&[&text]);
        assert!(error.contains(expected), "{error}");
    }
    let one = policy(
        "a",
        "disabled: false",
        &requested(&format!(
            "{{channel: stable-4.16, desiredUpdate: {{image: '{B}'}}}}"
        )),
    );
    let other = one
        .replace("name: a,", "name: b,")
        .replace("stable-4.16", "stable-4.17");
    assert!(
        error(&[&one, &other]).contains(
            "`stable-4.17` contradicts `stable-4.16` in ClusterVersion `version` in Policy `default/a` in `0.yaml`"
        )
    );
}

#[test]
fn a_version_of_a_policy_is_found_on_offer_in_the_clusters_own_cluster_version() {
    let wanted = policy(
        "p",
        "disabled: false",
        &requested("{desiredUpdate: {version: 4.16.8}}"),
    );
    let own = cluster(&format!("{{image: '{A}'}}"));
    assert_eq!(release(&read(&[&wanted, &own])).as_deref(), Some(B));
    let absent = wanted.replace("4.16.8", "4.16.9");
    assert!(
        error(&[&absent, &own]).contains("in Policy `default/p` in `0.yaml`: the desired version `4.16.9`")
    );
    let plan = upgrade_config(&format!("{{image: '{C}'}}"));
    assert!(error(&[&plan, &wanted]).starts_with("two version specs: UpgradeConfig"));
}

#[test]
fn a_pre_caching_config_completes_policies_as_on_the_hub() {
    let config = |spec: &str| {
        format!(
            "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {{name: c}}\nspec: {spec}\n"
        )
    };
    let policies = [
        policy(
            "v",
            "disabled: false",
            &requested(&format!("{{desiredUpdate: {{image: '{B}'}}}}")),
        ),
        policy(
            "i",
            "disabled: false",
            &must_have(&olm("CatalogSource", "{image: 'quay.io/index:1'}")),
        ),
        policy(
            "s",
            "disabled: false",
            &must_have(&olm("Subscription", "{name: ptp, channel: stable}")),
        ),
    ]
    .join("---\n");
    let plain = config(
        "{overrides: {}, additionalImages: ['image1:latest'], excludePrecachePatterns: [aws], spaceRequired: 40GiB}",
    );
    let keys = read(&[&policies, &plain]).spec.keys().map(|(_, value)| value);
    assert_eq!(
        keys,
        [B, "quay.io/index:1", "ptp:stable", "aws", "image1:latest", "40"]
    );

    let overrides = config(&format!(
        "{{overrides: {{platformImage: '{C}', operatorsIndexes: ['quay.io/i:2'], operatorsPackagesAndChannels: ['sriov:4']}}}}"
    ));
    let document = read(&[&policies, &overrides]);
    let keys = document.spec.keys().map(|(_, value)| value);
    assert_eq!(keys, [B, "quay.io/index:1", "sriov:4", "", "", "35"]);
    assert!(
        document
            .warnings
            .iter()
            .all(|text| text.ends_with("is ignored, as by TALM's hub: other objects have precedence")),
        "{document:?}"
    );
    let alone = read(&[&overrides, &cluster("null")]);
    assert_eq!(release(&alone).as_deref(), Some(C));
}

#[test]
fn a_config_map_of_the_hub_is_complete() {
    let config_map =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {additionalImages: quay.io/a}";
    assert_eq!(
        error(&[config_map, &cluster("null")]),
        "ConfigMap `m` in `0.yaml` is a complete version spec, which cannot be combined with ClusterVersion `version` in \
         `1.yaml`\nhint: leave one of them out of the input"
    );
}

#[test]
fn many_policies_and_bombs_are_bounded() {
    let one = policy(
        "p",
        "disabled: false",
        &must_have(&olm("Subscription", "{name: ptp, channel: stable}")),
    );
    let index = olm("CatalogSource", "{image: 'quay.io/index:1'}");
    let many: Vec<String> = (0..300)
        .map(|number| one.replace("name: p,", &format!("name: p{number},")))
        .collect();
    let document = read(&[&many.join("---\n"), &index]);
    assert_eq!(document.spec.packages_and_channels, ["ptp:stable"]);
    assert!(document.title.ends_with("291 more"), "{}", document.title);

    let mut input = SpecInput::default();
    let large = format!("[{}1]", "1,".repeat(200_000));
    let added: Vec<bool> = (0..4).map(|_| input.add("x", large.as_bytes()).is_ok()).collect();
    assert_eq!(added, [true, true, false, false]);
    // Each raw template may be an alias bomb.
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        bomb += &format!(
            "a{level}: &a{level} [{}]\n",
            [&format!("*a{}", level - 1)[..]; 10].join(", ")
        );
    }
    let raw = serde_json::to_string(&bomb).unwrap();
    let text = policy("p", "disabled: false", &format!("object-templates-raw: {raw}"));
    let error = from_document(text.as_bytes()).unwrap_err().to_string();
    assert!(
        error.contains(
            "object-templates-raw`, line 11, column 36: without its templates it is not a YAML list"
        ),
        "{error}"
    );
}
