//! Prints version specs and reads them again, with the program and with other readers of YAML and JSON.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::Value;
use spoke_precache::oci::Reference;
use spoke_precache::spec::{VersionSpec, from_document, from_keys};

/// The number of version specs in a quick test.
const SPECS: u32 = 400;

fn image() -> impl Strategy<Value = Reference> {
    let names = [
        "quay.io/openshift-release-dev/ocp-release:4.16.3-x86_64",
        "quay.io/a/b@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c",
        "registry.example.com:5000/custom-redhat-operators:1.0.0",
        "[2001:db8::1]:5000/a/b/c/d:1",
        "busybox",
        "image1:latest",
    ];
    prop::sample::select(names.to_vec()).prop_map(|name| name.parse().unwrap())
}

/// Texts that need quotes, and any other text: one line, without surrounding blanks, which do not belong to a pattern.
fn pattern() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "#", " #", "\"", "'", "\\", "\\n", ": ", "- ", "---", "...", "%", "{{", "|", ">", "&a", "*", "!", "? ", "~", "null",
            "true", "0x1f", "1e3", "=", "<<", "@", "`", "[", "]", ",", "$", "^\"aws", "^", "\t", " ", "\r", "\u{feff}",
            "\u{85}", "\u{2028}", "\u{2029}", "\u{a0}", "\u{7f}", "\u{1b}", "\u{1}", "\u{fffe}", "\u{ffff}", "é", "😀", "\u{e000}",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
        2 => "[a-z0-9-]{1,5}",
    ];
    prop::collection::vec(piece, 1..6)
        .prop_map(|pieces| {
            let line = pieces.concat().replace(['\n', '\0'], "");
            line.trim_matches([' ', '\t', '\r', '\u{feff}']).to_owned()
        })
        .prop_filter("a blank pattern is ignored", |line| !line.is_empty())
}

fn space() -> impl Strategy<Value = u64> {
    prop_oneof![
        (0_u64..100).prop_map(|gib| gib << 30),
        (0_u64..5_000).prop_map(|mib| mib << 20),
        any::<u64>()
    ]
}

fn spec() -> impl Strategy<Value = VersionSpec> {
    let images = || prop::collection::vec(image(), 0..4);
    let packages = prop::collection::vec("[a-z][a-z0-9-]{0,8}:( ?[a-z0-9.-]{1,6})?", 0..4);
    let parts = (
        prop::option::of(image()),
        images(),
        packages,
        prop::collection::vec(pattern(), 0..4),
        images(),
        space(),
    );
    parts.prop_map(
        |(platform_image, indexes, packages, patterns, additional, space_required)| VersionSpec {
            platform_image,
            operators_indexes: unique(indexes),
            packages_and_channels: unique(packages),
            exclude_patterns: unique(patterns),
            additional_images: unique(additional),
            space_required,
        },
    )
}

fn unique<T: PartialEq>(items: Vec<T>) -> Vec<T> {
    let mut unique = Vec::new();
    for item in items {
        if !unique.contains(&item) {
            unique.push(item);
        }
    }
    unique
}

/// `SPECS` and `SEED` in the environment widen the search.
fn specs() -> Vec<VersionSpec> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let seed = number("SEED").unwrap_or(0).to_le_bytes().repeat(8);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = spec();
    (0..number("SPECS").unwrap_or(SPECS))
        .map(|_| strategy.new_tree(&mut runner).unwrap().current())
        .collect()
}

#[test]
fn a_printed_spec_parses_as_the_same_spec() {
    for spec in specs() {
        for (form, text) in [("YAML", spec.to_yaml()), ("JSON", spec.to_json())] {
            let document = from_document(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
            assert_eq!(document.spec, spec, "{form}\n{text}");
            assert_eq!(document.warnings, Vec::<String>::new(), "{text}");
        }
        let files = spec
            .keys()
            .map(|(key, value)| (key.to_owned(), value.into_bytes()));
        assert_eq!(from_keys(&BTreeMap::from(files)).unwrap().0, spec);
    }
}

/// What a program makes of a text: a JSON document a line.
fn read_by(program: &[&str], input: &str) -> Vec<Value> {
    let mut child = Command::new(program[0])
        .args(&program[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{program:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .split('\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn other_readers_see_the_same_keys() {
    const READ_YAML: &str = "import json, sys, yaml\n\
        text = sys.stdin.buffer.read().decode()\n\
        for document in yaml.safe_load_all(text): print(json.dumps(document))";
    let specs = specs();
    let yaml: String = specs
        .iter()
        .map(|spec| format!("---\n{}", spec.to_yaml()))
        .collect();
    let json: String = specs.iter().map(VersionSpec::to_json).collect();
    for (program, text) in [
        (&["python3", "-c", READ_YAML][..], yaml),
        (&["jq", "-c", "."], json),
    ] {
        let there = Command::new(program[0]).arg("--version").output().is_ok();
        let has_yaml = program[0] != "python3"
            || Command::new("python3")
                .args(["-c", "import yaml"])
                .status()
                .is_ok_and(|status| status.success());
        if !(there && has_yaml) {
            assert!(
                std::env::var("CI").as_deref() != Ok("true"),
                "{} is needed",
                program[0]
            );
            crate::notice::print(
                "SKIPPED",
                &format!("`{}` (with its yaml) is not installed", program[0]),
            );
            continue;
        }
        let read = read_by(program, &text);
        assert_eq!(read.len(), specs.len());
        for (document, spec) in read.iter().zip(&specs) {
            assert_eq!(document["kind"], "ConfigMap");
            assert_eq!(document["metadata"]["name"], "pre-cache-spec");
            assert_eq!(document["data"].as_object().unwrap().len(), 6);
            for (key, value) in spec.keys() {
                let seen = document["data"][key].as_str().unwrap();
                let block = seen.strip_suffix('\n').unwrap_or(seen);
                assert_eq!(block, value, "{}: {key}", program[0]);
            }
        }
        eprintln!(
            "{}: {} ConfigMaps are read as they were meant",
            program[0],
            specs.len()
        );
    }
}

/// Documents with some bytes removed, doubled or exchanged: none panics, and what can still be read is printed as itself.
/// `MUTANTS` and `SEED` in the environment widen the search.
#[test]
fn broken_documents_are_refused_or_read_whole() {
    const INSERTS: [&str; 24] = [
        "\n",
        " ",
        "\t",
        ":",
        ": ",
        "- ",
        "|",
        "\"",
        "'",
        "\\",
        "#",
        "{",
        "}",
        "[",
        "]",
        ",",
        "---\n",
        "&a ",
        "*a",
        "null",
        "<<: ",
        "\u{feff}",
        "\u{85}",
        "!!binary ",
    ];
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let seed = number("SEED").unwrap_or(0).to_le_bytes().repeat(8);
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let config = "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata:\n  name: c\nspec:\n  overrides:\n    \
        platformImage: quay.io/ocp:1\n    operatorsPackagesAndChannels:\n    - a: b\n    - 'c: d'\n  additionalImages:\n  - quay.io/a\n  \
        excludePrecachePatterns: [aws, \"^\\\"gcp\"]\n  spaceRequired: 40 GB\n";
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  data: {{a: b}}\n- {}",
        config.trim_end().replace('\n', "\n  ")
    );
    let specs = specs();
    let mut originals = vec![config.to_owned(), list];
    originals.extend(
        specs
            .iter()
            .take(20)
            .flat_map(|spec| [spec.to_yaml(), spec.to_json()]),
    );
    let mut read = 0;
    let count = number("MUTANTS").unwrap_or(2_000);
    for n in 0..count {
        let mut bytes = originals[n as usize % originals.len()].clone().into_bytes();
        for _ in 0..1 + rng.next_u32() % 3 {
            let at = rng.next_u32() as usize % (bytes.len() + 1);
            let until = (at + rng.next_u32() as usize % 12).min(bytes.len());
            let piece = match rng.next_u32() % 3 {
                0 => Vec::new(),
                1 => bytes[at..until].repeat(2),
                _ => INSERTS[rng.next_u32() as usize % INSERTS.len()].into(),
            };
            let until = if rng.next_u32().is_multiple_of(2) {
                at
            } else {
                until
            };
            bytes.splice(at..until, piece);
        }
        let Ok(document) = from_document(&bytes) else {
            continue;
        };
        read += 1;
        let again = from_document(document.spec.to_yaml().as_bytes());
        let again = again.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&bytes)));
        assert_eq!(again.spec, document.spec, "{}", String::from_utf8_lossy(&bytes));
    }
    eprintln!("{count} mutants, {read} of them are still read");
}
