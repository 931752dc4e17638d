//! Tests what is copied from media and what is downloaded.

use super::*;
use crate::registry::LimitSettings;

fn on_media(blobs: &[(Digest, &str)]) -> HashMap<Digest, Arc<str>> {
    let media = blobs.iter().map(|(blob, medium)| (*blob, Arc::from(*medium)));
    media.collect()
}

#[test]
fn blobs_on_media_cost_no_download_and_are_added_up_by_medium() {
    let present = Present {
        media: on_media(&[(blob('a'), "/m/1"), (blob('c'), "/m/2"), (blob('z'), "/m/1")]),
        blobs: HashMap::from([(blob('a'), MIB / 4), (blob('b'), MIB)]),
        ..Present::default()
    };
    let images = vec![component("one", "abc"), component("two", "ad")];
    let plan = Plan::build(images, vec![], &present);
    let totals = plan.totals;
    assert_eq!(totals.bytes_to_fetch, (1 + 4) * MIB, "of b and d");
    assert_eq!(totals.bytes_whole, totals.bytes_to_fetch);
    assert_eq!(
        totals.bytes_from_media,
        3 * MIB + MIB * 3 / 4,
        "the rest of a, and c"
    );
    assert_eq!((totals.blobs_to_fetch, totals.blobs_from_media), (2, 2));
    assert_eq!(
        totals.bytes_to_spool(),
        totals.bytes_to_fetch + totals.bytes_from_media
    );
    let by_medium: Vec<(&str, u64)> = plan.bytes_by_medium().into_iter().collect();
    assert_eq!(by_medium, [("/m/1", MIB * 3 / 4), ("/m/2", 3 * MIB)]);
    let images = plan
        .images
        .iter()
        .map(|image| (image.bytes, image.bytes_from_media));
    assert_eq!(
        images.collect::<Vec<_>>(),
        [(MIB, 3 * MIB + MIB * 3 / 4), (4 * MIB, 0)]
    );
}

#[test]
fn a_blob_that_the_spool_has_is_not_copied() {
    let present = Present {
        media: on_media(&[(blob('a'), "/m")]),
        blobs: HashMap::from([(blob('a'), MIB)]),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "a")], vec![], &present);
    assert_eq!((plan.blobs[0].medium.clone(), plan.blobs[0].missing()), (None, 0));
}

#[test]
fn no_delta_is_downloaded_for_a_blob_on_a_medium_and_a_delta_on_a_medium_is_used() {
    let option = delta('c', 0, MIB / 4);
    let present = |media| Present {
        media,
        deltas: HashMap::from([(blob('c'), vec![Arc::clone(&option)])]),
        ..Present::default()
    };
    let planned = |media| Plan::build(vec![component("one", "c")], vec![], &present(media));
    let whole = planned(on_media(&[(blob('c'), "/m")]));
    assert_eq!(whole.layers[0].download().0, blob('c'));
    assert_eq!(
        (whole.totals.bytes_to_fetch, whole.totals.bytes_from_media),
        (0, 3 * MIB)
    );
    let from_delta = planned(on_media(&[(option.delta.blob, "/m")]));
    assert_eq!(from_delta.layers[0].download().0, option.delta.blob);
    assert_eq!(
        (
            from_delta.totals.bytes_to_fetch,
            from_delta.totals.bytes_from_media
        ),
        (0, MIB / 4)
    );
}

#[test]
fn the_table_and_the_document_say_what_comes_from_where() {
    let present = Present {
        media: on_media(&[(blob('a'), "/run/media/usb/disk")]),
        ..Present::default()
    };
    let plan = Plan::build(vec![component("one", "ac")], vec![], &present);
    let now: jiff::Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
    let table = plan.table(&[], None, "", &LimitSettings::default(), now);
    let (images, totals) = table.split_once("\n\n").unwrap();
    assert_eq!(
        images,
        "\
ACTION  SOURCE                 IMAGE                         FETCH SHARE REUSE       SIZE      MEDIA
pull    one                    one:latest                        2     0     0    3.0 MiB    1.0 MiB"
    );
    assert!(
        totals.contains("\nmedium:    1.0 MiB from `/run/media/usb/disk`\n"),
        "{totals}"
    );
    let document = PlanDocument::new(&plan, &[], None, None::<&()>, None::<&()>, None, None);
    let document = serde_json::to_value(document).unwrap();
    assert_eq!(document["images"][0]["bytesFromMedia"], MIB);
    assert_eq!(
        document["images"][0]["layers"][0]["medium"],
        "/run/media/usb/disk"
    );
    assert_eq!(document["images"][0]["layers"][1].get("medium"), None);
}

#[test]
fn the_tar_of_a_layer_on_a_medium_is_used_unless_a_medium_has_the_blob() {
    let tar = MediumTar {
        diff_id: diff_id('c'),
        medium: "/m".into(),
        size: 9 * MIB,
    };
    let planned = |media| {
        let present = Present {
            media,
            medium_tars: HashMap::from([(tar.diff_id, vec![tar.clone()])]),
            deltas: HashMap::from([(blob('c'), vec![delta('c', 0, 10)])]),
            ..Present::default()
        };
        Plan::build(vec![component("one", "ac")], vec![], &present)
    };
    let plan = planned(HashMap::new());
    let task = &plan.layers[1];
    assert_eq!(task.sources[0], LayerSource::MediumTar(tar.clone()));
    assert_eq!((task.sources.len(), task.tar), (2, TarLength::Guessed(9 * MIB)));
    let totals = plan.totals;
    assert_eq!((totals.bytes_to_fetch, totals.bytes_from_media), (MIB, 9 * MIB));
    assert_eq!(totals.bytes_to_spool(), MIB, "a tar is not copied");
    assert_eq!(plan.bytes_by_medium().get("/m"), Some(&(9 * MIB)));
    assert_eq!(totals.layers_from_deltas, 0);
    let plan = planned(on_media(&[(blob('c'), "/m")]));
    assert_eq!(plan.layers[1].sources, []);
}
