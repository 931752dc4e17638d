//! Tests the parsing of version-spec documents.

#![allow(clippy::unwrap_used)]

mod cluster_input;
mod from_cluster;

use super::{SpecDocument, from_document};

fn read(text: &str) -> SpecDocument {
    from_document(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn error(text: &str) -> String {
    from_document(text.as_bytes()).unwrap_err().to_string()
}

/// A ConfigMap with `data` in braces.
fn config_map(name: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n")
}

fn config(spec: &str) -> String {
    format!(
        "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {{name: c, namespace: n}}\nspec:\n{spec}"
    )
}

#[test]
fn reads_a_config_map() {
    let yaml = read(
        r#"
apiVersion: v1
kind: ConfigMap
metadata:
  name: pre-cache-spec
  namespace: openshift-talo-pre-cache
data:
  platform.image: quay.io/ocp@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c
  additionalImages: |
    quay.io/a:1

    quay.io/b:2
  excludePrecachePatterns: |-
    # no comment
    ^"aws\
  operators.indexes:
  spaceRequired: "35"
binaryData:
  operators.packagesAndChannels: cHRwOjQuOQpzcmlvdjo0Ljk=
"#,
    );
    assert_eq!(yaml.title, "ConfigMap `openshift-talo-pre-cache/pre-cache-spec`");
    assert_eq!(yaml.warnings, Vec::<String>::new());
    assert!(yaml.spec.platform_image.is_some());
    assert_eq!(yaml.spec.additional_images.len(), 2);
    assert_eq!(yaml.spec.exclude_patterns, ["# no comment", "^\"aws\\"]);
    assert_eq!(yaml.spec.packages_and_channels, ["ptp:4.9", "sriov:4.9"]);
    assert_eq!(yaml.spec.space_required, 35 << 30);

    let json = read(
        r#"{"kind": "ConfigMap", "data": {"excludePrecachePatterns": "\ud83d\ude00\/\naws"}, "apiVersion": "v1"}"#,
    );
    assert_eq!(json.spec.exclude_patterns, ["😀/", "aws"]);
    assert_eq!(json.title, "ConfigMap without a name");
}

#[test]
fn reads_a_pre_caching_config() {
    let document = read(&config(
        r#"
  overrides:
    preCacheImage: quay.io/test_images/pre-cache:latest
    platformImage: quay.io/ocp:1
    operatorsIndexes: [registry.example.com:5000/index:1.0.0]
    operatorsPackagesAndChannels:
    - "local-storage-operator: stable"
    - ptp-operator:stable
    - sriov-network-operator: stable
  excludePrecachePatterns: [aws, " vsphere ", "^\"x y"]
  additionalImages: [quay.io/a:1, null, " quay.io/b:2\n"]
  spaceRequired: 40 GB
"#,
    ));
    let spec = document.spec;
    assert_eq!(spec.platform_image.unwrap().to_string(), "quay.io/ocp:1");
    assert_eq!(spec.operators_indexes.len(), 1);
    assert_eq!(
        spec.packages_and_channels,
        [
            "local-storage-operator: stable",
            "ptp-operator:stable",
            "sriov-network-operator: stable"
        ]
    );
    assert_eq!(spec.exclude_patterns, ["aws", "vsphere", "^\"x y"]);
    assert_eq!(spec.additional_images.len(), 2);
    assert_eq!(
        spec.space_required,
        38 << 30,
        "rounded up to GiB, as the hub does"
    );
    let overrides = "PreCachingConfig `n/c`: `spec.overrides";
    assert_eq!(
        document.warnings,
        [
            format!(
                "{overrides}.operatorsPackagesAndChannels[2]` is a mapping, which the API server refuses; it is read as \
                 `sriov-network-operator: stable`"
            ),
            format!(
                "{overrides}.platformImage` is used as `platform.image` here, but TALM's hub ignores it and uses its \
                 policies"
            ),
            format!(
                "{overrides}.operatorsIndexes` is used as `operators.indexes` here, but TALM's hub ignores it and uses \
                 its policies"
            ),
            format!("{overrides}.preCacheImage` names the image of the hub's pre-cache Job and is ignored"),
        ]
    );
}

#[test]
fn an_empty_pre_caching_config_demands_what_the_hub_demands() {
    for spec in [
        "",
        "  overrides: {}",
        "  overrides: null\n  spaceRequired: ''",
        "  additionalImages: []",
    ] {
        let document = read(&config(spec));
        assert_eq!(document.spec.space_required, 35 << 30, "{spec}");
        assert!(document.spec.additional_images.is_empty(), "{spec}");
        assert_eq!(document.warnings, Vec::<String>::new(), "{spec}");
    }
    let bytes = read(&config("  spaceRequired: '40'"));
    assert_eq!(bytes.spec.space_required, 1 << 30);
    assert!(bytes.warnings[0].contains("`spec.spaceRequired` has no unit and is in bytes"));
}

#[test]
fn unknown_fields_and_keys_are_named() {
    let document = read(
        "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nadditionalImages: [a]\n\
         spec: {additionalimages: [x], overrides: {excludePrecachePatterns: [y]}}",
    );
    let names: Vec<&str> = document
        .warnings
        .iter()
        .filter_map(|warning| warning.split('`').nth(1))
        .collect();
    assert_eq!(
        names,
        [
            "additionalImages",
            "spec.additionalimages",
            "spec.overrides.excludePrecachePatterns"
        ]
    );
    let document = read(&(config_map("m", "spaceRequired: '1', platformImage: x") + "spec: 1\n"));
    assert_eq!(
        document.warnings,
        [
            "ConfigMap `m`: the field `spec` is unknown and ignored",
            "the version spec's key `platformImage` is unknown and ignored"
        ]
    );
}

#[test]
fn the_one_version_spec_among_other_objects_is_read() {
    let ours = config_map("ours", "additionalImages: quay.io/a");
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {additionalImages: x}\n";
    let other = config_map("other", "ca.crt: x");
    for text in [
        format!("---\n{other}---\n# nothing\n---\n{ours}---\n{secret}---\n"),
        format!("%YAML 1.2\n---\n{secret}...\n---\n{ours}---\n{other}"),
    ] {
        let document = read(&text);
        assert_eq!(document.title, "ConfigMap `ours`");
        assert_eq!(document.ignored.len(), 2);
        assert!(document.ignored.contains(&"Secret `s` of `v1`".to_owned()));
        assert!(
            document
                .ignored
                .contains(&"ConfigMap `other` with the keys `ca.crt`".to_owned())
        );
    }
    let item = r#"{"metadata": {"name": "a"}, "data": {"spaceRequired": "1"}}"#;
    for list in [
        format!(
            r#"{{"apiVersion": "v1", "kind": "ConfigMapList", "items": [{item}, {{"metadata": {{}}}}]}}"#
        ),
        format!(
            r#"{{"apiVersion": "v1", "kind": "List", "items": [{{"apiVersion": "v1", "kind": "ConfigMap", {}, {{}}]}}"#,
            &item[1..]
        ),
        format!(
            r#"{{"kind": "Pod", "apiVersion": "v1"}} {{"apiVersion": "v1", "kind": "ConfigMap", {}"#,
            &item[1..]
        ),
    ] {
        let document = read(&list);
        assert_eq!(
            (&document.title[..], document.ignored.len()),
            ("ConfigMap `a`", 1),
            "{list}"
        );
    }
}

#[test]
fn two_version_specs_are_an_error() {
    let (one, two) = (
        config_map("one", "spaceRequired: '1'"),
        config("  additionalImages: [a]"),
    );
    assert_eq!(
        error(&format!("{one}---\n{two}")),
        "two version specs: ConfigMap `one` and PreCachingConfig `n/c`\nhint: leave only one of them in the input"
    );
}

#[test]
fn a_file_without_a_version_spec_names_its_objects() {
    for (text, found) in [
        ("", "nothing"),
        ("# nothing\n---\n", "nothing"),
        ("a text", "a text"),
        ("- a\n- b", "a list"),
        ("42", "a number"),
        ("additionalImages: [a]", "a mapping without `kind`"),
        (
            "kind: ConfigMap\ndata: {spaceRequired: '1'}",
            "ConfigMap without a name without `apiVersion`",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:",
            "ConfigMap `a` without keys",
        ),
        (
            "apiVersion: ran.openshift.io/v2\nkind: PreCachingConfig\nmetadata: {name: a}",
            "PreCachingConfig `a` of `ran.openshift.io/v2`",
        ),
        ("apiVersion: v1\nkind: List\nitems: []", "nothing"),
    ] {
        let message = error(text);
        let expected = format!("no version spec; found: {found}\nhint: a version spec is a ConfigMap");
        assert!(message.starts_with(&expected), "{message}");
    }
    let many: String = (0..30)
        .map(|index| format!("kind: K{index}\napiVersion: v1\n---\n"))
        .collect();
    assert!(
        error(&many).contains("K9 without a name of `v1`, 20 more\n"),
        "{}",
        error(&many)
    );
}

#[test]
fn an_error_names_field_and_position() {
    let long = "a\n".repeat(3);
    for (text, expected) in [
        (
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  additionalImages:\n  - quay.io/a\n".to_owned(),
            "ConfigMap `m`: `data.additionalImages`, line 6, column 5: it is a list, not a text\nhint: write \
             `additionalImages: |`, and below it one entry per line, indented and without `-`",
        ),
        (
            config_map("m", "spaceRequired: 40"),
            "ConfigMap `m`: `data.spaceRequired`, line 4, column 23: it is a number, not a text\nhint: put it in double \
             quotes",
        ),
        (config_map("m", "spaceRequired: true"), "ConfigMap `m`: `data.spaceRequired`, line 4, column 23: it is `true` or `false`"),
        (config_map("m", "additionalImages: {a: b}"), "ConfigMap `m`: `data.additionalImages`, line 4, column 26: it is a mapping"),
        (
            config_map("m", "additionalImages: 'quay.io/a b'"),
            "ConfigMap `m`: `additionalImages`, line 1: `quay.io/a b` is not an image reference",
        ),
        (
            config_map("m", "spaceRequired: '1'") + "binaryData: {spaceRequired: MQ==}",
            "ConfigMap `m`: `binaryData.spaceRequired`, line 5, column 29: `data` has the same key",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nbinaryData: {additionalImages: '?'}".to_owned(),
            "ConfigMap without a name: `binaryData.additionalImages`, line 3, column 32: not base64: ",
        ),
        (
            "apiVersion: v1\nkind: ConfigMap\nbinaryData: {additionalImages: /w==}".to_owned(),
            "ConfigMap without a name: `additionalImages`, line 1: not UTF-8",
        ),
        (
            config("  additionalImages:\n  - quay.io/a\n  - quay.io/B\n"),
            "PreCachingConfig `n/c`: `spec.additionalImages[1]`, line 7, column 5: `quay.io/B` is not an image reference",
        ),
        (
            config("  overrides: {platformImage: ''}\n  additionalImages: quay.io/a\n"),
            "PreCachingConfig `n/c`: `spec.additionalImages`, line 6, column 21: it is a text, not a list\nhint: write each",
        ),
        (
            config("  overrides: {platformImage: a b}"),
            "PreCachingConfig `n/c`: `spec.overrides.platformImage`, line 5, column 30: `a b` is not an image reference",
        ),
        (
            config("  overrides: {platformImage: [a]}"),
            "PreCachingConfig `n/c`: `spec.overrides.platformImage`, line 5, column 30: it is a list, not a text",
        ),
        (
            config("  overrides: {operatorsPackagesAndChannels: [a: 4.10]}"),
            "PreCachingConfig `n/c`: `spec.overrides.operatorsPackagesAndChannels[0]`, line 5, column 46: it is a mapping, not \
             a text\nhint: put the whole entry in double quotes",
        ),
        (config("  excludePrecachePatterns: [1.5]"), "PreCachingConfig `n/c`: `spec.excludePrecachePatterns[0]`, line 5"),
        (config("  additionalImages: ['a\n\n    b']"), "PreCachingConfig `n/c`: `spec.additionalImages[0]`, line 5, column 22: it has more than one line"),
        (config("  spaceRequired: 40"), "PreCachingConfig `n/c`: `spec.spaceRequired`, line 5, column 18: it is a number, not"),
        (config("  spaceRequired: 40 gallons"), "PreCachingConfig `n/c`: `spec.spaceRequired`, line 5, column 18: `40 gallons` is"),
        (config("  overrides: [a]"), "PreCachingConfig `n/c`: `spec.overrides`, line 5, column 14: it is a list, not a mapping"),
        ("apiVersion: v1\nkind: List\nitems: x".to_owned(), "List without a name: `items`, line 3, column 8: it is a text, not"),
        (
            r#"{"apiVersion": "v1", "kind": "ConfigMap", "data": {"spaceRequired": 40}}"#.to_owned(),
            "ConfigMap without a name: `data.spaceRequired`: it is a number, not a text",
        ),
        ("a:\n\tb: c".to_owned(), "not YAML: tabs disallowed"),
        ("a: [".to_owned(), "not YAML: "),
        ("a: *b".to_owned(), "not YAML: "),
        ("a: 1\nb: 2\na: 3".to_owned(), "not YAML: `a` occurs twice at line 3, column 1"),
        (r#"{"a": 1, "a": 2}"#.to_owned(), "not JSON: `a` occurs twice at line 1 column 12"),
        (r#"{"a": "#.to_owned(), "not JSON: EOF while parsing a value at line 1 column 6"),
        (format!("{long}\0"), "line 4: not UTF-8 text\nhint: save it as UTF-8"),
    ] {
        let message = error(&text);
        assert!(message.starts_with(expected), "{text}\n{message}");
    }
    assert_eq!(
        from_document(b"a\n\xff\xfe").unwrap_err().to_string(),
        "line 2: not UTF-8 text\nhint: save it as UTF-8"
    );
}

#[test]
fn bombs_are_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..9 {
        let alias = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", [&alias[..]; 10].join(", "));
    }
    let nested: String = (0..100).map(|depth| " ".repeat(depth) + "a:\n").collect();
    for (text, expected) in [
        (bomb, "too large or too deeply nested at line"),
        (nested, "too large or too deeply nested at line"),
        ("[".repeat(100_000), "recursion limit exceeded"),
        ("--- 1\n".repeat(6_000), "too large or too deeply nested at line"),
        ("- 1\n".repeat(300_000), "too large or too deeply nested at line"),
        ("a: &a {b: *a}".to_owned(), "not YAML: "),
    ] {
        let message = error(&text);
        assert!(message.contains(expected), "{message}");
        assert!(message.len() < 400, "{message}");
    }
}

#[test]
fn aliases_and_merged_mappings_are_read() {
    let document = read(
        "x: &x {additionalImages: quay.io/a}\napiVersion: v1\nkind: ConfigMap\ndata: {<<: *x, spaceRequired: '1'}",
    );
    assert_eq!(document.spec.additional_images.len(), 1);
    assert_eq!(
        document.warnings,
        ["ConfigMap without a name: the field `x` is unknown and ignored"]
    );
}
