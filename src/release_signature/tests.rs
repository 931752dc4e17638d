//! Tests the verdicts on real and made signatures, and the ConfigMaps of real releases (`../shared/corpus`).

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::examination::{Examination, SIGNATURE_LIMIT};
use super::keyring_file::{NamedKeyring, read_keyring_files};
use super::running_release;
use super::verification_config_map::{ANNOTATION, VerificationConfigMap};
use crate::oci::Digest;
use crate::openpgp::{Keyring, Rules};
use crate::store::Tree;

/// The directory of the corpus; nothing, with a message, if there is none.
fn corpus() -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::skip(&format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus)
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn keyring(path: PathBuf) -> NamedKeyring {
    NamedKeyring {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        keyring: Keyring::parse(&fs::read(path).unwrap(), Rules::Cvo).unwrap(),
    }
}

/// Whether the signature is valid for the digest, and why not.
fn examine(signature: PathBuf, digest: &str, keyrings: &[NamedKeyring]) -> Result<(), String> {
    let mut examination = Examination::new(digest.parse().unwrap(), keyrings);
    examination.examine(&fs::read(signature).unwrap(), "here", Timestamp::now());
    match examination.is_done() {
        true => Ok(()),
        false => Err(examination.reasons.to_string()),
    }
}

#[test]
fn real_signatures_have_the_expected_verdicts() {
    let Some(corpus) = corpus() else { return };
    let expected = json(corpus.join("expected/release-signatures.json"));
    let mut accepted = 0;
    let cases = expected["cases"].as_array().unwrap();
    for case in cases {
        let name = case["keyring"].as_str().unwrap();
        let file = expected["keyrings"][name]["file"].as_str().unwrap();
        let keyrings = [keyring(corpus.join(file))];
        let signature = corpus.join(case["signature"].as_str().unwrap());
        let result = examine(signature, case["digest"].as_str().unwrap(), &keyrings);
        assert_eq!(result.is_ok(), case["ok"] == true, "{case}: {result:?}");
        accepted += usize::from(result.is_ok());
        let why = match case["error"].as_str() {
            Some("signature digest does not match") => "here: the signature is for `sha256:",
            Some("invalid signature (issuer not in keyring)") => "which is not in the keyring",
            _ => continue,
        };
        assert!(result.unwrap_err().contains(why), "{case}");
    }
    crate::notice::print("COUNTED", &format!("{} cases, {accepted} accepted", cases.len()));
}

#[test]
fn made_signatures_have_the_expected_verdicts() {
    let Some(corpus) = corpus() else { return };
    let expected = json(corpus.join("expected/made-signatures.json"));
    let made = corpus.join("signatures-made");
    let digest = expected["digest"].as_str().unwrap();
    let stricter = expected["strict_reader_should_also_refuse"].as_array().unwrap();
    assert_eq!(stricter.len(), 3);
    let (mut accepted, cases) = (0, expected["cases"].as_array().unwrap());
    for case in cases {
        let keys = made.join(case["keyring"].as_str().unwrap());
        let is_stricter = stricter.contains(&case["signature"]);
        let result = match Keyring::parse(&fs::read(&keys).unwrap(), Rules::Cvo) {
            Ok(_) => examine(
                made.join(case["signature"].as_str().unwrap()),
                digest,
                &[keyring(keys)],
            ),
            Err(error) => Err(error.to_string()),
        };
        let is_expected = case["ok"] == true && !is_stricter;
        assert_eq!(result.is_ok(), is_expected, "{case}: {result:?}");
        accepted += usize::from(result.is_ok());
        let why = match case["error"].as_str() {
            Some("signature is not the correct type") => "Unrecognized signature type",
            Some("signature must have an identity") => "docker-reference",
            Some(error) if error.starts_with("the signature is not valid JSON") => "a whole number expected",
            _ => continue,
        };
        assert!(result.as_ref().unwrap_err().contains(why), "{case}: {result:?}");
    }
    crate::notice::print("COUNTED", &format!("{} cases, {accepted} accepted", cases.len()));
}

#[test]
fn every_keyring_needs_a_signature_and_one_signature_may_satisfy_several() {
    let Some(corpus) = corpus() else { return };
    let made = corpus.join("signatures-made");
    let digest = json(corpus.join("expected/made-signatures.json"))["digest"].clone();
    let digest: Digest = digest.as_str().unwrap().parse().unwrap();
    let read = |name: &str| fs::read(made.join(name)).unwrap();
    let keyrings = ["key-a.asc", "key-b.asc", "key-a+b.asc"].map(|name| keyring(made.join(name)));
    let mut examination = Examination::new(digest, &keyrings);
    assert!(!examination.is_answered);
    examination.examine(&read("plain.sig"), "one", Timestamp::now());
    assert_eq!(examination.remaining(), "`key-b.asc`");
    // The same again is no signature with key B.
    examination.examine(&read("plain.sig"), "two", Timestamp::now());
    assert!(!examination.is_done() && examination.is_answered);
    examination.examine(&read("by-b.sig"), "three", Timestamp::now());
    assert!(examination.is_done());
    let satisfied: Vec<_> = examination
        .satisfied
        .iter()
        .map(|it| (&*it.keyring, &*it.origin))
        .collect();
    assert_eq!(
        satisfied,
        [
            ("key-a.asc", "one"),
            ("key-a+b.asc", "one"),
            ("key-b.asc", "three")
        ]
    );
}

#[test]
fn a_large_signature_is_refused_unread() {
    let mut examination = Examination::new(Digest::of(b""), &[]);
    examination.examine(&vec![0; SIGNATURE_LIMIT + 1], "`key`", Timestamp::now());
    assert_eq!(
        examination.reasons.to_string(),
        "`key`: the signature is larger than 51200 bytes"
    );
}

#[test]
fn real_config_maps_are_read() {
    let Some(corpus) = corpus() else { return };
    let mut names = vec!["cluster-update-keys_configmap.rhel.yaml".to_owned()];
    names.extend(
        ["4.12", "4.17", "4.18", "4.20", "4.22"].map(|it| format!("by-branch/configmap.rhel.{it}.yaml")),
    );
    for name in names {
        let text = fs::read_to_string(corpus.join("keys").join(&name)).unwrap();
        let found = VerificationConfigMap::find(&text).unwrap().unwrap();
        check_red_hat(&found);
    }
    let okd = fs::read_to_string(corpus.join("keys/cluster-update-keys_configmap.okd.yaml")).unwrap();
    let okd = VerificationConfigMap::find(&okd).unwrap().unwrap();
    assert!(
        okd.stores
            .iter()
            .all(|store| store.to_string().starts_with("https://storage.googleapis.com/"))
    );
    assert!(!okd.keyrings.is_empty());
    let policy = fs::read_to_string(corpus.join("keys/openshift-cluster-image-policy.yaml")).unwrap();
    assert!(VerificationConfigMap::find(&policy).unwrap().is_none());
}

fn check_red_hat(found: &VerificationConfigMap) {
    let keyrings: Vec<_> = found.keyrings.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(keyrings, ["verifier-public-key-redhat"]);
    let stores: Vec<_> = found.stores.iter().map(ToString::to_string).collect();
    assert_eq!(
        stores,
        [
            "https://storage.googleapis.com/openshift-release/official/signatures/openshift/release",
            "https://mirror.openshift.com/pub/openshift-v4/signatures/openshift/release",
        ]
    );
}

#[test]
fn the_config_map_of_a_real_payload_is_found() {
    let Some(corpus) = corpus() else { return };
    let payload = Tree::of_directories(&[corpus.join("payload-4.12.0")]).unwrap();
    check_red_hat(&running_release::find(&payload).unwrap());
}

const MANIFEST: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: any, annotations: {release.openshift.io/verification-config-map: VALUE}}
data:
  store-x: URL
";

/// Payloads of files, with `MANIFEST` and this URL of a store; without keys, so that the error has the store if it is used.
fn found_in(files: &[(&str, &str)]) -> String {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    running_release::find(&Tree::of_directories(&[dir.path()]).unwrap()).unwrap_err()
}

#[test]
fn the_first_annotated_config_map_counts_whatever_its_name_and_value() {
    let manifest = |url: &str| MANIFEST.replace("URL", url).replace("VALUE", "\"\"");
    let none = found_in(&[
        ("release-manifests/image-references", &manifest("x")),
        ("release-manifests/a.txt", &manifest("x")),
        ("release-manifests/deeper/a.yaml", &manifest("x")),
        (
            "release-manifests/b.yaml",
            &manifest("x").replace("ConfigMap", "Secret"),
        ),
        (
            "release-manifests/c.yaml",
            "# release.openshift.io/verification-config-map\nkind: ConfigMap\n",
        ),
    ]);
    assert_eq!(
        none,
        "it has no ConfigMap with the annotation `release.openshift.io/verification-config-map`"
    );
    let (bad, good) = (manifest("gopher://x"), manifest("https://x"));
    let later = format!("kind: Namespace\n---\n{good}\n---\n{bad}");
    for (files, file, why) in [
        (
            vec![
                ("release-manifests/b.yml", &bad),
                ("release-manifests/c.json", &good),
            ],
            "b.yml",
            "the scheme is `gopher`",
        ),
        (
            vec![
                ("release-manifests/b.yaml", &good),
                ("release-manifests/a.yaml", &bad),
            ],
            "a.yaml",
            "the scheme is `gopher`",
        ),
        (
            vec![("release-manifests/b.yaml", &later)],
            "b.yaml",
            "it has no keyring",
        ),
    ] {
        let files: Vec<_> = files.iter().map(|(name, text)| (*name, text.as_str())).collect();
        let error = found_in(&files);
        let start = format!("`release-manifests/{file}` cannot be used: ");
        assert!(error.starts_with(&start) && error.contains(why), "{error}");
    }
    let error = found_in(&[("manifests/z.yaml", &good), ("release-manifests/a.yaml", &bad)]);
    assert!(
        error.starts_with("`manifests/z.yaml` cannot be used: it has no keyring"),
        "{error}"
    );
    let broken = found_in(&[("release-manifests/a.yaml", &MANIFEST.replace("URL", "[1"))]);
    assert!(broken.contains("cannot be used: broken YAML"), "{broken}");
    let number = found_in(&[("release-manifests/a.yaml", &manifest("7"))]);
    assert!(
        number.contains("a value that is not a string: `store-x`"),
        "{number}"
    );
}

#[test]
fn a_config_map_is_used_as_a_whole_or_not_at_all() {
    let parse = |data: &[(&str, &str)]| {
        let data: BTreeMap<_, _> = data
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
            .collect();
        VerificationConfigMap::parse(&data).unwrap_err().to_string()
    };
    let store = ("store-a", "https://user:planted@a");
    assert!(parse(&[]).starts_with("it has no signature store"));
    assert!(parse(&[store]).starts_with("it has no keyring"));
    assert!(parse(&[store, ("verifier-public-key-", "no key")]).starts_with("`verifier-public-key-`: "));
    let error = parse(&[store, ("store-b", "https://user:planted@")]);
    assert!(
        error.starts_with("`store-b`: not the URL of a signature store: ") && !error.contains("planted"),
        "{error}"
    );
    let many: Vec<String> = (0..100).map(|n| format!("store-{n}")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "https://a")).collect();
    assert_eq!(parse(&many), "it has more than 32 keyrings or stores");
}

#[test]
fn a_file_without_usable_keys_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.asc");
    let read = || read_keyring_files(&[&file]).unwrap_err().to_string();
    let shown = file.display();
    assert!(read().starts_with(&format!("cannot read the release keys `{shown}`: No such file")));
    fs::write(&file, "no keys").unwrap();
    assert!(read().starts_with(&format!("cannot use the release keys `{shown}`: ")));
    fs::write(&file, vec![0; (1 << 20) + 1]).unwrap();
    assert!(read().ends_with("it has more than 1048576 bytes"), "{}", read());
}

/// A billion strings out of a kilobyte, and ten thousand open brackets.
#[test]
fn bombs_in_a_payload_are_refused() {
    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (this, last) in ('b'..='j').zip('a'..) {
        bomb += &format!("{this}: &{this} [{}]\n", vec![format!("*{last}"); 10].join(", "));
    }
    for text in [bomb, "a: ".to_owned() + &"[".repeat(10_000), "- ".repeat(10_000)] {
        let text = format!("# {ANNOTATION}\n{text}");
        let error = found_in(&[("release-manifests/a.yaml", &text)]);
        assert!(error.contains("cannot be used: broken YAML: "), "{error}");
    }
}
