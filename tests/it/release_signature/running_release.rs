//! Tests that the keys are those of the release that the cluster runs, read from the store, and never of the one to verify.

use std::fs;

use serde_json::json;
use spoke_precache::cluster_version::{ClusterVersion, HistoryEntry};

use super::signature_server::{Answer, SignatureServer};
use super::signing_key::SigningKey;
use super::stores::{Verification, config_map, not_verifiable, origins};
use crate::image::{Compression, Format, Image, Layer, layer, node_architecture, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

/// A release image with the ConfigMap, below files that hide it if they are read in another order.
pub(super) fn release_with(key: &SigningKey, store: &SignatureServer) -> Image {
    let manifest = |data: serde_json::Value, annotations: serde_json::Value| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "annotations": annotations}, "data": data})
            .to_string()
    };
    let annotation = json!({"release.openshift.io/verification-config-map": ""});
    let text = r#"
        dir  /release-manifests 0755 0:0
        file /release-manifests/0000_10_other.yaml 0644 0:0 bytes=other
        file /release-manifests/0000_90_keys.yaml 0644 0:0 bytes=keys
        file /release-manifests/0000_91_late.yaml 0644 0:0 bytes=late
    "#;
    let tar = layer::tar_of(
        text,
        &[
            (
                "other",
                manifest(json!({"store-0": "gopher://x"}), json!({})).as_bytes(),
            ),
            (
                "keys",
                manifest(json!(config_map(key, &[store])), annotation.clone()).as_bytes(),
            ),
            (
                "late",
                manifest(json!({"store-0": "gopher://x"}), annotation).as_bytes(),
            ),
        ],
    );
    let layers = vec![Layer::of_tar(&tar, Compression::Gzip)];
    Image::build("release", Format::Docker, node_architecture(), layers, |_, _| {})
}

#[test]
fn keys_are_those_of_the_completed_release_in_the_store() {
    needs!(root(), gpg());
    let (key, registry) = (SigningKey::new("release"), Registry::start());
    let (digest, store) = (sha256(b"a release"), SignatureServer::start());
    store.put(
        &digest,
        1,
        Answer::Signature(key.sign_release(&digest, "4.15.0-x86_64")),
    );
    let running = release_with(&key, &store);
    registry.push("ocp/release", Some("running"), &running);
    let node = TestNode::trusting(&[registry.host()]);
    let image = registry.at("ocp/release", &running.digest());
    node.run(&["--image", &image]).exits(0);

    let mut verification = Verification::of(&digest);
    verification.graph_root = node.graph_root();
    let completed = |image: &str| {
        let mut version = ClusterVersion::default();
        version.status.history.push(HistoryEntry {
            state: "Completed".to_owned(),
            image: image.to_owned(),
            ..HistoryEntry::default()
        });
        Ok(version)
    };
    verification.cluster.version = completed(&image);
    assert_eq!(origins(&verification.run()).len(), 1);
    let absent = registry.at("ocp/release", &sha256(b"absent"));
    verification.cluster.version = completed(&absent);
    let (reason, message) = not_verifiable(verification.run());
    assert_eq!(reason, "NoKeys");
    assert!(
        message.contains(&format!("the running release `{absent}` is not in the store")),
        "{message}"
    );

    // Without an API, the container of the operator has the image.
    verification.cluster.version = Err("the cluster's API is not available".to_owned());
    let (_, message) = not_verifiable(verification.run());
    assert!(
        message.contains("the node has no container `cluster-version-operator`"),
        "{message}"
    );
    let containers = node.graph_root().join("overlay-containers");
    fs::create_dir_all(&containers).unwrap();
    let name = "k8s_cluster-version-operator_cluster-version-operator-5f_openshift-cluster-version_0e_0";
    let record = json!([{"id": "c", "names": [name], "image": running.id(), "layer": "l", "created": "2026-01-02T03:04:05Z"}]);
    fs::write(containers.join("containers.json"), record.to_string()).unwrap();
    assert_eq!(origins(&verification.run()).len(), 1);

    // The running release itself is not verified with its own keys, but with those of the cluster.
    let own = running.digest();
    store.put(
        &own,
        1,
        Answer::Signature(key.sign_release(&own, "4.14.0-x86_64")),
    );
    verification.release = image.clone();
    for version in [Err("no API".to_owned()), completed(&image)] {
        verification.cluster.version = version;
        verification.cluster.verification = Err("no API".to_owned());
        let (reason, message) = not_verifiable(verification.run());
        assert_eq!(reason, "NoKeys");
        assert!(
            message.contains("the running release is the one to verify"),
            "{message}"
        );
        verification.cluster.verification = Ok(config_map(&key, &[&store]));
        assert_eq!(origins(&verification.run()).len(), 1);
    }
}
