//! Tests where signatures are searched, in which order, and what each kind of answer means.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use spoke_precache::cancel::Cancel;
use spoke_precache::cluster::{ClusterRelease, ClusterSignature};
use spoke_precache::cluster_version::{ClusterVersion, SignatureStore};
use spoke_precache::oci::{Platform, Reference};
use spoke_precache::registry::{ConfText, Registries, RegistrySettings};
use spoke_precache::release_signature::{Inputs, Verdict, read_keyring_files, verify};
use spoke_precache::report::Fanout;
use spoke_precache::store::{StorageConf, Store};
use tempfile::TempDir;

use super::signature_server::{Answer, SignatureServer};
use super::signing_key::SigningKey;
use crate::image::sha256;
use crate::needs::needs;

const VERSION: &str = "4.15.0-x86_64";

/// A verification to run: flags, cluster and graph root.
pub(super) struct Verification {
    pub(super) release: String,
    pub(super) keys: Vec<PathBuf>,
    pub(super) stores: Vec<String>,
    pub(super) cluster: ClusterRelease,
    pub(super) graph_root: PathBuf,
    empty: TempDir,
}

impl Verification {
    /// Of the release with this digest, with an empty graph root and without a cluster.
    pub(super) fn of(digest: &str) -> Self {
        let empty = tempfile::tempdir().unwrap();
        Self {
            release: format!("registry.test/ocp/release@{digest}"),
            keys: Vec::new(),
            stores: Vec::new(),
            cluster: ClusterRelease::default(),
            graph_root: empty.path().join("storage"),
            empty,
        }
    }

    fn keys(mut self, keys: &[&SigningKey]) -> Self {
        self.keys = keys.iter().map(|key| key.public()).collect();
        self
    }

    fn stores(mut self, stores: &[&SignatureServer]) -> Self {
        self.stores = stores.iter().map(|store| store.url()).collect();
        self
    }

    pub(super) fn run(&self) -> Verdict {
        let release: Reference = self.release.parse().unwrap();
        let store = Store::open(&self.graph_root, &StorageConf::default()).unwrap();
        let inputs = Inputs::gather(
            &release,
            read_keyring_files(&self.keys).unwrap(),
            self.stores.iter().map(|url| url.parse().unwrap()).collect(),
            self.cluster.clone(),
            &store,
            &store.inventory().unwrap(),
            &Platform::of_this_node(),
        );
        let settings = RegistrySettings {
            registries_conf: vec![ConfText {
                path: "registries.conf".into(),
                text: String::new(),
            }],
            host_root: self.empty.path().to_owned(),
            idle_timeout: Duration::from_secs(1),
            ..RegistrySettings::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(async {
            let registries = Registries::new(settings, Arc::new(Fanout(Vec::new()))).unwrap();
            verify(&release, &inputs, &registries, &Cancel::default()).await
        })
    }

    /// Writes a file of a `file:` store.
    fn write(&self, path: &Path, bytes: &[u8]) {
        let path = self.empty.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The data of a ConfigMap with this key and these stores.
pub(super) fn config_map(key: &SigningKey, stores: &[&SignatureServer]) -> BTreeMap<String, String> {
    let mut data = BTreeMap::from([("verifier-public-key-test".to_owned(), key.public_text())]);
    for (number, store) in stores.iter().enumerate() {
        data.insert(format!("store-{number}"), format!("{}\n", store.url()));
    }
    data
}

fn digest() -> String {
    sha256(b"a release")
}

/// The origins of the valid signatures.
#[track_caller]
pub(super) fn origins(verdict: &Verdict) -> Vec<String> {
    let Verdict::Verified { keyrings, .. } = verdict else {
        panic!("{verdict:?}");
    };
    keyrings.iter().map(|it| it.origin.clone()).collect()
}

#[track_caller]
fn refused(verdict: Verdict) -> String {
    let Verdict::Refused { message } = verdict else {
        panic!("{verdict:?}");
    };
    message
}

#[track_caller]
pub(super) fn not_verifiable(verdict: Verdict) -> (&'static str, String) {
    let Verdict::NotVerifiable { reason, message } = verdict else {
        panic!("{verdict:?}");
    };
    (reason, message)
}

#[test]
fn signatures_are_tried_by_number_until_one_is_valid() {
    needs!(root(), gpg());
    let (key, stranger) = (SigningKey::new("release"), SigningKey::new("stranger"));
    let (digest, server) = (digest(), SignatureServer::start());
    let other = key.sign_release(&sha256(b"another release"), VERSION);
    for (number, signature) in [
        (1, stranger.sign_release(&digest, VERSION)),
        // An empty one is passed over.
        (2, Vec::new()),
        (3, other),
        (4, key.sign_release(&digest, VERSION)),
        (5, b"never asked for".to_vec()),
    ] {
        server.put(&digest, number, Answer::Signature(signature));
    }
    let verdict = Verification::of(&digest).keys(&[&key]).stores(&[&server]).run();
    let url = format!("`{}/{}/signature-4`", server.url(), digest.replace(':', "="));
    assert_eq!(origins(&verdict).join(" "), url);
    assert_eq!(verdict.version().as_deref(), Some(VERSION));
    let text = verdict.to_string();
    assert!(
        text.starts_with(&format!("release {VERSION} ({digest}) is signed with key ")),
        "{text}"
    );
    assert!(
        text.contains("of `release`") && text.ends_with(&format!("signature {url})")),
        "{text}"
    );
    assert_eq!(server.asked(&digest), [1, 2, 3, 4]);
}

#[test]
fn a_release_without_a_valid_signature_is_refused_with_each_reason() {
    needs!(root(), gpg());
    let (key, stranger) = (SigningKey::new("release"), SigningKey::new("stranger"));
    let (digest, server) = (digest(), SignatureServer::start());
    server.put(
        &digest,
        1,
        Answer::Signature(stranger.sign_release(&digest, VERSION)),
    );
    server.put(
        &digest,
        2,
        Answer::Signature(key.sign_release(&sha256(b"another release"), "4.14.0-x86_64")),
    );
    server.put(&digest, 3, Answer::Signature(b"<html>".to_vec()));
    let verification = Verification::of(&digest).keys(&[&key]).stores(&[&server]);
    let message = refused(verification.run());
    for expected in [
        &format!("the release `registry.test/ocp/release@{digest}` has no valid signature"),
        "signature-1`: signed with key ",
        &format!(
            "signature-2`: the signature is for `{}`",
            sha256(b"another release")
        ),
        "signature-3`: not a binary OpenPGP message",
        "no signature exists at `http://127.0.0.1:",
        "\nhint: ",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(message.lines().count(), 2, "{message}");
    assert_eq!(server.asked(&digest), [1, 2, 3, 4]);
    // The same with a store that has nothing at all.
    let empty = SignatureServer::start();
    let message = refused(Verification::of(&digest).keys(&[&key]).stores(&[&empty]).run());
    assert!(message.contains("no signature exists at"), "{message}");
    assert_eq!(empty.asked(&digest), [1]);
}

#[test]
fn large_endless_and_compressed_signatures_are_refused() {
    needs!(root(), gpg());
    let key = SigningKey::new("release");
    let (digest, server) = (digest(), SignatureServer::start());
    let bomb = key.sign(&vec![0; 16 << 20]);
    assert!(bomb.len() < 50 << 10, "{}", bomb.len());
    server.put(&digest, 1, Answer::Signature(vec![0; (50 << 10) + 1]));
    server.put(&digest, 2, Answer::Endless);
    server.put(&digest, 3, Answer::Signature(bomb));
    let message = refused(Verification::of(&digest).keys(&[&key]).stores(&[&server]).run());
    for number in [1, 2] {
        let expected = format!("signature-{number}`: the signature is larger than 51200 bytes");
        assert!(message.contains(&expected), "{message}");
    }
    assert!(
        message.contains("signature-3`: the message is damaged: "),
        "{message}"
    );
}

#[test]
fn a_store_has_nine_signatures_at_most() {
    needs!(root(), gpg());
    let (key, stranger) = (SigningKey::new("release"), SigningKey::new("stranger"));
    let (digest, server) = (digest(), SignatureServer::start());
    let wrong = stranger.sign_release(&digest, VERSION);
    (1..10).for_each(|number| server.put(&digest, number, Answer::Signature(wrong.clone())));
    server.put(&digest, 10, Answer::Signature(key.sign_release(&digest, VERSION)));
    refused(Verification::of(&digest).keys(&[&key]).stores(&[&server]).run());
    assert_eq!(server.asked(&digest), (1..10).collect::<Vec<_>>());
}

#[test]
fn stores_that_do_not_answer_leave_the_release_unverified() {
    needs!(root(), gpg());
    let key = SigningKey::new("release");
    let digest = digest();
    let (silent, failing, closed) = (
        SignatureServer::start(),
        SignatureServer::start(),
        SignatureServer::start(),
    );
    silent.put(&digest, 1, Answer::Silence);
    // After an error for the first signature, a missing second one does not answer for the first.
    failing.put(&digest, 1, Answer::Status(503));
    let mut verification = Verification::of(&digest)
        .keys(&[&key])
        .stores(&[&silent, &failing, &closed]);
    drop(closed);
    let (reason, message) = not_verifiable(verification.run());
    assert_eq!(reason, "NoStoreReachable", "{message}");
    assert!(
        message.contains("503") && message.contains("no signature exists at"),
        "{message}"
    );
    assert!(message.contains("\nhint: give a store"), "{message}");
    assert_eq!(failing.asked(&digest).last(), Some(&2));

    // One good store beside them is enough, and nothing waits for the others.
    let good = SignatureServer::start();
    good.put(&digest, 1, Answer::Signature(key.sign_release(&digest, VERSION)));
    verification.stores.push(good.url());
    assert_eq!(origins(&verification.run()).len(), 1);
    // One that has nothing is an answer.
    verification.stores.pop();
    let empty = SignatureServer::start();
    verification.stores.push(empty.url());
    refused(verification.run());
}

#[test]
fn an_error_does_not_hide_the_next_signature() {
    needs!(root(), gpg());
    let key = SigningKey::new("release");
    let (digest, server) = (digest(), SignatureServer::start());
    server.put(&digest, 1, Answer::Status(403));
    server.put(&digest, 2, Answer::Signature(key.sign_release(&digest, VERSION)));
    let verdict = Verification::of(&digest).keys(&[&key]).stores(&[&server]).run();
    assert!(origins(&verdict)[0].ends_with("signature-2`"), "{verdict}");
}

#[test]
fn every_keyring_needs_its_signature() {
    needs!(root(), gpg());
    let (one, two) = (SigningKey::new("one"), SigningKey::new("two"));
    let (digest, first, second) = (digest(), SignatureServer::start(), SignatureServer::start());
    first.put(&digest, 1, Answer::Signature(one.sign_release(&digest, VERSION)));
    let verification = Verification::of(&digest)
        .keys(&[&one, &two])
        .stores(&[&first, &second]);
    let message = refused(verification.run());
    let remaining = format!("no valid signature for the keyring `{}`:", two.public().display());
    assert!(message.contains(&remaining), "{message}");
    second.put(&digest, 1, Answer::Signature(two.sign_release(&digest, VERSION)));
    assert_eq!(origins(&verification.run()).len(), 2);
}

#[test]
fn a_store_may_be_a_directory_of_the_host() {
    needs!(root(), gpg());
    let (key, digest) = (SigningKey::new("release"), digest());
    let mut verification = Verification::of(&digest).keys(&[&key]);
    verification.stores.push("file:///var/lib/signatures".to_owned());
    let path = format!("var/lib/signatures/{}/signature-1", digest.replace(':', "="));
    refused(verification.run());
    verification.write(Path::new(&path), &key.sign_release(&digest, VERSION));
    assert_eq!(origins(&verification.run()), [format!("`file:///{path}`")]);
}

#[test]
fn config_maps_of_the_cluster_are_tried_before_stores() {
    needs!(root(), gpg());
    let (key, stranger) = (SigningKey::new("release"), SigningKey::new("stranger"));
    let (digest, default) = (digest(), SignatureServer::start());
    default.put(&digest, 1, Answer::Signature(key.sign_release(&digest, VERSION)));
    let entry = |digest: &str, suffix: &str, bytes: Vec<u8>| ClusterSignature {
        config_map: "openshift-config-managed/mirrored".to_owned(),
        key: format!("{}-{suffix}", digest.replace(':', "-")),
        bytes,
    };
    let another = sha256(b"another release");
    let mut verification = Verification::of(&digest);
    verification.cluster.verification = Ok(config_map(&key, &[&default]));
    verification.cluster.version = Ok(ClusterVersion::default());
    verification.cluster.signatures = Ok(vec![
        entry(&another, "1", key.sign_release(&another, VERSION)),
        entry(&digest, "0", stranger.sign_release(&digest, VERSION)),
        entry(&digest, "7", key.sign_release(&digest, VERSION)),
    ]);
    let expected = format!(
        "`{}-7` of ConfigMap `openshift-config-managed/mirrored`",
        digest.replace(':', "-")
    );
    assert_eq!(origins(&verification.run()), [expected]);
    assert_eq!(default.asked(&digest), [0; 0]);

    // A wrong one does not end the search.
    verification.cluster.signatures.as_mut().unwrap().pop();
    assert!(origins(&verification.run())[0].contains("/signature-1"));
    assert_eq!(default.asked(&digest), [1]);
    // Neither does a missing right.
    verification.cluster.signatures = Err("not allowed".to_owned());
    assert!(origins(&verification.run())[0].contains("/signature-1"));

    // A flag replaces all of them.
    let own = SignatureServer::start();
    verification.stores.push(own.url());
    let message = refused(verification.run());
    assert!(
        message.contains(&own.url()) && !message.contains(&default.url()),
        "{message}"
    );
}

#[test]
fn stores_of_the_cluster_version_replace_the_default_ones() {
    needs!(root(), gpg());
    let key = SigningKey::new("release");
    let (digest, default, custom) = (digest(), SignatureServer::start(), SignatureServer::start());
    default.put(&digest, 1, Answer::Signature(key.sign_release(&digest, VERSION)));
    let mut verification = Verification::of(&digest);
    verification.cluster.verification = Ok(config_map(&key, &[&default]));
    verification.cluster.signatures = Ok(Vec::new());
    let mut set = |stores: &[String]| {
        let stores = stores.iter().map(|url| SignatureStore { url: url.clone() });
        let mut version = ClusterVersion::default();
        version.spec.signature_stores = Some(stores.collect());
        verification.cluster.version = Ok(version);
        verification.run()
    };
    refused(set(&[custom.url()]));
    let (reason, message) = not_verifiable(set(&[]));
    assert_eq!(reason, "NoSignatureStore", "{message}");
    assert!(
        message.contains("`spec.signatureStores` of the ClusterVersion is an empty list"),
        "{message}"
    );
    let (reason, message) = not_verifiable(set(&["gopher://planted@x".to_owned()]));
    assert_eq!(reason, "NoSignatureStore", "{message}");
    assert!(
        message.contains("the scheme is `gopher`") && !message.contains("planted"),
        "{message}"
    );
    custom.put(&digest, 1, Answer::Signature(key.sign_release(&digest, VERSION)));
    assert!(origins(&set(&[custom.url()]))[0].contains(&custom.url()));
    assert_eq!(default.asked(&digest), [0; 0]);
}

#[test]
fn without_keys_or_a_digest_there_is_no_verdict() {
    needs!(root(), gpg());
    let (digest, server) = (digest(), SignatureServer::start());
    let mut verification = Verification::of(&digest).stores(&[&server]);
    verification.cluster.verification =
        Err("the service account is not allowed `get configmaps`: no\nhint: roles".to_owned());
    let (reason, message) = not_verifiable(verification.run());
    assert_eq!(reason, "NoKeys");
    for expected in [
        "no keys to verify the release",
        "the node has no container `cluster-version-operator`",
        "ConfigMap `openshift-config-managed/release-verification` of the cluster: the service account is not allowed",
        "\nhint: give the keys with `--release-keys FILE`",
    ] {
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(message.lines().count(), 3, "{message}");
    let key = SigningKey::new("release");
    let mut verification = verification.keys(&[&key]);
    verification.release = "registry.test/ocp/release:4.99.0".to_owned();
    let (reason, message) = not_verifiable(verification.run());
    assert_eq!(reason, "NotByDigest");
    assert!(
        message.ends_with("hint: give it as `registry.test/ocp/release@sha256:…`"),
        "{message}"
    );
    assert_eq!(server.asked(&digest), [0; 0]);
}
