//! Reads file-based catalogs in every valid form, and tests the messages about invalid ones.

use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::catalog::{self, CatalogError, CatalogLocation, PackageRequest};
use spoke_precache::store::Tree;

use super::{directory, images, normalised, only, read, read_files};

/// Package `p` with channels `stable` (p.v3 replaces v2, skips v1) and `old` (p.v1), default `stable`; and another package.
pub(super) const JSON: &str = r#"
{"schema": "olm.package", "name": "other", "defaultChannel": "c", "icon": {"base64data": "aGVsbG8=", "mediatype": "x"}}
{"schema": "olm.channel", "package": "other", "name": "c", "entries": [{"name": "other.v1"}, {"name": "twice"}, {"name": "twice"}]}
{"schema": "olm.package", "name": "p", "defaultChannel": "stable"}
{"schema": "olm.channel", "package": "p", "name": "stable", "entries": [
    {"name": "p.v1"}, {"name": "p.v3", "replaces": "p.v2", "skips": ["p.v1"], "skipRange": "<3.0.0"}, {"name": "p.v2"}]}
{"entries": [{"name": "p.v1"}], "name": "old", "package": "p", "schema": "olm.channel"}
{"schema": "olm.bundle", "name": "p.v1", "package": "p", "image": "quay.io/p/bundle:v1",
    "relatedImages": [{"name": "p", "image": "quay.io/p/p:v1"}]}
{"schema": "olm.bundle", "name": "p.v2", "package": "p", "image": "quay.io/p/bundle:v2"}
{"image": "quay.io/p/bundle:v3", "name": "p.v3", "package": "p", "properties": [{"type": "x", "value": {"name": {"a": [1]}}}],
    "relatedImages": [{"name": "", "image": "quay.io/p/p:v3"}, {"name": "p", "image": "quay.io/p/p:v3"},
    {"name": "bundle", "image": "quay.io/p/bundle:v3"}, {"name": "empty", "image": ""}, {"name": "none"},
    {"image": "q@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c"}], "schema": "olm.bundle"}
{"schema": "olm.bundle", "name": "other.v1", "package": "other", "image": "NO IMAGE"}{"schema": "olm.deprecations", "package": "p"}
"#;

/// The images of p.v3.
const V3: [&str; 3] = [
    "quay.io/p/bundle:v3",
    "quay.io/p/p:v3",
    "q@sha256:dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c",
];

/// Documents of [`JSON`], one a line.
fn documents() -> Vec<String> {
    let stream = serde_json::Deserializer::from_str(JSON).into_iter::<serde_json::Value>();
    stream.map(|document| document.unwrap().to_string()).collect()
}

/// As YAML in block style, as far as JSON strings allow.
fn yaml(document: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(document).unwrap();
    let fields = value.as_object().unwrap().iter();
    fields
        .map(|(name, value)| match value {
            serde_json::Value::Array(items) => {
                format!(
                    "{name}:\n{}",
                    items.iter().map(|item| format!("- {item}\n")).collect::<String>()
                )
            }
            serde_json::Value::String(text) if !text.contains(' ') && !text.is_empty() => {
                format!("{name}: {text}\n")
            }
            value => format!("{name}: {value}\n"),
        })
        .collect()
}

#[test]
fn every_form_has_the_same_answer() {
    let documents = documents();
    let joined = |separator: &str| documents.join(separator);
    let yaml = documents
        .iter()
        .map(|document| yaml(document))
        .collect::<Vec<_>>()
        .join("---\n");
    let split: Vec<(String, String)> = documents
        .iter()
        .enumerate()
        .map(|(number, document)| {
            (
                format!("{}/{number}.any", ["a", "b/c", "."][number % 3]),
                document.clone(),
            )
        })
        .collect();
    let split: Vec<(&str, &str)> = split
        .iter()
        .map(|(path, text)| (path.as_str(), text.as_str()))
        .collect();
    let forms: [(&str, &[(&str, &str)]); 10] = [
        ("a stream", &[("catalog.json", JSON)]),
        ("no blanks", &[("x", &joined(""))]),
        ("carriage returns", &[("x", &JSON.replace('\n', "\r\n"))]),
        ("JSON between separators", &[("x.yaml", &joined("\n---\n"))]),
        (
            "YAML of JSON",
            &[("x.yaml", &format!("---\n{}", joined("\n--- # next\n")))],
        ),
        ("YAML", &[("catalog.yaml", &yaml)]),
        (
            "YAML with comments",
            &[("x", &format!("# by hand\n---\n\n---\n{yaml}\n---\n# end"))],
        ),
        (
            "YAML with carriage returns",
            &[("x", &yaml.replace('\n', "\r\n"))],
        ),
        ("split", &split),
        (
            "capitals",
            &[(
                "x",
                &JSON
                    .replace("\"schema\"", "\"Schema\"")
                    .replace("\"image\"", "\"IMAGE\""),
            )],
        ),
    ];
    for (form, files) in forms {
        let answers =
            read_files(files, &["p:stable", "p:old", "p:"]).unwrap_or_else(|error| panic!("{form}: {error}"));
        let heads: Vec<_> = answers
            .channels
            .into_iter()
            .map(|answer| answer.head.unwrap())
            .collect();
        assert_eq!(heads[0].bundle, "p.v3", "{form}");
        assert_eq!(images(&heads[0]), normalised(V3), "{form}");
        assert_eq!(
            heads[0].related_images.len(),
            2,
            "{form}: each once, and the bundle's own is none"
        );
        assert_eq!(heads[0].without_image, ["empty", "none"], "{form}");
        assert_eq!(heads[1].bundle, "p.v1", "{form}");
        assert_eq!(
            images(&heads[1]),
            normalised(["quay.io/p/bundle:v1", "quay.io/p/p:v1"]),
            "{form}"
        );
        assert_eq!(heads[2], heads[0], "{form}: the default");
    }
}

#[test]
fn what_is_asked_for_and_not_there_is_named_with_what_may_be_meant() {
    for (line, expected) in [
        (
            "other-p:stable",
            "the catalog has no package `other-p`\nhint: did you mean `other` or `p`?",
        ),
        (
            "othr:c",
            "the catalog has no package `othr`\nhint: did you mean `other`?",
        ),
        ("zzz:c", "the catalog has no package `zzz`"),
        (
            "p:stabel",
            "package `p` has no channel `stabel`, it has `old`, `stable`\nhint: did you mean `stable`?",
        ),
        (
            "p:4.16",
            "package `p` has no channel `4.16`, it has `old`, `stable`",
        ),
        (
            "other:c",
            "package `other` has the channel entry `twice` more than once",
        ),
    ] {
        let error = only(read_files(&[("c", JSON)], &[line])).unwrap_err();
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.is_absence(), !line.starts_with("other:"), "{line}");
    }
    // One that is missing does not hide the others.
    let answers = read_files(&[("c", JSON)], &["zzz:c", "p:zzz", "p:stable", "other:c"])
        .unwrap()
        .channels;
    let found: Vec<bool> = answers[..3].iter().map(|answer| answer.head.is_ok()).collect();
    assert_eq!(found, [false, false, true]);
}

#[test]
fn errors_of_a_package_are_named() {
    let bundle = r#"{"schema": "olm.bundle", "package": "p", "name": "b", "image": "i"}"#;
    let channel = |entries: &str| {
        format!(r#"{{"schema": "olm.channel", "package": "p", "name": "c", "entries": {entries}}}{bundle}"#)
    };
    for (text, expected) in [
        (
            channel(r#"[{"name": "b"}, {"name": "a"}]"#),
            "channel `c` of package `p` has 2 heads, which no other entry replaces or skips: `a`, `b`",
        ),
        (
            channel(r#"[{"name": "a", "replaces": "b"}, {"name": "b", "replaces": "a"}]"#),
            "channel `c` of package `p` has no head: each of `a`, `b` is replaced or skipped by an entry of the channel",
        ),
        (channel("[]"), "channel `c` of package `p` is empty"),
        (channel("null"), "channel `c` of package `p` is empty"),
        (
            channel(r#"[{"name": "a"}]"#),
            "channel `c` of package `p` has the head `a`, but the catalog does not contain this bundle",
        ),
        (
            channel(r#"[{"name": "b"}]"#).replace("\"i\"", "\"\""),
            "bundle `b` of package `p` names no image",
        ),
        (
            channel(r#"[{"name": "b"}]"#).replace(
                "\"i\"",
                "null, \"relatedImages\": [{\"name\": \"x\", \"value\": \"y\"}]",
            ),
            "bundle `b` of package `p` names no image",
        ),
        (
            channel(r#"[{"name": "b"}]"#).replace("\"i\"", "\"A B\""),
            "bundle `b` of package `p`: `image`: `A B` is not an image reference",
        ),
        (
            channel(r#"[{"name": "b"}]"#) + bundle,
            "package `p` has the bundle `b` more than once",
        ),
        (
            channel("[]") + &channel("[]").replace(bundle, ""),
            "package `p` has the channel `c` more than once",
        ),
    ] {
        let error = only(read_files(&[("c", &text)], &["p:c"]))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}\n{expected}");
    }
    for (package, expected) in [
        (
            "",
            "package `p` has no default channel; its channels are `c`\nhint: request one of them",
        ),
        (
            r#"{"schema": "olm.package", "name": "p"}"#,
            "package `p` has no default channel",
        ),
        (
            r#"{"schema": "olm.package", "name": "p", "defaultChannel": "d"}"#,
            "package `p` has no channel `d`, it has `c`",
        ),
    ] {
        let text = channel(r#"[{"name": "b"}]"#) + package;
        let error = only(read_files(&[("c", &text)], &["p:"]))
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn a_file_that_is_malformed_is_named_with_its_line() {
    for (text, expected) in [
        ("{\n\"schema\": \n}", "line 3: expected value"),
        (
            "{\"schema\": \"x\"}\n{\"schema\": \"x\"}\n\n{\"schema\" 1}",
            "line 4: expected `:`",
        ),
        ("{\"schema\": \"x\"}\n{\"schema\": \"x\"}\nx", "line 3: "),
        (
            "{\"schema\": \"x\"}\n{\"schema\": \"x\"}\n{\"a\": ",
            "line 3: EOF",
        ),
        (
            "{\"schema\": 1}",
            "line 1: invalid type: integer `1`, expected a string",
        ),
        (
            "\n{\"name\": \"x\"}",
            "line 2: the object that starts here: it has no `schema`",
        ),
        (
            "{\"schema\": \"olm.channel\", \"name\": \"x\"}",
            "line 1: the object that starts here: it does not name its package",
        ),
        (
            "{\"schema\": \"olm.bundle\", \"package\": \"x\"}",
            "line 1: the object that starts here: it has no `name`",
        ),
        (
            "{\"schema\": \"a\", \"Schema\": \"b\"}",
            "line 1: `schema` occurs twice",
        ),
        (
            "{\"schema\": \"olm.channel\", \"entries\": {}}",
            "line 1: invalid type: map, expected a list",
        ),
        (
            "{\"schema\": \"olm.channel\", \"entries\": [\"x\"]}",
            "line 1: invalid type: string \"x\", expected an entry of a channel",
        ),
        ("[]", "line 1: "),
        ("just words", "line 1: "),
        ("schema: x\n---\nschema: [\n", "line 3: "),
        (
            "schema: x\n---\n\nname: y\n",
            "line 3: the document that starts here: it has no `schema`",
        ),
        (
            "schema: x\n--- more\nname: y\n",
            "line 2: there is more text on the line of `---`",
        ),
        ("schema: x\n---\na: b\nname: \u{7f}\u{fffe}\n", "line "),
        ("schema: olm.channel\npackage: p\nname: 4.10\n", "line 3: "),
    ] {
        let error = only(read_files(
            &[("good", "{\"schema\": \"x\"}"), ("sub/bad", text)],
            &["p:c"],
        ))
        .unwrap_err();
        assert!(
            matches!(error, CatalogError::Malformed { .. }),
            "{text:?}: {error}"
        );
        let expected = format!("`/sub/bad` of the catalog, {expected}");
        assert!(error.to_string().starts_with(&expected), "{text:?}: {error}");
    }
    let dir = directory(&[]);
    std::fs::write(dir.path().join("x"), b"a: b\n---\nschema: x\nname: \xff").unwrap();
    let error = only(read(dir.path(), &["p:c"])).unwrap_err().to_string();
    assert!(
        error.ends_with("line 1: the document that starts here: it has no `schema`"),
        "{error}"
    );
    std::fs::write(dir.path().join("x"), b"schema: x\n---\nschema: x\nname: \xff").unwrap();
    let error = only(read(dir.path(), &["p:c"])).unwrap_err().to_string();
    assert_eq!(error, "`/x` of the catalog, line 4: it is not UTF-8");
}

#[test]
fn indexignore_files_are_obeyed() {
    let files = [
        (".indexignore", "README.md\n/docs\n*.txt\n!important.txt\n"),
        ("README.md", "# Words"),
        ("a/README.md", "# Words"),
        ("docs/x.json", "not a document"),
        ("a/b/.indexignore", "c/\n"),
        ("a/b/c/d", "not a document"),
        ("a/b/catalog.json", JSON),
        ("x.txt", "not a document"),
    ];
    assert!(only(read_files(&files, &["p:stable"])).is_ok());
    let mut files = files.to_vec();
    files.push(("important.txt", "not a document"));
    let error = only(read_files(&files, &["p:stable"])).unwrap_err().to_string();
    assert!(error.starts_with("`/important.txt` of the catalog"), "{error}");
}

#[test]
fn the_place_is_found_by_label_or_by_custom() {
    let config = |labels: &str| format!("{{\"config\": {{\"Labels\": {{{labels}}}}}}}");
    let (configs, database) = (
        "\"operators.operatorframework.io.index.configs.v1\": ",
        "\"operators.operatorframework.io.index.database.v1\": ",
    );
    let dir = directory(&[
        ("configs/a", ""),
        ("elsewhere/a", ""),
        ("database/index.db", ""),
        ("db", ""),
    ]);
    let tree = Tree::of_directories(&[dir.path()]).unwrap();
    let place = |directory: &str| Ok(CatalogLocation::Configs(directory.to_owned()));
    let data = |file: &str| Ok(CatalogLocation::Database(file.to_owned()));
    for (labels, expected) in [
        (format!("{configs}\"/elsewhere\""), place("/elsewhere")),
        (format!("{configs}\"elsewhere/\""), place("elsewhere/")),
        (format!("{database}\"/db\""), data("/db")),
        (
            format!("{database}\"/db\", {configs}\"/elsewhere\""),
            place("/elsewhere"),
        ),
        (String::new(), place("/configs")),
        (format!("{configs}\"\""), place("/configs")),
        (format!("{configs}null"), place("/configs")),
        (
            format!("{configs}\"/no\""),
            Err("the image's label names the directory `/no` as its catalog, but it does not exist"),
        ),
        (
            format!("{configs}\"/db\""),
            Err("the image's label names the directory `/db` as its catalog, but it is not a directory"),
        ),
        (
            format!("{database}\"/configs\""),
            Err("the image's label names the database `/configs` as its catalog, but it is not a file"),
        ),
        (
            format!("{database}\"a\\u0000b\""),
            Err("the image's label names the database `a\u{fffd}b` as its catalog, but it does not exist"),
        ),
    ] {
        let found =
            CatalogLocation::find(&tree, config(&labels).as_bytes()).map_err(|error| error.to_string());
        assert_eq!(found, expected.map_err(str::to_owned), "{labels}");
    }
    assert_eq!(
        CatalogLocation::find(&tree, b"no JSON").unwrap(),
        CatalogLocation::Configs("/configs".to_owned())
    );
    std::fs::remove_dir_all(dir.path().join("configs")).unwrap();
    assert_eq!(
        CatalogLocation::find(&tree, b"{}").unwrap(),
        CatalogLocation::Database("/database/index.db".to_owned())
    );
    std::fs::remove_dir_all(dir.path().join("database")).unwrap();
    assert!(matches!(
        CatalogLocation::find(&tree, b"{}"),
        Err(CatalogError::NotACatalog)
    ));
}

#[test]
fn reading_stops_on_request() {
    let dir = directory(&[("c", JSON)]);
    let tree = Tree::of_directories(&[dir.path()]).unwrap();
    let cancel = Cancel::default();
    cancel.stop(StopReason::Deadline);
    let requests = PackageRequest::of_lines(["p:"]).unwrap();
    let place = CatalogLocation::Configs("/".to_owned());
    let stopped = catalog::read(&tree, &place, &requests, &cancel);
    assert!(matches!(stopped, Err(CatalogError::Stopped(_))), "{stopped:?}");
}
