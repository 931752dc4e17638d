//! Tests what happens instead of the bugs of TALM's scripts that concern catalogs (talm-contract.md, section 8), by number.

use super::{images, normalised, only, read_files};

const CATALOG: &str = r#"
{"schema": "olm.package", "name": "p", "defaultChannel": "a"}
{"schema": "olm.channel", "package": "p", "name": "a", "entries": [
    {"name": "v2", "skips": ["v1", "v1.1"]}, {"name": "v1"}, {"name": "v1.1", "replaces": "v1"}]}
{"schema": "olm.channel", "package": "p", "name": "b", "entries": [{"name": "v1"}]}
{"schema": "olm.bundle", "package": "p", "name": "v1", "image": "quay.io/p/bundle:1", "relatedImages": null}
{"schema": "olm.bundle", "package": "p", "name": "v1.1", "image": "quay.io/p/bundle:1.1"}
{"schema": "olm.bundle", "package": "p", "name": "v2", "image": "quay.io/p/bundle:2",
    "relatedImages": [{"name": "", "image": "quay.io/p/p:2"}]}"#;

#[test]
fn bug_3_a_package_or_channel_that_is_in_no_index_is_an_error() {
    for line in ["q:a", "p:c"] {
        let error = only(read_files(&[("c", CATALOG)], &[line])).unwrap_err();
        assert!(error.is_absence(), "{line}: {error}");
    }
}

#[test]
fn bug_4_what_is_skipped_is_no_head() {
    let head = only(read_files(&[("c", CATALOG)], &["p:a"])).unwrap();
    assert_eq!(head.bundle, "v2");
    assert_eq!(images(&head), normalised(["quay.io/p/bundle:2", "quay.io/p/p:2"]));
}

#[test]
fn bug_5_of_two_channels_of_a_package_none_is_lost() {
    let answers = read_files(&[("c", CATALOG)], &["p:a", "p:b"]).unwrap().channels;
    let heads: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.head.unwrap().bundle)
        .collect();
    assert_eq!(heads, ["v2", "v1"]);
}

#[test]
fn bug_6_a_bundle_without_related_images_has_its_own() {
    let head = only(read_files(&[("c", CATALOG)], &["p:b"])).unwrap();
    assert_eq!(images(&head), normalised(["quay.io/p/bundle:1"]));
}

/// Ten times the catalog takes ten times as long; a hundred times would be quadratic.
#[test]
fn bug_15_time_grows_with_the_length() {
    let took = |packages: usize| {
        let text: String = (0..packages)
            .map(|n| CATALOG.replace("\"p\"", &format!("\"p{n}\"")))
            .collect();
        let dir = super::directory(&[("c", &text)]);
        // The best of three, because a busy machine distorts the result.
        let once = || {
            let start = std::time::Instant::now();
            only(super::read(dir.path(), &["p7:a"])).unwrap();
            start.elapsed()
        };
        (0..3).map(|_| once()).min().unwrap()
    };
    let (short, long) = (took(1_000), took(10_000));
    assert!(long < short * 60, "{short:?} {long:?}");
}
