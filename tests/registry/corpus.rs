//! Parses manifests from other projects.

use std::path::Path;

use proptest::prelude::*;
use spoke_precache::oci::Manifest;

/// What each file of the corpus is to us: an image, an index, or the beginning of a refusal.
const EXPECTED: &[(&str, &str)] = &[
    ("non-json.manifest.json", "the manifest cannot be read"),
    ("oci1.index.everything.json", "index"),
    ("oci1.index.zstd-selection.json", "index"),
    ("oci1.index.zstd-selection2.json", "index"),
    ("oci1index.json", "index"),
    ("ocilist-variants.json", "index"),
    ("ociv1.artifact.json", "the manifest cannot be read"),
    ("ociv1.encrypted.manifest.json", "it is encrypted"),
    ("ociv1.everything.json", "artifact with a config of type"),
    ("ociv1.image.index.json", "index"),
    (
        "ociv1.invalid.mediatype.manifest.json",
        "its media type is not a layer's",
    ),
    ("ociv1.manifest.json", "image"),
    ("ociv1.nondistributable.gzip.manifest.json", "foreign layers"),
    ("ociv1.nondistributable.manifest.json", "foreign layers"),
    ("ociv1.nondistributable.zstd.manifest.json", "foreign layers"),
    ("ociv1.uncompressed.manifest.json", "image"),
    ("ociv1.zstd.manifest.json", "image"),
    ("ociv1nomime.artifact.json", "the manifest cannot be read"),
    ("ociv1nomime.image.index.json", "index"),
    ("ociv1nomime.manifest.json", "image"),
    ("schema2-to-schema1-by-docker.json", "schema 1"),
    ("schema2list-variants.json", "index"),
    ("schema2list.json", "index"),
    (
        "unknown-version.manifest.json",
        "`schemaVersion` is not supported: 99999",
    ),
    ("v2list.everything.json", "index"),
    ("v2list.manifest.json", "index"),
    ("v2s1-invalid-signatures.manifest.json", "schema 1"),
    ("v2s1-unsigned.manifest.json", "schema 1"),
    ("v2s1.everything.json", "schema 1"),
    ("v2s1.manifest.json", "schema 1"),
    ("v2s2.everything.json", "it is only available from `urls`"),
    ("v2s2.manifest.json", "image"),
    ("v2s2.nondistributable.gzip.manifest.json", "foreign layers"),
    ("v2s2.nondistributable.manifest.json", "foreign layers"),
    ("v2s2.uncompressed.manifest.json", "image"),
    ("v2s2nomime.manifest.json", "image"),
];

#[test]
fn every_manifest_of_the_corpus_is_read_or_refused_by_name() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/image-manifests");
    if !corpus.exists() {
        crate::notice::print("SKIPPED", &format!("no corpus at {}", corpus.display()));
        return;
    }
    let mut count = 0;
    for dir in std::fs::read_dir(&corpus).unwrap() {
        for file in std::fs::read_dir(dir.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let expected = EXPECTED.iter().find(|(file, _)| *file == name);
            let expected = expected.unwrap_or_else(|| panic!("`{name}` is new")).1;
            let found = match Manifest::parse(&std::fs::read(&path).unwrap(), None) {
                Ok(Manifest::Image(_)) => "image".into(),
                Ok(Manifest::Index(_)) => "index".into(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(expected), "{}: {found}", path.display());
            count += 1;
        }
    }
    eprintln!("{count} manifests");
}

/// After containers/image's own tests, as they are without `preferGzip` (`TestOCI1IndexChooseInstanceByCompression`,
/// `TestChooseInstance`); the rows for Windows and s390x in Docker's list are ours. The third column is in the digest.
#[test]
fn instances_are_chosen_as_containers_image_chooses_them() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../shared/corpus/image-manifests/containers-image-internal-manifest");
    if !corpus.exists() {
        crate::notice::print("SKIPPED", &format!("no corpus at {}", corpus.display()));
        return;
    }
    for (file, platform, digest) in [
        ("schema2list.json", "linux/amd64", "030fcb92"),
        ("schema2list.json", "linux/s390x", "e5aa1b0a"),
        ("schema2list.json", "linux/arm64", "dc472a59"),
        ("schema2list.json", "linux/arm/v7", "b5dbad4b"),
        ("oci1index.json", "linux/amd64", "5b0bcabd"),
        ("oci1index.json", "linux/ppc64le", "e692418e"),
        (
            "oci1index.json",
            "windows/amd64",
            "has no image for `windows/amd64`",
        ),
        ("ocilist-variants.json", "linux/amd64", "59eec883"),
        ("ocilist-variants.json", "linux/arm/v7", "eeeeeeee"),
        ("ocilist-variants.json", "linux/arm/v6", "f365626a"),
        ("ocilist-variants.json", "linux/arm/v5", "c84b0a3a"),
        (
            "ocilist-variants.json",
            "linux/arm/unrecognized-present",
            "bcf9771c",
        ),
        (
            "ocilist-variants.json",
            "linux/arm/unrecognized-not-present",
            "c84b0a3a",
        ),
        ("ocilist-variants.json", "linux/arm", "c84b0a3a"),
        ("oci1.index.zstd-selection.json", "linux/amd64", "bbbbbbbb"),
        ("oci1.index.zstd-selection.json", "linux/arm64", "cccccccc"),
        ("oci1.index.zstd-selection.json", "linux/s390x", "eeeeeeee"),
        ("oci1.index.zstd-selection2.json", "linux/amd64", "cccccccc"),
        ("oci1.index.zstd-selection2.json", "linux/arm64", "1c98002b"),
        (
            "oci1.index.zstd-selection2.json",
            "linux/matchesImageWithNoPlatform",
            "f2f5f52a",
        ),
    ] {
        let bytes = std::fs::read(corpus.join(file)).unwrap();
        let Ok(Manifest::Index(index)) = Manifest::parse(&bytes, None) else {
            panic!("`{file}` is an index");
        };
        let found = match index.choose(&platform.parse().unwrap()) {
            Ok(digest) => digest.hex(),
            Err(error) => error.to_string(),
        };
        assert!(found.contains(digest), "{platform} in {file}: {found}");
    }
}

proptest! {
    /// Whatever a registry sends, reading it ends in a manifest or in an error.
    #[test]
    fn no_manifest_is_too_odd(file in 0..EXPECTED.len(), edits in prop::collection::vec((0_usize..4000, any::<u8>()), 1..6)) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/image-manifests");
        for dir in ["containers-image-manifest", "containers-image-internal-manifest"] {
            let Ok(mut bytes) = std::fs::read(corpus.join(dir).join(EXPECTED[file].0)) else { continue };
            for (position, byte) in &edits {
                let position = position % bytes.len();
                bytes[position] = *byte;
            }
            if let Ok(Manifest::Index(index)) = Manifest::parse(&bytes, None) {
                let _ = index.choose(&"linux/arm/v7".parse().unwrap());
            }
        }
    }
}
