//! Tests which images are planned, in which order, and which contradict each other.

use super::*;

#[test]
fn the_release_image_goes_first_and_additional_images_last() {
    let plan = Plan::build(
        vec![
            image("extra", Requester::Additional, pull(vec![layer('a')])),
            component("etcd", "b"),
            component("cli", "c"),
            image("release", Requester::ReleaseImage, pull(vec![layer('d')])),
        ],
        vec![],
        &Present::default(),
    );
    assert_eq!(names(&plan), ["release", "etcd", "cli", "extra"]);
    let order: Vec<Digest> = plan.blobs.iter().map(|task| task.digest).collect();
    assert_eq!(order, [blob('d'), blob('b'), blob('c'), blob('a')]);
}

#[test]
fn one_name_is_one_image_of_the_most_important_requester() {
    let mut additional = component("etcd", "ab");
    additional.requesters = vec![Requester::Additional];
    let failed = image(
        "etcd",
        Requester::Release {
            tag: "etcd-alias".into(),
        },
        ImageAction::Failed("late".into()),
    );
    let plan = Plan::build(
        vec![additional, component("etcd", "ab"), failed],
        vec![],
        &Present::default(),
    );
    assert_eq!(names(&plan), ["etcd"]);
    let requesters: Vec<String> = plan.images[0]
        .requesters
        .iter()
        .map(Requester::to_string)
        .collect();
    assert_eq!(requesters, ["etcd", "etcd-alias", "additional"]);
    assert_eq!(plan.totals.images_to_pull, 1);
}

#[test]
fn an_excluded_image_with_another_requester_is_not_excluded() {
    let exclusion = |name: &str| ExcludedImage {
        reference: name.parse().unwrap(),
        requester: Requester::Release { tag: name.into() },
        reason: "pattern".into(),
        bytes: None,
    };
    let plan = Plan::build(
        vec![image("aws", Requester::Additional, ImageAction::Present)],
        vec![exclusion("aws"), exclusion("gcp"), exclusion("gcp")],
        &Present::default(),
    );
    assert_eq!(plan.totals.images_excluded, 1);
    assert_eq!(plan.totals.images_present, 1);
}

#[test]
fn an_image_that_contradicts_a_manifest_of_higher_priority_fails() {
    let mut wrong = layer('a');
    wrong.0.size = 7;
    let wrong_size = image(
        "wrong",
        Requester::Additional,
        pull(vec![wrong.clone(), layer('c')]),
    );
    let both = image(
        "both",
        Requester::Additional,
        pull(vec![layer('d'), layer('a'), wrong]),
    );
    let plan = Plan::build(
        vec![wrong_size, both, component("one", "ab")],
        vec![],
        &Present::default(),
    );
    let ImageAction::Failed(reason) = &plan.images[1].action else {
        panic!("{:?}", plan.images[1].action);
    };
    assert_eq!(
        *reason,
        format!(
            "contradictory manifests: layer `{}` has 7 bytes here and 1048576 bytes in `one:latest`",
            blob('a')
        )
    );
    assert!(
        matches!(&plan.images[2].action, ImageAction::Failed(reason) if reason.contains("both 1048576 and 7 bytes"))
    );
    assert_eq!(plan.totals.images_failed, 2);
    assert_eq!(plan.totals.bytes_to_fetch, size('a') + size('b'));
}
