//! Signatures are found where `export`, skopeo, oc-mirror and oc write them.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::*;

#[test]
fn signatures_of_images_are_found_by_repository_and_beside_a_dir() {
    let image = Image::new();
    let hex = image.manifest.digest().hex();
    let mut export = image.oci_layout();
    for number in [1, 2] {
        let path = format!("lookaside/{REPOSITORY}@sha256={hex}/signature-{number}");
        export.push((path, vec![number]));
    }
    let directory = in_directory(&export);
    let media = opened(directory.path());
    let signature =
        |repository, number| media.lookaside_signature(repository, image.manifest.digest(), number);
    assert_eq!(signature(REPOSITORY, 1), Some(Bytes::from_static(&[1])));
    assert_eq!(signature(REPOSITORY, 2), Some(Bytes::from_static(&[2])));
    assert_eq!(signature(REPOSITORY, 3), None);
    assert_eq!(signature("quay.io/other", 1), None);

    let instance = Digest::of(b"instance");
    let dir = vec![
        ("manifest.json".to_owned(), image.manifest.bytes().to_vec()),
        ("signature-1".to_owned(), vec![3]),
        (format!("{}.signature-1", instance.hex()), vec![4]),
    ];
    let directory = in_directory(&dir);
    let media = opened(directory.path());
    let signature = |digest, number| media.lookaside_signature(REPOSITORY, digest, number);
    assert_eq!(
        signature(image.manifest.digest(), 1),
        Some(Bytes::from_static(&[3]))
    );
    assert_eq!(signature(instance, 1), Some(Bytes::from_static(&[4])));
    assert_eq!(signature(Digest::of(b"other"), 1), None);
}

#[test]
fn signatures_of_releases_are_found_where_each_program_writes_them() {
    let image = Image::new();
    let release = Digest::of(b"release");
    let hex = release.hex();
    let config_map = format!(
        r#"{{"kind":"ConfigMap","binaryData":{{"sha256-{hex}-1":"{}","sha256-{}-1":"AAAA"}}}}"#,
        BASE64_STANDARD.encode([7]),
        Digest::of(b"other").hex()
    );
    let places = [
        (format!("release-signatures/sha256={hex}/signature-1"), vec![7]),
        (
            format!("working-dir/signatures/4.16.0-x86_64-sha256-{hex}"),
            vec![7],
        ),
        (
            format!("config/signature-sha256-{}.json", &hex[..16]),
            config_map.into_bytes(),
        ),
    ];
    for place in places {
        let path = place.0.clone();
        let mut files = image.registry("docker/registry/v2/", "openshift/release-images");
        files.push(place);
        let archive = in_file("mirror_000001.tar", &tar(&files));
        let directory = in_directory(&files);
        for media in [opened(archive.path()), opened(directory.path())] {
            assert_eq!(
                media.release_signatures(release),
                [Bytes::from_static(&[7])],
                "{path}"
            );
            assert_eq!(
                media.release_signatures(Digest::of(b"unsigned")).len(),
                0,
                "{path}"
            );
        }
    }
}

#[test]
fn attachments_in_oc_mirrors_repository_belong_to_the_release() {
    let image = Image::new();
    let tag = format!("sha256-{}.sig", Digest::of(b"release").hex());
    let mut files = image.registry("docker/registry/v2/", "openshift/release-images");
    let link = format!(
        "docker/registry/v2/repositories/openshift/release-images/_manifests/tags/{tag}/current/link"
    );
    files.push((link, image.manifest.digest().to_string().into_bytes()));
    let cache = in_directory(&files);
    let tagged = opened(cache.path()).tagged("quay.io/openshift-release-dev/ocp-release", &tag);
    assert_eq!(tagged, Some(image.manifest.digest()));
}
