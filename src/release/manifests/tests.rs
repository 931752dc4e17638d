//! Compares the reading of a whole real release with an independent model of library-go (`../shared/corpus`), and tests
//! the rules and hostile files one by one.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::release::{IMAGE_REFERENCES, Payload, RELEASE_METADATA};

/// The only file of `manifests/` that names an image.
const CVO: &str = "\
kind: Deployment
apiVersion: apps/v1
metadata:
  name: cluster-version-operator
  namespace: openshift-cluster-version
  annotations:
    include.release.openshift.io/self-managed-high-availability: \"true\"
spec:
  template:
    spec:
      containers:
      - image: '{{.ReleaseImage}}'
";

/// The directory of the corpus; nothing, with a message, if there is none.
fn corpus() -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::skip(&format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus)
}

/// Release 4.12.0, which the corpus has without the directory `manifests`.
fn release(corpus: &Path) -> (Payload, Vec<ManifestFile>) {
    let root = corpus.join("payload-4.12.0");
    let read = |file: &str| fs::read(root.join(file)).unwrap();
    let payload = Payload::parse(&read(IMAGE_REFERENCES), &read(RELEASE_METADATA)).unwrap();
    let names = fs::read_dir(root.join("release-manifests")).unwrap();
    let mut paths: Vec<String> = names
        .map(|entry| {
            format!(
                "release-manifests/{}",
                entry.unwrap().file_name().to_str().unwrap()
            )
        })
        .collect();
    paths.sort();
    let files = paths.into_iter().map(|path| ManifestFile {
        content: Ok(read(&path)),
        path,
    });
    (payload, files.collect())
}

fn file(path: &str, text: impl Into<Vec<u8>>) -> ManifestFile {
    ManifestFile {
        path: path.to_owned(),
        content: Ok(text.into()),
    }
}

fn texts(value: &Value) -> Vec<String> {
    let items = value.as_array().unwrap().iter();
    items.map(|item| item.as_str().unwrap().to_owned()).collect()
}

fn inclusion(profile: &str, feature_set: &str, known: &[String], enabled: &[String]) -> Inclusion {
    Inclusion {
        profile: Some(profile.to_owned()),
        feature_set: Some(feature_set.to_owned()),
        capabilities: Some(Capabilities {
            known: known.iter().cloned().collect(),
            enabled: enabled.iter().cloned().collect(),
            implicit: BTreeSet::new(),
        }),
        ..Inclusion::default()
    }
}

#[test]
fn a_whole_release_is_what_an_independent_model_makes_of_it() {
    let Some(corpus) = corpus() else { return };
    let (payload, files) = release(&corpus);
    let manifests = PayloadManifests::read(files, &payload);
    let expected: Value =
        serde_json::from_slice(&fs::read(corpus.join("expected/payload-4.12.0.json")).unwrap()).unwrap();
    let cases = expected["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let included = manifests.included(&inclusion(
            case["profile"].as_str().unwrap(),
            case["feature_set"].as_str().unwrap(),
            &texts(&case["known_capabilities"]),
            &texts(&case["enabled_capabilities"]),
        ));
        assert_eq!(included.unread, []);
        assert_eq!(included.uncertain, BTreeMap::new());
        assert_eq!(included.count, case["documents"]);
        assert_eq!(included.included, case["included"]);
        assert_eq!(
            serde_json::to_value(&included.excluded).unwrap(),
            case["excluded"]
        );
        assert_eq!(included.unnamed().collect::<Vec<_>>(), texts(&case["unnamed"]));
        assert_eq!(
            payload.tags.len() - included.unnamed().count(),
            usize::try_from(case["named_tags"].as_u64().unwrap()).unwrap()
        );
        let levels = serde_json::from_value(case["first_use_by_level"].clone()).unwrap();
        assert_eq!(by_level(&payload, &included), levels);
        assert_eq!(operators(&included), case["clusteroperators"]);
    }
}

/// The images by the level of their first use.
fn by_level(payload: &Payload, manifests: &ReleaseManifests) -> BTreeMap<String, BTreeSet<String>> {
    let mut levels = BTreeMap::<_, BTreeSet<String>>::new();
    for tag in &payload.tags {
        if let Some(first) = manifests.uses(&tag.name).first() {
            let level = first.level.unwrap().to_string();
            levels.entry(level).or_default().insert(tag.name.clone());
        }
    }
    levels
}

fn operators(manifests: &ReleaseManifests) -> Value {
    let operators = manifests.operators.iter().map(|operator| {
        let names = operator.versions.iter().map(|operand| operand.name.as_str());
        let level = operator.level.unwrap().to_string();
        serde_json::json!([level, operator.name, names.collect::<Vec<_>>()])
    });
    operators.collect()
}

/// The table of a survey of this release.
#[test]
fn profiles_and_capabilities_name_as_many_images_as_in_the_survey() {
    let Some(corpus) = corpus() else { return };
    let (payload, files) = release(&corpus);
    let manifests = PayloadManifests::read(files, &payload);
    let known = [
        "CSISnapshot",
        "Console",
        "Insights",
        "Storage",
        "baremetal",
        "marketplace",
        "openshift-samples",
    ]
    .map(str::to_owned);
    let ha = "self-managed-high-availability";
    for (profile, feature_set, enabled, named, operators) in [
        (ha, "", known.as_slice(), 157, 33),
        (ha, "", &[], 105, 26),
        (ha, "Default", &known[5..6], 106, 27),
        (ha, "Default", &known[4..6], 114, 28),
        (ha, "TechPreviewNoUpgrade", &known, 166, 35),
        ("ibm-cloud-managed", "Default", &known, 118, 17),
        ("single-node-developer", "Default", &known, 145, 26),
    ] {
        let included = manifests.included(&inclusion(profile, feature_set, &known, enabled));
        let found = (
            payload.tags.len() - included.unnamed().count(),
            included.operators.len(),
        );
        assert_eq!(found, (named, operators), "{profile} {feature_set} {enabled:?}");
    }

    let included = manifests.included(&inclusion(ha, "", &known, &known));
    let mut namings = BTreeMap::<BTreeSet<Naming>, usize>::new();
    for tag in &payload.tags {
        let uses = included
            .uses(&tag.name)
            .iter()
            .flat_map(|tag_use| &tag_use.namings);
        *namings.entry(uses.copied().collect()).or_default() += 1;
    }
    let only = |naming| namings[&BTreeSet::from([naming])];
    assert_eq!(only(Naming::Env), 65);
    assert_eq!(only(Naming::ConfigMap), 35);
    assert_eq!(only(Naming::Image), 15);
    assert_eq!(only(Naming::Args), 14);
    assert_eq!(only(Naming::ImageStream), 5);
    assert!(!namings.keys().flatten().any(|naming| *naming == Naming::Other));

    let etcd = &included.uses("etcd")[0];
    assert_eq!(
        (etcd.level, etcd.component.as_deref()),
        (Some(20), Some("etcd-operator"))
    );
    let operator = included.operators_of("etcd-operator").next().unwrap();
    assert_eq!(operator.versions[0].version, "4.12.0");
}

/// How many images may be left out.
fn droppable(manifests: &ReleaseManifests) -> usize {
    let droppable = |tag: &&str| manifests.droppable(tag).is_ok();
    manifests.unnamed().filter(droppable).count()
}

#[test]
fn an_image_is_droppable_only_if_nothing_can_name_it() {
    let Some(corpus) = corpus() else { return };
    let (payload, mut files) = release(&corpus);
    files.insert(
        0,
        file(
            "manifests/0000_00_cluster-version-operator_03_deployment.yaml",
            CVO,
        ),
    );
    let known = ["Console".to_owned()];
    let cluster = inclusion("self-managed-high-availability", "Default", &known, &[]);
    let read = |files: &[ManifestFile]| PayloadManifests::read(files.to_vec(), &payload);
    let manifests = read(&files).included(&cluster);
    assert_eq!(manifests.droppable("console"), Ok(()));
    assert_eq!(manifests.droppable("hypershift"), Ok(()));
    assert_eq!(manifests.droppable("pod"), Err(Kept::AlwaysUsed));
    assert_eq!(
        manifests.droppable("cluster-version-operator"),
        Err(Kept::AlwaysUsed)
    );
    assert_eq!(manifests.droppable("machine-os-content"), Err(Kept::OsImage));
    assert_eq!(
        manifests.droppable("rhel-coreos-8-extensions"),
        Err(Kept::OsImage)
    );
    assert_eq!(manifests.droppable("other"), Err(Kept::Foreign));
    assert_eq!(
        manifests.droppable("etcd").unwrap_err().to_string(),
        "`etcd-operator` names it (env)"
    );
    assert_eq!(
        droppable(&manifests),
        manifests
            .unnamed()
            .filter(|tag| *tag != "cluster-version-operator")
            .count()
    );

    // Other capabilities are unknown to this cluster, so their manifests count as included.
    assert_eq!(manifests.uncertain["unknown capability marketplace"], 17);
    assert!(manifests.droppable("operator-marketplace").is_err());

    for (change, expected) in [
        (
            Inclusion {
                profile: None,
                ..cluster.clone()
            },
            "the cluster's profile is unknown",
        ),
        (
            Inclusion {
                feature_set: None,
                ..cluster.clone()
            },
            "the cluster's feature set is unknown",
        ),
        (
            Inclusion {
                capabilities: None,
                ..cluster.clone()
            },
            "the cluster's set of capabilities is unknown",
        ),
        (
            Inclusion {
                assumed: BTreeMap::from([(Filter::Profile, "no API".to_owned())]),
                ..cluster.clone()
            },
            "the cluster's profile is unknown",
        ),
    ] {
        let manifests = read(&files).included(&change);
        assert_eq!(droppable(&manifests), 0);
        assert_eq!(
            manifests.droppable("hypershift").unwrap_err().to_string(),
            expected
        );
    }
    let without = read(&files[1..]).included(&cluster);
    assert_eq!(
        without.droppable("hypershift").unwrap_err().to_string(),
        "the release image has no manifests in `manifests`"
    );
    files[0].content = Err("it has 17000000 bytes, more than 16777216".to_owned());
    assert_eq!(droppable(&read(&files).included(&cluster)), 0);
}

/// A payload of three images: two with digests, one of them under two names, and one with a tag.
fn small_payload() -> Payload {
    let tag = |name: &str, pullspec: &str| {
        format!("{{\"name\": \"{name}\", \"from\": {{\"kind\": \"DockerImage\", \"name\": \"{pullspec}\"}}}}")
    };
    let tags = [
        tag("a", &pullspec('a')),
        tag("b", &pullspec('b')),
        tag("also-b", &pullspec('b')),
        tag("c", "quay.io/r/c:1"),
    ];
    let references = format!(
        "{{\"kind\": \"ImageStream\", \"apiVersion\": \"image.openshift.io/v1\", \"spec\": {{\"tags\": [{}]}}}}",
        tags.join(",")
    );
    let metadata = br#"{"kind": "cincinnati-metadata-v0", "version": "4.16.3"}"#;
    Payload::parse(references.as_bytes(), metadata).unwrap()
}

fn pullspec(digit: char) -> String {
    format!("quay.io/r/x@sha256:{}", digit.to_string().repeat(64))
}

/// A manifest with these annotations, which names an image.
fn manifest(name: &str, annotations: &str, image: &str) -> String {
    format!(
        "kind: Deployment\napiVersion: apps/v1\nmetadata:\n  name: {name}\n  namespace: ns\n  annotations: {annotations}\n\
         spec:\n  image: {image}\n"
    )
}

fn read_one(path: &str, text: impl Into<Vec<u8>>) -> ReleaseManifests {
    PayloadManifests::read([file(path, text)], &small_payload()).included(&Inclusion::default())
}

fn unnamed(manifests: &ReleaseManifests) -> Vec<&str> {
    manifests.unnamed().collect()
}

const PATH: &str = "release-manifests/0000_50_x_1.yaml";

/// The cases of library-go's own tests of `Include`.
#[test]
fn manifests_are_excluded_as_library_go_does() {
    let ha = "include.release.openshift.io/self-managed-high-availability: \"true\"";
    let all = Inclusion::default;
    let profile = |name: &str| Inclusion {
        profile: Some(name.to_owned()),
        ..all()
    };
    let set = |name: &str| Inclusion {
        feature_set: Some(name.to_owned()),
        ..all()
    };
    let names = |names: &[&str]| {
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<BTreeSet<_>>()
    };
    let gates = |enabled: &[&str]| Inclusion {
        feature_gates: Some(names(enabled)),
        ..all()
    };
    let major = Inclusion {
        major_version: Some(4),
        ..all()
    };
    let capabilities = |known: &[&str], enabled: &[&str]| Inclusion {
        capabilities: Some(Capabilities {
            known: names(known),
            enabled: names(enabled),
            implicit: BTreeSet::new(),
        }),
        ..all()
    };
    let unmanaged = |namespace: &str, name: &str| Inclusion {
        unmanaged: vec![ResourceId {
            group: "apps".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }],
        ..all()
    };
    let both = Inclusion {
        feature_set: Some(String::new()),
        ..gates(&[])
    };
    for (inclusion, annotations, expected) in [
        (all(), "", "no annotations"),
        (all(), "null", "no annotations"),
        (all(), "{a: 1}", "no annotations"),
        (all(), "{a: null}", ""),
        (all(), "{}", ""),
        (
            Inclusion {
                exclude: Some("identifier".to_owned()),
                ..all()
            },
            "{exclude.release.openshift.io/identifier: \"true\"}",
            "exclude.release.openshift.io/identifier=true",
        ),
        (
            Inclusion {
                exclude: Some("identifier".to_owned()),
                ..all()
            },
            "{exclude.release.openshift.io/identifier: \"false\"}",
            "",
        ),
        (
            profile("self-managed-high-availability"),
            &format!("{{{ha}}}"),
            "",
        ),
        (
            profile("single-node"),
            &format!("{{{ha}}}"),
            "include.release.openshift.io/single-node unset",
        ),
        (
            profile("p"),
            "{include.release.openshift.io/p: \"yes\"}",
            "include.release.openshift.io/p=yes",
        ),
        (set(""), "{a: b}", ""),
        (
            set(""),
            "{release.openshift.io/feature-set: TechPreviewNoUpgrade}",
            "feature-set TechPreviewNoUpgrade",
        ),
        (set(""), "{release.openshift.io/feature-set: \"OKD,Default\"}", ""),
        (
            set("OKD"),
            "{release.openshift.io/feature-set: \"OKD,Default\"}",
            "",
        ),
        (
            set("TechPreviewNoUpgrade"),
            "{release.openshift.io/feature-set: TechPreviewNoUpgrade}",
            "",
        ),
        (
            set(""),
            "{release.openshift.io/feature-set: \"Default,Other\"}",
            "? unknown feature-set Default,Other",
        ),
        (
            gates(&["a", "b"]),
            "{release.openshift.io/feature-gate: \"a, b ,-c,\"}",
            "",
        ),
        (
            gates(&["a"]),
            "{release.openshift.io/feature-gate: \"a,b\"}",
            "feature-gate b",
        ),
        (
            gates(&["a"]),
            "{release.openshift.io/feature-gate: \"-a\"}",
            "feature-gate -a",
        ),
        (gates(&[]), "{release.openshift.io/feature-gate: \"\"}", ""),
        (
            both,
            "{release.openshift.io/feature-gate: a, release.openshift.io/feature-set: Default}",
            "? both feature-set and feature-gate",
        ),
        (
            major,
            "{release.openshift.io/major-version: \"4\"}",
            "? invalid major-version 4",
        ),
        (capabilities(&["c1"], &["c1"]), "{a: b}", ""),
        (
            capabilities(&["c1"], &["c1"]),
            "{capability.openshift.io/name: \"\"}",
            "",
        ),
        (
            capabilities(&["c1"], &[]),
            "{capability.openshift.io/name: c1}",
            "disabled capability c1",
        ),
        (
            capabilities(&["c1", "c2"], &["c1", "c2"]),
            "{capability.openshift.io/name: c1+c2}",
            "",
        ),
        (
            capabilities(&["c1", "c2"], &["c1"]),
            "{capability.openshift.io/name: c1+c2}",
            "disabled capability c2",
        ),
        (
            capabilities(&["c1"], &["c1"]),
            "{capability.openshift.io/name: c1+c2}",
            "? unknown capability c2",
        ),
        (unmanaged("ns", "x"), "{}", "unmanaged by an override"),
        (unmanaged("ns", "z"), "{}", ""),
        (unmanaged("m", "x"), "{}", ""),
    ] {
        let text = manifest("x", annotations, &pullspec('a'));
        let manifests = PayloadManifests::read([file(PATH, text)], &small_payload());
        let included = manifests.included(&inclusion);
        assert_eq!(included.unread, [], "{annotations}");
        let certain = included.excluded.keys().cloned();
        let uncertain = included.uncertain.keys().map(|why| format!("? {why}"));
        let found: Vec<String> = certain.chain(uncertain).collect();
        assert_eq!(found.join(""), expected, "{annotations}");
        let is_named = expected.is_empty() || expected.starts_with('?');
        assert_eq!(!included.uses("a").is_empty(), is_named, "{annotations}");
    }
}

/// The payloads of the CVO's own tests.
#[test]
fn major_versions_and_feature_gates_are_those_of_the_operators_tests() {
    let Some(corpus) = corpus() else { return };
    let read = |payload: &str| {
        let directory = corpus
            .join("release-payload/cvo")
            .join(payload)
            .join("release-manifests");
        let names = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        let files = names.iter().map(|name| {
            let bytes = fs::read(directory.join(name)).unwrap();
            file(&format!("release-manifests/{name}"), bytes)
        });
        PayloadManifests::read(files, &small_payload())
    };
    let majors = read("majorversiontest-v5");
    for (major, included) in [(3, 1), (4, 4), (5, 4)] {
        let inclusion = Inclusion {
            major_version: Some(major),
            ..Inclusion::default()
        };
        assert_eq!(majors.included(&inclusion).included, included, "{major}");
    }
    let gates = read("featuregatetest");
    for (enabled, included) in [
        (&[] as &[&str], 2),
        (&["ExperimentalFeature"], 3),
        (&["LegacyFeature"], 1),
    ] {
        let feature_gates = Some(enabled.iter().map(|gate| (*gate).to_owned()).collect());
        let inclusion = Inclusion {
            feature_gates,
            ..Inclusion::default()
        };
        assert_eq!(gates.included(&inclusion).included, included, "{enabled:?}");
    }
    let excluding = Inclusion {
        exclude: Some("exclude-test".to_owned()),
        ..Inclusion::default()
    };
    // Without the file that has no extension, and the excluded one.
    assert_eq!(read("payloadtest").included(&excluding).included, 3);
}

#[test]
fn a_capability_in_use_is_implicitly_enabled() {
    let payload = small_payload();
    let read = |texts: &[String]| PayloadManifests::read([file(PATH, texts.join("---\n"))], &payload);
    let current = read(&[
        manifest("x", "{a: b}", &pullspec('a')),
        manifest("z", "{capability.openshift.io/name: Beta}", &pullspec('b')),
    ]);
    let update = read(&[
        manifest(
            "x",
            "{capability.openshift.io/name: Alpha+New+Beta}",
            &pullspec('a'),
        ),
        manifest("z", "{capability.openshift.io/name: Beta+Other}", &pullspec('b')),
        manifest("new", "{capability.openshift.io/name: Beta}", &pullspec('b')),
    ]);
    let mut cluster = inclusion(
        "",
        "",
        &["Alpha".into(), "Beta".into(), "Other".into()],
        &["Alpha".into()],
    );
    cluster.profile = None;
    let implicit = update.implicitly_enabled(&current, &cluster);
    assert_eq!(
        implicit.iter().map(String::as_str).collect::<Vec<_>>(),
        ["Beta", "New"]
    );
    assert_eq!(unnamed(&update.included(&cluster)), ["a", "b", "also-b", "c"]);
    cluster.capabilities.as_mut().unwrap().implicit = implicit;
    assert_eq!(unnamed(&update.included(&cluster)), ["c"]);
    assert!(
        update
            .implicitly_enabled(&current, &Inclusion::default())
            .is_empty()
    );
}

#[test]
fn an_image_is_found_wherever_it_is_named() {
    let uses = |text: &str, tag: &str| {
        let manifests = read_one(PATH, text);
        assert_eq!(manifests.unread, []);
        let uses = manifests
            .uses(tag)
            .iter()
            .flat_map(|tag_use| tag_use.namings.clone());
        uses.collect::<Vec<_>>()
    };
    let (a, b) = (pullspec('a'), pullspec('b'));
    let head = "kind: K\nmetadata:\n  name: x\n  annotations: {}\n";
    assert_eq!(
        uses(&format!("{head}spec:\n- env:\n  - value: {a}\n"), "a"),
        [Naming::Env]
    );
    assert_eq!(
        uses(&format!("{head}spec:\n  args: ['--image={a}', {a}]\n"), "a"),
        [Naming::Args]
    );
    assert_eq!(
        uses(&format!("{head}spec:\n  command: [x, docker://{a}]\n"), "a"),
        [Naming::Args]
    );
    assert_eq!(
        uses(&format!("{head}spec:\n  image: {b}\n"), "also-b"),
        [Naming::Image]
    );
    assert_eq!(
        uses(&format!("{head}spec:\n  other: {b}\n"), "b"),
        [Naming::Other]
    );
    assert_eq!(uses(&format!("{head}spec: {{}}\n# {a}\n"), "a"), [Naming::Other]);
    // By the digest alone, from another registry, and by a tag.
    assert_eq!(
        uses(&format!("{head}image: mirror/{}\n", &a[8..]), "a"),
        [Naming::Image]
    );
    assert_eq!(
        uses(&format!("{head}image: quay.io/r/c:1\n"), "c"),
        [Naming::Image]
    );
    assert_eq!(
        uses(&format!("{head}args: ['--a=docker://quay.io/r/c:1,x']\n"), "c"),
        [Naming::Args]
    );
    assert_eq!(uses(&format!("{head}image: quay.io/r/c:12\n"), "c"), []);
    assert_eq!(uses(&format!("{head}image: {}\n", &a[..a.len() - 1]), "a"), []);
    let kinds = [
        ("ConfigMap", Naming::ConfigMap),
        ("ImageStream", Naming::ImageStream),
    ];
    for (kind, naming) in kinds {
        let text = format!(
            "{}data:\n  image: '{{\"a\": \"{a}\"}}'\n",
            head.replace('K', kind)
        );
        assert_eq!(uses(&text, "a"), [naming]);
    }
    // As JSON, and with everything that real manifests have.
    let json = format!(
        "{{\"kind\": \"K\", \"metadata\": {{\"name\": \"x\", \"annotations\": {{}}}}, \"image\": \"{a}\"}}"
    );
    assert_eq!(uses(&json, "a"), [Naming::Image]);
    let odd = format!(
        "\u{feff}---\r\n# c\r\n---\n{head}version: 0.0.1-snapshot\nenum: [=, y]\nimage: x\nimage: {a}\n---\n"
    );
    assert_eq!(uses(&odd, "a"), [Naming::Image]);
}

#[test]
fn templates_of_the_operator_are_rendered() {
    let path = "manifests/0000_00_cluster-version-operator_1.yaml";
    let text = |annotation: &str, image: &str| manifest("x", annotation, image);
    let named = |text: &str, inclusion: &Inclusion| {
        let manifests = PayloadManifests::read([file(path, text)], &small_payload()).included(inclusion);
        assert_eq!(manifests.unread, []);
        manifests.unnamed().count() < 4
    };
    let cluster = inclusion("any", "Default", &[], &[]);
    let profile = "{'include.release.openshift.io/{{ .ClusterProfile }}': \"true\"}";
    assert!(named(&text(profile, "'{{index .Images \"also-b\"}}'"), &cluster));
    assert!(named(&text(profile, "'{{.Images.c}}'"), &cluster));
    assert!(!named(&text(profile, "'{{.ReleaseImage}}'"), &cluster));
    assert!(!named(&text("{a: b}", "'{{.Images.c}}'"), &cluster));

    // Not understood: the images in its text are named, and any other may be.
    let text = text(
        "{}",
        &format!("'{{{{index .FutureField \"x\"}}}} {}'", pullspec('a')),
    );
    let manifests = PayloadManifests::read([file(path, text), file(PATH, "")], &small_payload());
    let manifests = manifests.included(&cluster);
    assert_eq!(unnamed(&manifests), ["b", "also-b", "c"]);
    assert_eq!(
        manifests.droppable("c").unwrap_err().to_string(),
        format!("`{path}` is not understood: it has a template action other than an image or a literal")
    );
    // Only `manifests` has templates.
    let text = "kind: K\nmetadata:\n  name: x\n  annotations: {a: '{{ $x }}'}\n";
    assert_eq!(read_one(PATH, text).unread, []);
}

#[test]
fn everything_in_a_file_that_cannot_be_parsed_counts_as_named() {
    let good = manifest("x", "{include.release.openshift.io/p: \"true\"}", &pullspec('a'));
    let off = manifest("z", "", &pullspec('b'));
    let bomb = {
        let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for (this, last) in ('b'..='j').zip('a'..) {
            bomb += &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 10].join(", "));
        }
        format!("{off}{bomb}")
    };
    for (text, why) in [
        (format!("{good}---\n{off}spec: [}}\n"), "line"),
        (
            format!("{good}---\n{off}--- {{}}\n"),
            "a document begins with `--- {}`",
        ),
        (
            format!("{good}---\nmetadata: {{name: x}}\n---\n{off}"),
            "no `kind`",
        ),
        (format!("{good}---\n{bomb}"), ""),
        (format!("{good}---\n{off}x: {}\n", "[".repeat(10_000)), ""),
        (format!("{good}---\n{off}x: [{}]\n", "0,".repeat(200_000)), ""),
    ] {
        let manifests = read_one(PATH, text.clone());
        assert_eq!(manifests.count, 0);
        assert_eq!(unnamed(&manifests), ["c"]);
        let unread = &manifests.unread[0];
        assert_eq!(unread.path, PATH);
        assert!(unread.why.contains(why), "{}", unread.why);
        assert!(unread.why.len() < 1_000, "{}", unread.why.len());
        assert!(!unread.may_name_any);
        let first = &manifests.uses("b")[0];
        assert_eq!((first.level, first.component.as_deref()), (Some(50), Some("x")));
    }
    let mut bytes = good.into_bytes();
    bytes.push(0xff);
    let manifests = read_one(PATH, bytes);
    assert_eq!(unnamed(&manifests), ["b", "also-b", "c"]);
    assert!(manifests.unread[0].why.starts_with("it is not UTF-8"));
    // The other files are read.
    let files = [file("release-manifests/a.yaml", "x: ["), file(PATH, off)];
    let manifests = PayloadManifests::read(files, &small_payload()).included(&Inclusion::default());
    assert_eq!((manifests.count, manifests.unread.len()), (1, 1));
}

#[test]
fn millions_of_documents_and_long_annotations_are_bounded() {
    let empty = "---\n".repeat(1_000_000);
    assert_eq!(
        (
            read_one(PATH, empty.clone()).count,
            read_one(PATH, empty).unread.len()
        ),
        (0, 0)
    );
    let text = format!(
        "{}# {}\n",
        "kind: a\nmetadata: {name: b}\n---\n".repeat(51_000),
        pullspec('a')
    );
    let manifests = read_one(PATH, text);
    assert_eq!(manifests.count, 0);
    assert_eq!(
        manifests.unread[0].why,
        "the release has more than 50000 manifests"
    );
    assert_eq!(unnamed(&manifests), ["b", "also-b", "c"]);
    // Half a MiB of annotations, repeated by aliases to 10 MiB.
    let aliases: String = (0..20)
        .map(|i| format!(", release.openshift.io/{i}: *a"))
        .collect();
    let annotations = format!("{{release.openshift.io/x: &a {}{aliases}}}", "x".repeat(1 << 19));
    let files = (0..3).map(|_| file(PATH, manifest("x", &annotations, &pullspec('a'))));
    let manifests = PayloadManifests::read(files, &small_payload()).included(&Inclusion::default());
    assert_eq!((manifests.count, manifests.unread.len()), (1, 2));
    assert!(manifests.unread[0].why.ends_with("have more than 16777216 bytes"));
}

#[test]
fn images_come_in_the_order_in_which_an_upgrade_needs_them() {
    let names = |level: &str, digit| {
        let path = format!("release-manifests/{level}.yaml");
        file(&path, manifest("x", "{}", &pullspec(digit)))
    };
    let files = [
        names("0000_10-without", 'a'),
        names("0000_50_x_1", 'b'),
        names("0000_90_x_1", 'a'),
    ];
    let manifests = PayloadManifests::read(files, &small_payload()).included(&Inclusion::default());
    let tags = ["c", "also-b", "pod", "a", "z", "b"];
    let mut ranks = tags.map(|tag| (manifests.upgrade_rank(tag), tag));
    ranks.sort_by_key(|(rank, _)| *rank);
    assert_eq!(
        ranks,
        [
            (UpgradeRank::Pod, "pod"),
            (UpgradeRank::Level(50), "also-b"),
            (UpgradeRank::Level(50), "b"),
            (UpgradeRank::Level(90), "a"),
            (UpgradeRank::Unnamed, "c"),
            (UpgradeRank::Unnamed, "z"),
        ]
    );
}

#[test]
fn a_cluster_version_has_capabilities_and_overrides() {
    let read = |text: &str| Inclusion::of(&serde_json::from_str(text).unwrap());
    assert_eq!(read("{}"), Inclusion::default());
    let inclusion = read(
        r#"{"spec": {"overrides": [
            {"group": "apps", "kind": "Deployment", "namespace": "n", "name": "x", "unmanaged": true},
            {"group": "apps", "kind": "Deployment", "namespace": "n", "name": "managed", "unmanaged": false}]},
        "status": {"capabilities": {"knownCapabilities": ["Console", "Insights"], "enabledCapabilities": ["Console"]}}}"#,
    );
    assert_eq!(inclusion.unmanaged.len(), 1);
    assert_eq!(inclusion.unmanaged[0].name, "x");
    let capabilities = inclusion.capabilities.unwrap();
    assert_eq!((capabilities.known.len(), capabilities.enabled.len()), (2, 1));
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC{0,60}|[-{}\\[\\]:,&*\"a# \\n]{0,60}|(kind: a\\n|metadata:\\n|  name: b\\n|---|\\{\\{|\\}\\}|\"|\\n){0,20}") {
        let _ = read_one(PATH, text.clone());
        let _ = read_one("manifests/0000_00_a_b.yaml", text);
    }
}
