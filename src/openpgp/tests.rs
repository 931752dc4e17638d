//! Checks the verdicts against those of the cluster-version operator and of GnuPG.

#![allow(clippy::unwrap_used)]

mod gpg;
mod hostile;

use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::Value;

use super::{Keyring, Rules, verify};
use crate::notice;

/// 2026-11-22, when the expected answers were made.
fn then() -> Timestamp {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

/// The real inputs, which are not part of the repository.
fn corpus() -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if corpus.is_dir() {
        return Some(corpus);
    }
    notice::skip("the corpus is not there");
    None
}

fn expected(corpus: &Path, name: &str) -> Value {
    let text = fs::read(corpus.join("expected").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Whether the body of the message, not its signature, decides this case.
fn is_about_the_body(case: &Value) -> bool {
    let error = case["error"].as_str().unwrap_or_default();
    ["JSON", "identity", "correct type", "digest"]
        .iter()
        .any(|word| error.contains(word))
}

/// The verdict on a message, in one line.
fn verdict(message: &[u8], keyring: &[u8], rules: Rules) -> Result<String, String> {
    let keyring = Keyring::parse(keyring, rules).map_err(|error| format!("keyring: {error}"))?;
    let message = verify(message, &keyring, then()).map_err(|error| error.to_string())?;
    Ok(message.signer.to_string())
}

#[test]
fn real_release_signatures_have_the_verdict_of_the_cluster_version_operator() {
    let Some(corpus) = corpus() else { return };
    let expected = expected(&corpus, "release-signatures.json");
    for case in expected["cases"].as_array().unwrap() {
        let message = fs::read(corpus.join(case["signature"].as_str().unwrap())).unwrap();
        let keyring = &expected["keyrings"][case["keyring"].as_str().unwrap()]["file"];
        let keyring = fs::read(corpus.join(keyring.as_str().unwrap())).unwrap();
        let verdict = verdict(&message, &keyring, Rules::Cvo);
        assert_eq!(
            verdict.is_ok(),
            case["ok"] == true || is_about_the_body(case),
            "{case}: {verdict:?}"
        );
        if let (Err(error), Some("invalid signature (issuer not in keyring)")) =
            (&verdict, case["error"].as_str())
        {
            assert!(error.contains("is not in the keyring"), "{case}: {error}");
        }
        if let (Ok(signer), Some(issuer)) = (&verdict, case["issuer"].as_str()) {
            assert!(signer.starts_with(&issuer.to_uppercase()), "{case}: {signer}");
        }
    }
}

#[test]
fn real_keyrings_have_the_expected_keys() {
    let Some(corpus) = corpus() else { return };
    let expected = expected(&corpus, "release-signatures.json");
    for (name, keyring) in expected["keyrings"].as_object().unwrap() {
        let file = fs::read(corpus.join(keyring["file"].as_str().unwrap())).unwrap();
        for rules in [Rules::Cvo, Rules::GnuPg] {
            let Some(keys) = keyring["keys"].as_array() else {
                let error = Keyring::parse(&file, rules).unwrap_err();
                assert_eq!(
                    error.to_string(),
                    "the ASCII armor is damaged: its checksum does not match",
                    "{name}"
                );
                continue;
            };
            let keyring = Keyring::parse(&file, rules).unwrap();
            let mut fingerprints: Vec<&str> =
                keyring.signers().map(|signer| &signer.fingerprint[..]).collect();
            fingerprints.dedup();
            let expected: Vec<&str> = keys
                .iter()
                .map(|key| key["fingerprint"].as_str().unwrap())
                .collect();
            assert_eq!(fingerprints, expected, "{name}");
            let user_ids: Vec<&str> = keys.iter().map(|key| key["uids"][0].as_str().unwrap()).collect();
            for signer in keyring.signers() {
                assert!(
                    user_ids.iter().any(|id| id.starts_with(&signer.user_id)),
                    "{name}: {signer}"
                );
            }
        }
    }
}

#[test]
fn the_keyring_of_every_release_verifies_a_release_and_no_other_signature() {
    let Some(corpus) = corpus() else { return };
    let release = fs::read(corpus.join("signatures/oc-mirror-e2e.signature-1")).unwrap();
    let other = fs::read(corpus.join("signatures/cincinnati.signature-3")).unwrap();
    let mut checked = 0;
    for file in fs::read_dir(corpus.join("keys/by-branch")).unwrap() {
        let path = file.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        // The real ConfigMap has a duplicate key, which YAML parsers refuse: its block is cut out of the text.
        let Some((_, keyring)) = text.split_once("verifier-public-key-redhat: |\n") else {
            continue;
        };
        let keyring: String = keyring
            .lines()
            .take_while(|line| {
                (line.is_empty() || line.starts_with(' '))
                    && !line.contains("verifier-public-key-")
                    && !line.contains("store-")
            })
            .map(|line| format!("{}\n", line.trim_start()))
            .collect();
        let signer = verdict(&release, keyring.as_bytes(), Rules::Cvo).unwrap();
        assert_eq!(
            signer, "199E2F91FD431D51 of `Red Hat, Inc. (release key 2) <security@redhat.com>`",
            "{path:?}"
        );
        verdict(&other, keyring.as_bytes(), Rules::Cvo).unwrap_err();
        checked += 1;
    }
    assert_eq!(checked, 5);
}

#[test]
fn the_fixtures_of_containers_image_have_its_verdict() {
    let Some(corpus) = corpus() else { return };
    let fixtures = corpus.join("policy-json/containers-image-signature-fixtures");
    let file = |name: &str| fs::read(fixtures.join(name)).unwrap();
    // Of signature/mechanism_test.go; the keyring is that of its gpg home directory.
    let cases = [
        (
            "invalid-blob.signature",
            Ok("08CD26E446E2E95249B7A405E932F44B23E8DD43"),
        ),
        (
            "invalid-blob.signature-v3",
            Ok("08CD26E446E2E95249B7A405E932F44B23E8DD43"),
        ),
        ("image.signature", Ok("08CD26E446E2E95249B7A405E932F44B23E8DD43")),
        (
            "no-optional-fields.signature",
            Ok("08CD26E446E2E95249B7A405E932F44B23E8DD43"),
        ),
        ("subkey.signature", Ok("B9F4CDB9FD8C475BFA340AC38D54A947EE396F36")),
        (
            "subkey.signature-v3",
            Ok("B9F4CDB9FD8C475BFA340AC38D54A947EE396F36"),
        ),
        ("unsigned-literal.signature", Err("is not signed")),
        ("unsigned-encrypted.signature", Err("is encrypted")),
        ("expired.signature", Err("expired at 2025")),
        ("corrupt.signature", Err("does not match")),
        ("corrupt.signature-v3", Err("does not match")),
        ("unknown-key.signature", Err("not in the keyring")),
        ("unknown-key.signature-v3", Err("not in the keyring")),
        ("subkey-revoked.signature", Err("is revoked")),
        ("subkey-revoked.signature-v3", Err("is revoked")),
        ("invalid-cleartext.signature", Err("not a binary OpenPGP message")),
    ];
    let keyring = Keyring::parse(&file("pubring.gpg"), Rules::GnuPg).unwrap();
    for (name, expected) in cases {
        let verdict = verify(&file(name), &keyring, then());
        match (verdict, expected) {
            (Ok(message), Ok(fingerprint)) => assert_eq!(message.signer.fingerprint, fingerprint, "{name}"),
            (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{name}: {error}"),
            (verdict, _) => panic!("{name}: {verdict:?}"),
        }
    }
}

#[test]
fn made_signatures_have_the_verdict_of_the_cluster_version_operator() {
    let Some(corpus) = corpus() else { return };
    let made = corpus.join("signatures-made");
    let expected = expected(&corpus, "made-signatures.json");
    for case in expected["cases"].as_array().unwrap() {
        let message = fs::read(made.join(case["signature"].as_str().unwrap())).unwrap();
        let keyring = fs::read(made.join(case["keyring"].as_str().unwrap())).unwrap();
        let verdict = verdict(&message, &keyring, Rules::Cvo);
        assert_eq!(
            verdict.is_ok(),
            case["ok"] == true || is_about_the_body(case),
            "{case}: {verdict:?}"
        );
    }
}
