//! No manifest panics or fills memory, and none hides an image that it names.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::release::Payload;
use spoke_precache::release::manifests::{Inclusion, ManifestFile, PayloadManifests};

const METADATA: &[u8] = br#"{"kind": "cincinnati-metadata-v0", "version": "4.12.0"}"#;
/// The image `etcd` of release 4.12.0, so that its manifests are seeds.
const PULLSPEC: &str = "quay.io/openshift-release-dev/ocp-v4.0-art-dev@sha256:24d9b9d9d7fadacbc505c849a1e4b390b2f0fcd452ad851b7cce21e8cfec2020";
/// Bytes of a reason.
const MESSAGE: usize = 2_000;

fuzz_target!(|bytes: &[u8]| {
    let references = format!(
        "{{\"kind\": \"ImageStream\", \"apiVersion\": \"image.openshift.io/v1\", \"spec\": {{\"tags\": [\
         {{\"name\": \"etcd\", \"from\": {{\"kind\": \"DockerImage\", \"name\": \"{PULLSPEC}\"}}}}]}}}}"
    );
    let payload = Payload::parse(references.as_bytes(), METADATA).expect("a payload");
    for path in [
        "manifests/0000_00_cluster-version-operator_a.yaml",
        "release-manifests/0000_20_etcd-operator_a.yaml",
    ] {
        let file = ManifestFile {
            path: path.to_owned(),
            content: Ok(bytes.to_vec()),
        };
        let manifests = PayloadManifests::read([file], &payload).included(&Inclusion::default());
        let excluded: usize = manifests.excluded.values().sum();
        assert_eq!(manifests.included + excluded, manifests.count);
        assert!(manifests.unread.iter().all(|file| file.why.len() < MESSAGE));
        // Only a manifest without annotations is excluded by a cluster of which nothing is known.
        let is_in_text = String::from_utf8_lossy(bytes).contains(PULLSPEC);
        let is_named = !manifests.uses("etcd").is_empty();
        assert!(!is_in_text || is_named || excluded > 0);
        assert!(manifests.droppable("etcd").is_err());
    }
});
