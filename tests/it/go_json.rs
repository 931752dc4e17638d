//! Tests manifests, lists and configs that a Go program may be unable to decode. A program that lists images decodes those of
//! all: an image that podman refuses must not enter the store, and podman must work beside those that do.
//!
//! The documents are mutated member by member, and podman is the oracle: what it refuses we refuse.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::{long, needs, note};
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;

/// Values of every type, and those at the edges of one.
const VALUES: [&str; 24] = [
    "null",
    "true",
    "7",
    "-0",
    "1.5",
    "1e2",
    "9223372036854775807",
    "9223372036854775808",
    "1e999",
    r#""x""#,
    r#""""#,
    r#""\ud800""#,
    r#""2024-01-02T03:04:05.6+07:00""#,
    r#""aGk=""#,
    r#""aGk""#,
    "[]",
    r#"["x"]"#,
    "[1]",
    "[null]",
    "{}",
    r#"{"a":"b"}"#,
    r#"{"a":1}"#,
    r#"{"a":null}"#,
    r#"{"a":{}}"#,
];

const DESCRIPTOR: &[&str] = &[
    "mediaType",
    "digest",
    "size",
    "urls",
    "annotations",
    "data",
    "platform",
    "artifactType",
    "unknown",
];

const CONTAINER: &[&str] = &[
    "User",
    "ExposedPorts",
    "Env",
    "Entrypoint",
    "Cmd",
    "Volumes",
    "WorkingDir",
    "Labels",
    "StopSignal",
    "ArgsEscaped",
    "Hostname",
    "Domainname",
    "AttachStdin",
    "AttachStdout",
    "AttachStderr",
    "Tty",
    "OpenStdin",
    "StdinOnce",
    "Healthcheck",
    "Image",
    "NetworkDisabled",
    "MacAddress",
    "OnBuild",
    "StopTimeout",
    "Shell",
    "unknown",
];

/// A kind of document, and what is mutated in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Document {
    Manifest,
    Config,
    List,
}

/// Objects of a document and the names that programs read in them.
fn places(document: Document) -> Vec<(&'static str, &'static [&'static str])> {
    match document {
        Document::Manifest => vec![
            (
                "",
                &[
                    "schemaVersion",
                    "mediaType",
                    "artifactType",
                    "config",
                    "layers",
                    "subject",
                    "annotations",
                    "manifests",
                    "fsLayers",
                    "history",
                    "signatures",
                    "unknown",
                ],
            ),
            ("/config", DESCRIPTOR),
            ("/layers/0", DESCRIPTOR),
            ("/subject", DESCRIPTOR),
        ],
        Document::Config => vec![
            (
                "",
                &[
                    "created",
                    "author",
                    "architecture",
                    "variant",
                    "os",
                    "os.version",
                    "os.features",
                    "config",
                    "rootfs",
                    "history",
                    "id",
                    "parent",
                    "comment",
                    "container",
                    "container_config",
                    "docker_version",
                    "Size",
                    "unknown",
                ],
            ),
            ("/config", CONTAINER),
            ("/container_config", CONTAINER),
            (
                "/config/Healthcheck",
                &[
                    "Test",
                    "StartPeriod",
                    "StartInterval",
                    "Interval",
                    "Timeout",
                    "Retries",
                ],
            ),
            ("/rootfs", &["type", "diff_ids", "unknown"]),
            (
                "/history/0",
                &["created", "created_by", "author", "comment", "empty_layer"],
            ),
        ],
        Document::List => vec![
            (
                "",
                &[
                    "schemaVersion",
                    "mediaType",
                    "artifactType",
                    "manifests",
                    "subject",
                    "annotations",
                    "config",
                    "layers",
                    "fsLayers",
                    "history",
                ],
            ),
            ("/manifests/0", DESCRIPTOR),
            (
                "/manifests/0/platform",
                &[
                    "architecture",
                    "os",
                    "os.version",
                    "os.features",
                    "variant",
                    "features",
                ],
            ),
        ],
    }
}

/// Other spellings of a name; Go folds most of them onto it.
fn spellings(name: &str) -> Vec<String> {
    let mut spellings = vec![
        name.to_uppercase(),
        name.to_lowercase(),
        name.replace('s', "\u{17f}"),
        name.replace('S', "\u{17f}"),
        name.replace('s', "\\u017f"),
        name.replace('k', "\u{212a}"),
        name.replace('K', "\\u212a"),
        name.replacen('i', "\u{131}", 1),
    ];
    spellings.retain(|spelling| spelling != name);
    spellings
}

/// A mutation: members are put into an object in place of the one of this name.
struct Case {
    document: Document,
    format: Format,
    at: &'static str,
    name: &'static str,
    members: Vec<u8>,
    /// What comes before and after the document.
    around: (&'static [u8], &'static [u8]),
}

impl Case {
    fn new(document: Document, at: &'static str, name: &'static str, members: impl Into<Vec<u8>>) -> Self {
        Self {
            document,
            format: Format::Oci,
            at,
            name,
            members: members.into(),
            around: (b"", b""),
        }
    }

    fn what(&self) -> String {
        let members = String::from_utf8_lossy(&self.members);
        let members: String = members.chars().take(120).collect();
        let Self {
            document, format, at, ..
        } = self;
        format!("{document:?} {format:?} `{at}`: {members} {:?}", self.around)
    }

    fn apply(&self, document: &Value) -> Vec<u8> {
        let mut document = document.clone();
        let object = document.pointer_mut(self.at).unwrap().as_object_mut().unwrap();
        object.remove(self.name);
        object.insert("@@".to_owned(), Value::Null);
        let text = document.to_string();
        let (before, after) = text.split_once("\"@@\":null").unwrap();
        let parts = [
            self.around.0,
            before.as_bytes(),
            &self.members,
            after.as_bytes(),
            self.around.1,
        ];
        parts.concat()
    }

    /// Puts the image under a tag of its own. No two have the same config, so that each has its own record.
    fn push(&self, registry: &Registry, repository: &str, tag: &str, layer: &Layer) {
        let image = Image::build(
            tag,
            self.format,
            node_architecture(),
            vec![layer.clone()],
            |config, _| {
                config["config"]["Healthcheck"] = json!({"Test": ["NONE"]});
                config["container_config"] = json!({});
            },
        );
        let mut config: Vec<u8> = image.config.to_vec();
        if self.document == Document::Config {
            config = self.apply(&serde_json::from_slice(&config).unwrap());
        }
        let mut manifest: Value = serde_json::from_slice(&image.manifest).unwrap();
        manifest["config"]["size"] = config.len().into();
        manifest["config"]["digest"] = sha256(&config).into();
        manifest["subject"] =
            json!({"mediaType": image.media_type, "size": 7, "digest": sha256(b"a subject")});
        let manifest = match self.document {
            Document::Manifest => self.apply(&manifest),
            _ => manifest.to_string().into_bytes(),
        };
        let image = Image {
            config: config.into(),
            manifest: manifest.into(),
            ..image
        };
        if self.document != Document::List {
            return registry.push(repository, Some(tag), &image);
        }
        registry.push(repository, None, &image);
        let media_type = match self.format {
            Format::Docker => "application/vnd.docker.distribution.manifest.list.v2+json",
            Format::Oci => "application/vnd.oci.image.index.v1+json",
        };
        let list = json!({
            "schemaVersion": 2,
            "mediaType": media_type,
            "manifests": [{
                "mediaType": image.media_type,
                "size": image.manifest.len(),
                "digest": image.digest(),
                "platform": {"architecture": image.architecture, "os": "linux"},
            }],
        });
        let list = self.apply(&list);
        let mut content = registry.content();
        content.put_manifest(repository, &sha256(&list), media_type, list.clone().into());
        content.put_manifest(repository, tag, media_type, list.into());
    }
}

/// Every value in place of every member, and every other spelling beside it.
fn every_member() -> Vec<Case> {
    let mut cases = Vec::new();
    for document in [Document::Manifest, Document::Config, Document::List] {
        for (at, names) in places(document) {
            for &name in names {
                for value in VALUES {
                    let member = format!("\"{name}\":{value}");
                    cases.push(Case::new(document, at, name, member));
                }
                for (turn, spelling) in spellings(name).iter().enumerate() {
                    for shift in [0, 9, 16, 20] {
                        let value = VALUES[(turn + shift) % VALUES.len()];
                        let member = format!("\"{spelling}\":{value}");
                        cases.push(Case::new(document, at, "", member));
                    }
                }
            }
        }
    }
    for (turn, case) in cases.iter_mut().enumerate() {
        if turn % 2 == 1 {
            case.format = Format::Docker;
        }
    }
    cases
}

/// What is not about one member's type.
fn special() -> Vec<Case> {
    let mut cases = Vec::new();
    for document in [Document::Manifest, Document::Config, Document::List] {
        for depth in [9_999, 10_000, 10_001, 20_000] {
            let (open, close) = ("[".repeat(depth - 1), "]".repeat(depth - 1));
            cases.push(Case::new(document, "", "", format!("\"unknown\":{open}{close}")));
            let (open, close) = ("{\"a\":".repeat(depth - 1), "}".repeat(depth - 1));
            cases.push(Case::new(
                document,
                "",
                "",
                format!("\"unknown\":{open}null{close}"),
            ));
        }
        for members in [
            &br#""annotations":{},"annotations":"x""#[..],
            br#""annotations":"x","annotations":{}"#,
            br#""history":"x","history":null"#,
            b"\"unknown\":\"\xff\"",
            b"\"\xff\":1",
            b"\"unknown\":\"a\x01b\"",
            b"\"unknown\":\"a\nb\"",
            br#""unknown":"\ud800\ud800""#,
            br#""unknown":"\u00""#,
            br#""unknown":"\x00""#,
            br#""unknown":01"#,
            br#""unknown":+1"#,
            br#""unknown":.5"#,
            br#""unknown":1."#,
            br#""unknown":NaN"#,
            br#""unknown":-1e999"#,
            br#""unknown":1e-999"#,
            br#""unknown":tru"#,
            br#""unknown":1,"#,
            br#""unknown":[1,]"#,
            br#""unknown":'a'"#,
            b"\"unknown\":\xc2\xa01",
            br#"/* no comment */ "unknown":1"#,
        ] {
            cases.push(Case::new(document, "", "", members));
        }
        for around in [
            (&b"\xef\xbb\xbf"[..], &b""[..]),
            (b" \t\r\n", b" \t\r\n"),
            (b"", b"x"),
            (b"", b"{}"),
            (b"", b"\0"),
            (b"\x0c", b""),
        ] {
            let case = Case::new(document, "", "", "\"unknown\":1");
            cases.push(Case { around, ..case });
        }
    }
    for time in [
        "0000-01-01T00:00:00Z",
        "0000-01-01T00:00:00+23:59",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
        "9999-12-31T23:59:59-23:59",
        "2024-02-30T00:00:00Z",
        "2023-02-29T00:00:00Z",
        "2024-01-02T24:00:00Z",
        "2024-01-02T23:59:60Z",
        "2024-01-02T3:04:05Z",
        "2024-01-02T03:04:05,5Z",
        "2024-01-02T03:04:05.Z",
        "2024-01-02T03:04:05.1234567891Z",
        "2024-01-02T03:04:05z",
        "2024-01-02t03:04:05Z",
        "2024-01-02 03:04:05Z",
        "2024-01-02T03:04:05+24:00",
        "2024-01-02T03:04:05+00:60",
        "2024-01-02T03:04:05+0000",
        "2024-01-02T03:04:05",
        "2024-01-02",
        "\\u0032024-01-02T03:04:05Z",
        " 2024-01-02T03:04:05Z",
    ] {
        for at in ["", "/history/0"] {
            cases.push(Case::new(
                Document::Config,
                at,
                "created",
                format!("\"created\":\"{time}\""),
            ));
        }
    }
    cases
}

/// The tags of images that are in the store by the record's names.
fn stored(world: &TestNode) -> BTreeSet<String> {
    let text = fs::read(world.graph_root().join("overlay-images/images.json")).unwrap_or_default();
    let records: Value = serde_json::from_slice(&text).unwrap_or_default();
    let records = records.as_array().into_iter().flatten();
    let names = records.flat_map(|record| record["names"].as_array().into_iter().flatten());
    let tag = |name: &Value| Some(name.as_str()?.rsplit_once(':')?.1.to_owned());
    names.filter_map(tag).collect()
}

/// Images that one command is given.
const AT_ONCE: usize = 200;

#[test]
fn what_podman_cannot_decode_is_refused_and_podman_goes_on_working() {
    needs!(root(), stock());
    let mut cases = every_member();
    if !long() {
        // A prime, so that every place and every value has its turn.
        cases = cases.into_iter().step_by(17).collect();
    }
    cases.extend(special());
    let registry = Registry::start();
    let layer = Layer::of("file /a 0644 0:0 \"a\"", Compression::Gzip);
    for (number, case) in cases.iter().enumerate() {
        case.push(&registry, "odd", &format!("c{number}"), &layer);
    }
    let ours = TestNode::trusting(&[registry.host()]);
    let good = Image::build(
        "good",
        Format::Oci,
        node_architecture(),
        vec![layer.clone()],
        |_, _| {},
    );
    registry.push("good", Some("latest"), &good);
    let good = registry.tagged("good");
    ours.run(&["--image", &good]).exits(0);
    let names: Vec<String> = (0..cases.len())
        .map(|number| format!("{}/odd:c{number}", registry.host()))
        .collect();
    for names in names.chunks(AT_ONCE) {
        let mut args = vec!["--give-up-after", "2s"];
        args.extend(names.iter().flat_map(|name| ["--image", name]));
        ours.run(&args).exits(5);
    }
    let accepted = stored(&ours);

    for top in tops() {
        let theirs = TestNode::trusting(&[registry.host()]);
        for names in names.chunks(AT_ONCE) {
            let mut command = vec!["podman", "pull", "--quiet"];
            command.extend(names.iter().map(String::as_str));
            let output = theirs.tool_command_within("600", &top, "pull", &command).output();
            // It fails for those that it refuses.
            output.expect("podman can be started");
        }
        let wanted = stored(&theirs);
        let wrong = cases.iter().enumerate().filter(|(number, _)| {
            let tag = format!("c{number}");
            accepted.contains(&tag) && !wanted.contains(&tag)
        });
        let wrong: Vec<String> = wrong.map(|(_, case)| case.what()).collect();
        note(&format!(
            "{}: {} documents, podman takes {}, we {}",
            top.display(),
            cases.len(),
            wanted.len(),
            accepted.len() - 1
        ));
        assert!(
            wrong.is_empty(),
            "stored although podman refuses them:\n{}",
            wrong.join("\n")
        );

        let listed = ours
            .podman_of(&top, &["images", "--all", "--format", "json"])
            .json();
        assert_eq!(
            listed.as_array().map(Vec::len),
            Some(accepted.len()),
            "podman does not list all"
        );
        let kept: Vec<String> = accepted
            .iter()
            .filter(|tag| tag.starts_with('c'))
            .map(|tag| format!("{}/odd:{tag}", registry.host()))
            .collect();
        for names in [vec![good.clone()], kept].concat().chunks(AT_ONCE) {
            let mut command = vec!["podman", "image", "inspect"];
            command.extend(names.iter().map(String::as_str));
            let output = ours.tool_command_within("600", &top, "pull", &command).output();
            let output = output.expect("podman can be started");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "podman does not inspect all: {said}");
            let inspected: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(inspected.as_array().map(Vec::len), Some(names.len()));
        }
    }
}

/// What the finders of this had stored: each on its own is refused with code 5 and leaves the others alone.
#[test]
fn a_manifest_whose_annotations_are_a_string_is_refused() {
    needs!(root());
    let registry = Registry::start();
    let layer = Layer::of("file /a 0644 0:0 \"a\"", Compression::Gzip);
    let deep = format!("\"deep\":{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let cases = [
        Case::new(Document::Manifest, "", "", r#""Annotations":"x""#),
        Case::new(Document::Manifest, "", "", "\"annotation\u{17f}\":\"x\""),
        Case::new(Document::Manifest, "", "", "\"\u{17f}ubject\":\"x\""),
        Case::new(Document::Manifest, "", "subject", r#""Subject":[]"#),
        Case::new(Document::Manifest, "", "", deep.clone()),
        Case::new(Document::Config, "", "", deep),
        Case::new(Document::Config, "", "", "\"hi\u{17f}tory\":\"x\""),
        Case::new(Document::Config, "/config", "", "\"Label\u{17f}\":\"x\""),
        Case::new(Document::List, "", "", r#""Annotations":"x""#),
        Case::new(Document::List, "/manifests/0", "", r#""Platform":"x""#),
    ];
    let world = TestNode::trusting(&[registry.host()]);
    for (number, case) in cases.iter().enumerate() {
        let tag = format!("c{number}");
        case.push(&registry, "odd", &tag, &layer);
        let name = format!("{}/odd:{tag}", registry.host());
        let run = world.run(&["--image", &name]);
        assert_eq!(run.code, 5, "{}: {run}", case.what());
        assert!(stored(&world).is_empty(), "{}: {run}", case.what());
    }
}
