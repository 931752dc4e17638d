//! Reads the payloads of real releases and of the cluster-version operator's tests, `release-payload` of the corpus.

use serde_json::Value;
use spoke_precache::release::{Payload, select};
use spoke_precache::spec::Excludes;

use crate::corpus;

#[test]
fn real_releases_are_read_and_selected_as_by_the_hub() {
    let Some(expected) = corpus("expected/release-payload.json") else {
        return;
    };
    let expected: Value = serde_json::from_str(&expected).unwrap();
    for (version, release) in expected.as_object().unwrap() {
        let images = corpus(release["file"].as_str().unwrap()).unwrap();
        let metadata = format!(r#"{{"kind": "cincinnati-metadata-v0", "version": "{version}"}}"#);
        let payload = Payload::parse(images.as_bytes(), metadata.as_bytes()).unwrap();
        assert_eq!(payload.version, *version);
        assert_eq!(payload.tags.len() as u64, release["tags"].as_u64().unwrap());
        for tag in &payload.tags {
            assert_eq!(release["images"][&tag.name], *tag.pullspec);
        }
        for (title, filter) in release["talm_exclude_filter"].as_object().unwrap() {
            let patterns: Vec<String> = serde_json::from_value(filter["patterns"].clone()).unwrap();
            let selection = select(&payload, &Excludes::new(&patterns).unwrap()).unwrap();
            let wanted = selection
                .wanted
                .iter()
                .map(|request| request.requesters.len())
                .sum::<usize>();
            assert!(wanted as u64 >= filter["kept"].as_u64().unwrap());
            let by_digest = title == "matches-hex-of-a-digest";
            assert_eq!(
                !selection.warnings.is_empty(),
                by_digest,
                "{version} {title}: {:?}",
                selection.warnings
            );
        }
        let everything = select(&payload, &Excludes::new(&["ocp".to_owned()]).unwrap()).unwrap();
        assert!(
            everything.wanted.is_empty() && everything.warnings.len() == 2,
            "{:?}",
            everything.warnings
        );
    }
}

/// These payloads have no tags, because the operator's tests need none. Everything before `spec` is read.
#[test]
fn the_operators_payloads_are_read_up_to_their_missing_tags() {
    for directory in [
        "payloadtest",
        "payloadtest-2",
        "payloadtestarch",
        "majorversiontest-v5",
        "pkg-payload/payload-unknown-template",
    ] {
        let file = |name: &str| {
            corpus(&format!(
                "release-payload/cvo/{directory}/release-manifests/{name}"
            ))
        };
        let Some(images) = file("image-references") else {
            return;
        };
        let error =
            Payload::parse(images.as_bytes(), file("release-metadata").unwrap().as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`release-manifests/image-references` of the release image: `spec.tags` is missing",
            "{directory}"
        );
    }
}
