//! Tests what is read from the API for the verification of a release's signature.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use spoke_precache::cluster::{Api, ClusterInfo, ClusterNeeds, ClusterSignature, ReleaseNeeds};

use super::api_faults::Fault;
use super::fake_api::ApiDouble;
use crate::image::release::Release;
use crate::needs::needs;
use crate::registry::Registry;
use crate::release_signature::signature_server::{Answer, SignatureServer};
use crate::release_signature::signing_key::SigningKey;
use crate::test_node::TestNode;

const VERSION_PATH: &str = "/apis/config.openshift.io/v1/clusterversions/version";
const VERIFICATION_PATH: &str = "/api/v1/namespaces/openshift-config-managed/configmaps/release-verification";
const SIGNATURES_PATH: &str = "/api/v1/namespaces/openshift-config-managed/configmaps";

fn query(api: &ApiDouble, release: ReleaseNeeds) -> ClusterInfo {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = Api::new(api.service_account()).unwrap();
    let needs = ClusterNeeds {
        kubelet: false,
        release,
        used_images: false,
        manifest_filters: false,
        upgrade: false,
    };
    runtime.block_on(ClusterInfo::query(&client, needs, Duration::from_secs(60)))
}

const ALL: ReleaseNeeds = ReleaseNeeds {
    keys: true,
    signatures: true,
};

#[test]
fn keys_signatures_and_the_completed_release_are_read() {
    let api = ApiDouble::start();
    api.put(
        VERIFICATION_PATH,
        json!({"metadata": {"name": "release-verification"}, "data": {"store-a": "https://a", "verifier-public-key-a": "k"}}),
    );
    let signatures = json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": "7"}, "items": [
        {"metadata": {"name": "signatures-managed"}, "binaryData": {"sha256-aa-0": "c2ln", "sha256-bb-7": "c2lnMg=="}},
        {"metadata": {"name": "other"}, "data": {"sha256-aa-1": "text"}, "binaryData": {"notes": "c2ln"}},
        {"metadata": {"name": "empty"}, "binaryData": null},
    ]});
    api.put(SIGNATURES_PATH, signatures);
    api.put(
        VERSION_PATH,
        json!({"spec": {"channel": "stable-4.16", "clusterID": "x"}, "status": {
            "desired": {"image": "quay.io/r@sha256:b", "version": "4.16.1"},
            "history": [{"state": "Partial", "image": "quay.io/r@sha256:b"}, {"state": "Completed", "image": "quay.io/r@sha256:a"}],
        }}),
    );
    let info = query(&api, ALL);
    assert_eq!(info.release.verification.unwrap()["store-a"], "https://a");
    let signature = |key: &str, bytes: &[u8]| ClusterSignature {
        config_map: "openshift-config-managed/signatures-managed".to_owned(),
        key: key.to_owned(),
        bytes: bytes.to_owned(),
    };
    assert_eq!(
        info.release.signatures.unwrap(),
        [
            signature("sha256-aa-0", b"sig"),
            signature("sha256-bb-7", b"sig2")
        ]
    );
    let version = info.release.version.unwrap();
    assert_eq!(version.completed().unwrap().image, "quay.io/r@sha256:a");
    assert_eq!(version.partial().unwrap().image, "quay.io/r@sha256:b");
    assert_eq!(version.spec.signature_stores, None);
    assert_eq!(info.warnings, Vec::<String>::new());
    let log = api.log();
    let list = log.iter().find(|asked| asked.path == SIGNATURES_PATH).unwrap();
    assert_eq!(
        list.query,
        "labelSelector=release.openshift.io%2Fverification-signatures"
    );
    api.is_allowed();
}

#[test]
fn missing_rights_are_reasons_and_no_warnings() {
    let api = ApiDouble::start();
    for path in [VERSION_PATH, SIGNATURES_PATH] {
        api.fault(Fault::status(path, 403));
    }
    let release = query(&api, ALL).release;
    for (why, request) in [
        (
            release.version.unwrap_err(),
            "get clusterversions.config.openshift.io",
        ),
        (release.verification.unwrap_err(), "get configmaps"),
        (release.signatures.unwrap_err(), "list configmaps"),
    ] {
        let expected = format!("the service account is not allowed `{request}`: ");
        assert!(why.starts_with(&expected), "{why}");
    }
    api.end_faults();
    let why = query(&api, ALL).release.verification.unwrap_err();
    assert_eq!(why, format!("there is no `{VERIFICATION_PATH}`"));
    assert_eq!(query(&api, ALL).warnings, Vec::<String>::new());
}

#[test]
fn nothing_is_asked_that_flags_make_unnecessary() {
    let of_releases = |needs: ReleaseNeeds| {
        let api = ApiDouble::start();
        query(&api, needs);
        let is_release = |path: &String| path.contains("openshift-config-managed") || path == VERSION_PATH;
        let mut paths: Vec<String> = api.log().into_iter().map(|asked| asked.path).collect();
        paths.retain(is_release);
        paths.sort();
        paths
    };
    assert_eq!(
        of_releases(ReleaseNeeds::default()),
        [VERSION_PATH],
        "which update runs"
    );
    let only_keys = ReleaseNeeds {
        keys: true,
        signatures: false,
    };
    assert_eq!(of_releases(only_keys), [VERIFICATION_PATH, VERSION_PATH]);
    assert_eq!(
        of_releases(ALL),
        [SIGNATURES_PATH, VERIFICATION_PATH, VERSION_PATH]
    );
}

#[test]
fn a_release_is_verified_with_what_the_cluster_has() {
    needs!(root(), gpg());
    let (registry, api) = (Registry::start(), ApiDouble::start());
    let release = Release::build(&registry.host(), 5_000);
    registry.push_release(&release);
    let (key, store) = (SigningKey::new("release"), SignatureServer::start());
    let digest = release.release.digest();
    let data = json!({"verifier-public-key-test": key.public_text(), "store-test": store.url()});
    api.put(VERIFICATION_PATH, json!({"data": data}));
    api.put(VERSION_PATH, json!({"status": {"history": []}}));
    let signatures = |bytes: &[u8]| {
        let base64 = STANDARD.encode(bytes);
        let key = format!("{}-3", digest.replace(':', "-"));
        let map = json!({"metadata": {"name": "mirrored"}, "binaryData": {key: base64}});
        api.put(SIGNATURES_PATH, json!({"items": [map]}));
    };
    let node = TestNode::trusting(&[registry.host()]);
    let run = || super::run(&node, &api, &["--platform-image", &release.by_digest()]);

    signatures(&SigningKey::new("stranger").sign_release(&digest, "4.99.0"));
    run()
        .exits(6)
        .says("of ConfigMap `openshift-config-managed/mirrored`: signed with key ");
    let signature = key.sign_release(&digest, "4.99.0");
    store.put(&digest, 1, Answer::Signature(signature.clone()));
    run().exits(0).says("is signed with key ").says(&store.url());
    signatures(&signature);
    run()
        .exits(0)
        .says("is signed with key ")
        .says("of ConfigMap `openshift-config-managed/mirrored`)");
    api.is_allowed();
}
