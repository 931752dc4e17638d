//! Tests runs and plans of releases that are verified, refused and not verifiable.

use std::fs;

use serde_json::{Value, json};

use super::running_release::release_with;
use super::signature_server::{Answer, SignatureServer};
use super::signing_key::SigningKey;
use crate::image::release::{COMPONENTS, EXCLUDED, RELEASE, Release};
use crate::image::sha256;
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

const VERSION: &str = "4.99.0-x86_64";

/// A registry with a release, a node that trusts it, a key and a signature store without signatures.
struct Site {
    registry: Registry,
    release: Release,
    node: TestNode,
    key: SigningKey,
    store: SignatureServer,
}

impl Site {
    fn new() -> Self {
        let registry = Registry::start();
        let release = Release::build(&registry.host(), 5_000);
        registry.push_release(&release);
        Self {
            node: TestNode::trusting(&[registry.host()]),
            registry,
            release,
            key: SigningKey::new("release"),
            store: SignatureServer::start(),
        }
    }

    fn digest(&self) -> String {
        self.release.release.digest()
    }

    /// Puts the release's own signature into the store.
    fn sign(&self) {
        let signature = self.key.sign_release(&self.digest(), VERSION);
        self.store.put(&self.digest(), 1, Answer::Signature(signature));
    }

    /// Puts a signature by another key into the store.
    fn sign_by_stranger(&self) {
        let signature = SigningKey::new("stranger").sign_release(&self.digest(), VERSION);
        self.store.put(&self.digest(), 1, Answer::Signature(signature));
    }

    /// `run` or `plan` with the key and the store.
    fn start(&self, verb: &str, release: &str, more: &[&str]) -> Run {
        let (key, store) = (self.key.public().display().to_string(), self.store.url());
        let args = [
            &[
                "--platform-image",
                release,
                "--release-keys",
                &key,
                "--signature-store",
                &store,
            ],
            more,
        ];
        self.node.start(verb, &args.concat()).wait()
    }

    /// Fails the test if a request was about an image that the release names.
    #[track_caller]
    fn components_were_not_asked_for(&self, run: &Run) {
        let log = self.registry.log();
        let asked = log.iter().find(|access| access.path.contains(COMPONENTS));
        assert!(asked.is_none(), "{asked:?}: {run}");
    }
}

/// Status, reason and message of the condition.
#[track_caller]
fn condition(run: &Run) -> (&str, &str, &str) {
    let conditions = run.report["conditions"]
        .as_array()
        .unwrap_or_else(|| panic!("{run}"));
    let condition = conditions.iter().find(|it| it["type"] == "ReleaseVerified");
    let condition = condition.unwrap_or_else(|| panic!("no condition: {run}"));
    let [status, reason, message] =
        ["status", "reason", "message"].map(|field| condition[field].as_str().unwrap_or_default());
    (status, reason, message)
}

#[test]
fn a_signed_release_is_pulled_and_the_report_has_its_version_and_digest() {
    needs!(root(), gpg());
    let site = Site::new();
    site.sign();
    let release = site.release.by_digest();
    for verb in ["plan", "run", "plan", "run"] {
        let run = site
            .start(verb, &release, &["--require-release-signature"])
            .exits(0);
        let (status, reason, message) = condition(&run);
        assert_eq!((status, reason), ("True", "Verified"), "{run}");
        let expected = format!("Release {VERSION} ({}) is signed with key ", site.digest());
        assert!(message.starts_with(&expected), "{message}");
        assert!(
            message.contains(&site.store.url()) && message.contains("public.asc"),
            "{message}"
        );
    }
    assert!(
        site.registry
            .log()
            .iter()
            .any(|access| access.path.contains(COMPONENTS))
    );
}

#[test]
fn nothing_that_a_refused_release_names_is_requested() {
    needs!(root(), gpg());
    let site = Site::new();
    site.sign_by_stranger();
    let release = site.release.by_digest();
    let check = |run: Run| {
        let run = run.exits(6);
        let (status, reason, message) = condition(&run);
        assert_eq!((status, reason), ("False", "SignatureRefused"), "{run}");
        for expected in [
            "signature-1`: signed with key ",
            "not in the keyring",
            "no signature exists at `http://",
        ] {
            assert!(message.contains(expected), "{message}");
        }
        site.components_were_not_asked_for(&run);
    };
    check(site.start("plan", &release, &[]));
    check(site.start("run", &release, &[]));
    // The release image may be in the store already.
    site.node.run(&["--image", &release]).exits(0);
    check(site.start("plan", &release, &[]));
    check(site.start("run", &release, &[]));
    // A good signature later is enough.
    let good = site.key.sign_release(&site.digest(), VERSION);
    site.store.put(&site.digest(), 2, Answer::Signature(good));
    site.start("run", &release, &[]).exits(0);
}

#[test]
fn a_release_that_is_not_verifiable_is_a_warning_unless_a_signature_is_required() {
    needs!(root(), gpg());
    let site = Site::new();
    let (by_digest, by_tag) = (site.release.by_digest(), site.release.by_tag());
    let key = site.key.public().display().to_string();
    let closed = "http://user:planted@127.0.0.1:1/signatures";
    let no_keys = vec!["--platform-image", &by_digest, "--signature-store", closed];
    let no_store = vec!["--release-keys", &key, "--platform-image", &by_digest];
    let no_answer = [&no_store[..], &["--signature-store", closed]].concat();
    let no_digest = vec!["--release-keys", &key, "--platform-image", &by_tag];
    for (args, expected) in [
        (no_keys, "NoKeys"),
        (no_store, "NoSignatureStore"),
        (no_answer, "NoStoreReachable"),
        (no_digest, "NotByDigest"),
    ] {
        for verb in ["plan", "run"] {
            let node = TestNode::trusting(&[site.registry.host()]);
            site.registry.clear_log();
            let required = [&args[..], &["--require-release-signature"]].concat();
            let run = node.start(verb, &required).wait().exits(6);
            let (status, reason, message) = condition(&run);
            assert_eq!((status, reason), ("False", expected), "{run}");
            assert!(
                !message.is_empty() && !run.to_string().contains("planted"),
                "{run}"
            );
            site.components_were_not_asked_for(&run);

            let run = node.start(verb, &args).wait().exits(0);
            let (status, reason, message) = condition(&run);
            assert_eq!((status, reason), ("Unknown", expected), "{run}");
            // The log's lines begin anew at the hint, and only the condition begins with a capital.
            let first = message.lines().next().unwrap();
            assert!(run.stderr.contains(&first[1..]), "{run}");
        }
    }
}

#[test]
fn keys_that_cannot_be_used_are_an_error_of_usage() {
    needs!(root());
    let registry = Registry::start();
    let node = TestNode::trusting(&[registry.host()]);
    let file = node.out("keys.asc");
    let (image, keys) = (registry.at(RELEASE, &sha256(b"")), file.display().to_string());
    for (text, says) in [
        (None, "cannot read the release keys `"),
        (Some("no keys"), "cannot use the release keys `"),
    ] {
        text.into_iter().for_each(|text| fs::write(&file, text).unwrap());
        let args = ["--platform-image", &image, "--release-keys", &keys];
        node.run(&args).exits(2).says(says).says(&keys);
    }
    let args = [
        "--platform-image",
        &image,
        "--signature-store",
        "mirror.openshift.com",
    ];
    node.run(&args).exits(2).says("hint: begin with `https://`");
    assert!(registry.log().is_empty());
}

/// The operator's container names the running release, whose payload has keys and stores.
#[test]
fn without_flags_and_api_the_release_is_verified_with_the_keys_of_the_running_one() {
    needs!(root(), gpg());
    let site = Site::new();
    site.sign();
    let running = release_with(&site.key, &site.store);
    site.registry.push(RELEASE, Some("running"), &running);
    let image = site.registry.at(RELEASE, &running.digest());
    site.node.run(&["--image", &image]).exits(0);
    let containers = site.node.graph_root().join("overlay-containers");
    fs::create_dir_all(&containers).unwrap();
    let name = "k8s_cluster-version-operator_cluster-version-operator-5f_openshift-cluster-version_0e_0";
    let record: Value = json!([{"id": "c".repeat(64), "names": [name], "image": running.id(), "layer": "d".repeat(64),
        "created": "2026-01-02T03:04:05Z"}]);
    fs::write(containers.join("volatile-containers.json"), record.to_string()).unwrap();
    let run = site.node.run(&[
        "--platform-image",
        &site.release.by_digest(),
        "--exclude",
        EXCLUDED,
    ]);
    let run = run.exits(0);
    let (status, _, message) = condition(&run);
    assert_eq!(status, "True", "{run}");
    assert!(message.contains("verifier-public-key-test"), "{message}");
}
