//! Reads catalogs of other projects and compares the heads with those of operator-registry's own code.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::{images, normalised, only, read, read_database, read_files};
use crate::needs::{corpus, needs, note};

fn expected(file: &str) -> Vec<Value> {
    let text = fs::read(corpus().unwrap().join("expected").join(file)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn texts<'a>(list: &'a Value, field: &str) -> BTreeSet<&'a str> {
    let texts = list.as_array().into_iter().flatten();
    texts
        .filter_map(|item| item[field].as_str())
        .filter(|text| !text.is_empty())
        .collect()
}

#[test]
fn heads_and_images_are_those_of_operator_registry() {
    needs!(corpus());
    let (mut heads, mut refused) = (0, 0);
    for catalog in expected("olm-heads.json") {
        let source = catalog["source"].as_str().unwrap();
        let path = corpus().unwrap().join(source);
        let is_database = path.extension().is_some_and(|extension| extension == "db");
        let ask = |line: &str| match is_database {
            true => only(read_database(&path, &[line])),
            false => only(read(&path, &[line])),
        };
        if catalog["load_error"].is_string() {
            let error = ask("a:b").unwrap_err();
            assert!(!error.is_absence(), "{source}: {error}");
            refused += 1;
            continue;
        }
        for (package, known) in catalog["packages"].as_object().unwrap() {
            // operator-registry gives heads of these too, but does not serve them.
            let convert_error = known["convert_error"].as_str().unwrap_or_default();
            if convert_error.starts_with("duplicate package") {
                let error = ask(&format!("{package}:")).unwrap_err().to_string();
                assert!(error.ends_with("more than once"), "{source} {package}: {error}");
                refused += 1;
                continue;
            }
            for (channel, known) in known["channels"].as_object().unwrap() {
                let head = ask(&format!("{package}:{channel}")).unwrap();
                let what = format!("{source} {package}:{channel}");
                assert_eq!(head.bundle, known["head"], "{what}");
                let bundle_image = head.bundle_image.as_ref().map(ToString::to_string);
                let known_image = known["bundle_image"].as_str().filter(|image| !image.is_empty());
                assert_eq!(bundle_image, normalised(known_image).pop_first(), "{what}");
                let mut all = normalised(texts(&known["related_images"], "Image"));
                all.extend(bundle_image);
                assert_eq!(images(&head), all, "{what}");
                heads += 1;
            }
            let default = known["default_channel"].as_str().unwrap();
            if !known["channels"][default].is_null() {
                assert_eq!(ask(&format!("{package}:")).unwrap().channel, default);
            }
        }
    }
    note(&format!(
        "{heads} heads agree, {refused} directories or packages are refused by both"
    ));
    assert!(heads >= 30 && refused >= 10, "{heads} {refused}");
}

/// What `opm render` made of the databases, read as file-based catalogs, gives the same answers.
#[test]
fn databases_and_their_rendering_give_the_same_answers() {
    needs!(corpus());
    for name in ["foo-index-v0.2.0.index", "qe-index_34016"] {
        let database = corpus().unwrap().join(format!("olm-sqlite/{name}.db"));
        let rendered = corpus().unwrap().join("expected/olm-sqlite").join(name);
        let text = fs::read(rendered.join("catalog.json")).unwrap();
        let mut asked = 0;
        for document in serde_json::Deserializer::from_slice(&text).into_iter::<Value>() {
            let document = document.unwrap();
            if document["schema"] != "olm.channel" {
                continue;
            }
            let line = format!(
                "{}:{}",
                document["package"].as_str().unwrap(),
                document["name"].as_str().unwrap()
            );
            let ours = only(read_database(&database, &[&line])).unwrap();
            let theirs = only(read(&rendered, &[&line])).unwrap();
            assert_eq!(ours.bundle, theirs.bundle, "{name} {line}");
            assert_eq!(images(&ours), images(&theirs), "{name} {line}");
            asked += 1;
        }
        assert!(asked > 0, "{name}");
    }
}

/// The hub's own tests of its parser, but where the parser was wrong.
#[test]
fn the_hubs_own_cases() {
    needs!(corpus());
    let cases = expected("talm-parse-index-cases.json");
    for case in &cases {
        let documents = case["objects"].as_array().unwrap();
        let text: String = documents.iter().map(|document| format!("{document}\n")).collect();
        let lines: Vec<&str> = case["operators_spec"].as_str().unwrap().lines().collect();
        let test = case["test"].as_str().unwrap();
        let wanted: Vec<&str> = case["images"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_str)
            .collect();
        if test.ends_with("malformed_operators_spec") {
            // Bug 3 of talm-contract.md, section 8: lines that were passed over without a word.
            let refused = spoke_precache::catalog::PackageRequest::of_lines(lines).unwrap_err();
            assert_eq!(refused.line, "malformed-no-colon");
            continue;
        }
        let answers = read_files(&[("catalog.json", &text)], &lines).unwrap().channels;
        if test.ends_with("empty_channel_entries") {
            let said = answers[0].head.as_ref().unwrap_err().to_string();
            assert_eq!(said, "channel `stable` of package `myoperator` is empty");
            continue;
        }
        let mut found = BTreeSet::new();
        for answer in &answers {
            found.extend(images(answer.head.as_ref().unwrap()));
        }
        assert_eq!(found, normalised(wanted), "{test}");
    }
    note(&format!("{} cases", cases.len()));
    assert_eq!(cases.len(), 7);
}
