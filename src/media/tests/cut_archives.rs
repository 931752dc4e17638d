//! A damaged archive costs what is damaged, and nothing else.

use proptest::prelude::*;

use super::*;
use crate::media::archive::Archive;

fn warnings_of(archive: &[u8]) -> (Media, Vec<String>) {
    let directory = in_file("layout.tar", archive);
    let path = directory.path().join("layout.tar");
    let (media, warnings) = open(&path).unwrap();
    let prefix = format!("`{}`: ", path.display());
    (
        media,
        warnings
            .into_iter()
            .map(|warning| warning.replace(&prefix, ""))
            .collect(),
    )
}

/// The name of a blob in an OCI layout.
fn path_of(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", Digest::of(bytes).hex())
}

#[test]
fn an_archive_that_is_cut_has_the_entries_before_the_cut() {
    let image = Image::new();
    let archive = tar(&image.oci_layout());
    let layer = image.layer.len() as u64;
    // 512 bytes of padding at most, and the end mark.
    let (media, warnings) = warnings_of(&archive[..archive.len() - 10_000]);
    assert_eq!(
        media.content(image.manifest.digest(), LIMIT),
        Some(image.manifest.clone())
    );
    assert_eq!(media.size_of(image.blob()), None);
    let present = layer - (10_000 - 1024 - (layer.next_multiple_of(512) - layer));
    let path = path_of(&image.layer);
    assert_eq!(
        warnings,
        [format!(
            "it ends within `{path}`, of which it has {present} of {layer} bytes"
        )]
    );

    let (media, warnings) = warnings_of(&archive[..archive.len() - 1024]);
    assert_complete(&media, &image, "without end mark");
    assert_eq!(warnings, ["it has no end mark, so it may be cut"]);
}

#[test]
fn entries_after_a_damaged_header_or_a_hole_are_found() {
    let image = Image::new();
    let whole = tar(&image.oci_layout());
    let config = entry(
        EntryBuilder::new_gnu(),
        &path_of(image.config.bytes()),
        image.config.bytes(),
    );
    let at = whole
        .windows(config.len())
        .position(|bytes| bytes == config)
        .unwrap();
    let to = at + config.len();
    for (fill, why) in [(0xff, "no valid header"), (0, "zeros")] {
        let mut archive = whole.clone();
        archive[at..to].fill(fill);
        let (media, warnings) = warnings_of(&archive);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let expected = format!("bytes {at} to {to} are damaged ({why}");
        assert!(warnings[0].starts_with(&expected), "{warnings:?}, {expected}");
        assert_eq!(media.content(image.config.digest(), LIMIT), None);
        assert_eq!(
            media.content(image.manifest.digest(), LIMIT),
            Some(image.manifest.clone())
        );
        assert!(read(&media, image.blob()).unwrap() == image.layer);
    }
}

#[test]
fn an_oci_layout_that_lost_its_first_files_is_still_one() {
    let image = Image::new();
    let mut archive = tar(&image.oci_layout());
    archive[..1500].fill(0xff);
    let (media, warnings) = warnings_of(&archive);
    assert_eq!(
        media.content(image.manifest.digest(), LIMIT),
        Some(image.manifest)
    );
    assert!(read(&media, Digest::of(&image.layer)).unwrap() == image.layer);
    assert!(
        warnings[0].ends_with("`index.json` is missing, so no tag is found"),
        "{warnings:?}"
    );
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

/// An entry in one of the ways in which programs write it.
fn entry_of(number: usize, length: usize, is_pax: bool, is_long: bool) -> (String, Vec<u8>, Vec<u8>) {
    let directory = if is_long {
        "n".repeat(200)
    } else {
        "short".to_owned()
    };
    let name = format!("blobs/sha256/{directory}/{number}");
    let builder = if is_pax {
        EntryBuilder::new_ustar()
    } else {
        EntryBuilder::new_gnu()
    };
    let bytes = vec![b'x'; length];
    let entry = entry(builder, &name, &bytes);
    (name, bytes, entry)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_cut_archive_has_exactly_the_entries_that_are_complete(
        entries in proptest::collection::vec((0_usize..3000, any::<bool>(), any::<bool>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let (mut archive, mut ends) = (Vec::new(), Vec::new());
        for (number, (length, is_pax, is_long)) in entries.into_iter().enumerate() {
            let (name, bytes, entry) = entry_of(number, length, is_pax, is_long);
            archive.extend(&entry);
            // An entry is complete without its padding.
            ends.push((name, archive.len() - (bytes.len().next_multiple_of(512) - bytes.len())));
        }
        archive.extend(END);
        let cut = cut.index(archive.len() + 1);
        let directory = in_file("cut.tar", &archive[..cut]);
        let mut warnings = Vec::new();
        let path = directory.path().join("cut.tar");
        let opened = Archive::open(&[path], &Cancel::default(), &mut warnings).unwrap();
        for (name, end) in &ends {
            prop_assert_eq!(opened.find(name).is_some(), *end <= cut, "{} ends at {}, cut at {}", name, end, cut);
        }
        let is_whole = cut > archive.len() - END.len();
        prop_assert_eq!(warnings.is_empty(), is_whole, "{:?}", warnings);
    }

    #[test]
    fn any_bytes_are_indexed_without_a_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..4000),
        at in any::<prop::sample::Index>(),
    ) {
        let mut archive = tar(&vec![("a".to_owned(), vec![1; 700]), ("b".repeat(150), vec![2; 100])]);
        let at = at.index(archive.len());
        archive.splice(at..(at + bytes.len()).min(archive.len()), bytes);
        let directory = in_file("hostile.tar", &archive);
        let path = directory.path().join("hostile.tar");
        // Only a file that looks compressed is refused.
        let Ok(opened) = Archive::open(&[path], &Cancel::default(), &mut Vec::new()) else {
            return Ok(());
        };
        for name in ["a".to_owned(), "b".repeat(150)] {
            if let Some(span) = opened.find(&name) {
                prop_assert!(span.start + span.size <= archive.len() as u64);
            }
        }
    }
}
