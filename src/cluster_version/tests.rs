//! Tests the choice of a release on real ClusterVersions (`../shared/corpus`) and on made ones.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::notice;

fn read(object: Value) -> ClusterVersion {
    serde_json::from_value(object).unwrap()
}

/// The word of the corpus's answers for a choice, and the image.
fn answer(choice: Result<Choice, ChoiceError>, version: &ClusterVersion) -> (String, Option<String>) {
    match choice {
        Ok(Choice::NothingRequested) => ("nothing requested".to_owned(), None),
        Err(_) => ("error".to_owned(), None),
        Ok(Choice::Update(update)) => {
            let image = update.image.to_string();
            let word = match update.offer {
                Offer::Image => "image".to_owned(),
                Offer::AlreadyDesired => "already-desired".to_owned(),
                Offer::Available => "available".to_owned(),
                Offer::Conditional => {
                    let mut updates = version.status.conditional_updates.iter();
                    let found = updates.find(|it| it.release.image == image).unwrap();
                    let condition = found.recommended().unwrap();
                    let risks: Vec<&str> = found.risks.iter().map(|risk| &risk.name[..]).collect();
                    assert!(update.warnings[0].contains(&risks.join(", ")), "{update:?}");
                    let status = format!("Recommended is {} ({})", condition.status, condition.reason);
                    assert!(update.warnings[0].contains(&status), "{update:?}");
                    format!(
                        "conditional {}/{} risks {}",
                        condition.status,
                        condition.reason,
                        risks.join(",")
                    )
                }
            };
            (word, Some(image))
        }
    }
}

fn expected(answer: &Value) -> (String, Option<String>) {
    (
        answer[0].as_str().unwrap().to_owned(),
        answer[1].as_str().map(str::to_owned),
    )
}

#[test]
fn real_cluster_versions_have_the_answers_of_the_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    let Ok(answers) = std::fs::read(corpus.join("expected/clusterversion.json")) else {
        return notice::print("SKIPPED", "no ../shared/corpus");
    };
    let answers: Value = serde_json::from_slice(&answers).unwrap();
    let mut choices = 0;
    for case in answers["cases"].as_array().unwrap() {
        let file = case["file"].as_str().unwrap();
        let yaml = std::fs::read_to_string(corpus.join(file)).unwrap();
        let mut object: Value = serde_saphyr::from_str(&yaml).unwrap();
        if object["kind"] == "List" {
            object = object["items"][0].take();
        }
        let mut version = read(object);
        let names = |list: &Value| -> Vec<String> {
            let list = list.as_array().into_iter().flatten();
            list.map(|name| name.as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(version.offers().available, names(&case["available"]), "{file}");
        assert_eq!(
            version.spec.channel,
            case["channel"].as_str().unwrap_or_default(),
            "{file}"
        );
        assert_eq!(
            version.status.desired.image,
            case["status_desired"]["image"].as_str().unwrap()
        );
        let history = case["history"].as_array().unwrap().iter();
        let history: Vec<_> = history.map(|it| it[1].as_str().unwrap().to_owned()).collect();
        let found: Vec<_> = version
            .status
            .history
            .iter()
            .map(|it| it.version.clone())
            .collect();
        assert_eq!(found, history, "{file}");
        let enabled = version.status.capabilities.enabled_capabilities.clone();
        assert_eq!(
            enabled.unwrap_or_default(),
            names(&case["capabilities"]["enabledCapabilities"]),
            "{file}"
        );
        assert_eq!(
            answer(version.choose(), &version),
            expected(&case["choose"]),
            "{file}"
        );
        for (wanted, chosen) in case["choose_by_version"].as_object().unwrap() {
            version.spec.desired_update = Some(DesiredUpdate {
                version: wanted.clone(),
                ..DesiredUpdate::default()
            });
            assert_eq!(
                answer(version.choose(), &version),
                expected(chosen),
                "{file} {wanted}"
            );
            choices += 1;
        }
    }
    assert!(choices >= 11, "{choices}");
}

const A: &str = "quay.io/r@sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "quay.io/r@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
const C: &str = "quay.io/r@sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc";

/// At 4.16.3 (A), with 4.16.8 (B) recommended and 4.17.1 (C) with a risk.
fn cluster(desired_update: Value) -> ClusterVersion {
    read(json!({
        "spec": {"channel": "stable-4.16", "desiredUpdate": desired_update},
        "status": {
            "desired": {"version": "4.16.3", "image": A},
            "history": [{"state": "Completed", "version": "4.16.3", "image": A}],
            "availableUpdates": [{"version": "4.16.8", "image": B}],
            "conditionalUpdates": [{
                "release": {"version": "4.17.1", "image": C},
                "risks": [{"name": "Risky"}],
                "conditions": [{"type": "Recommended", "status": "False", "reason": "Risky", "message": "It is."}],
            }],
        },
    }))
}

fn chosen(desired_update: Value) -> ChosenUpdate {
    match cluster(desired_update.clone()).choose() {
        Ok(Choice::Update(update)) => update,
        other => panic!("{desired_update}: {other:?}"),
    }
}

#[test]
fn nulls_empty_texts_and_absent_fields_are_the_same() {
    for object in [
        json!({}),
        json!({"spec": null, "status": null}),
        json!({"spec": {"channel": null, "overrides": null}, "status": {"history": null, "availableUpdates": null}}),
        json!({"status": {"desired": {"image": "", "version": null}, "conditions": []}}),
    ] {
        let version = read(object.clone());
        assert_eq!(version, ClusterVersion::default(), "{object}");
        assert_eq!(version.choose(), Ok(Choice::NothingRequested));
        assert_eq!(version.recommended(), None);
    }
    for nothing in [
        json!(null),
        json!({}),
        json!({"version": "", "image": null, "force": true}),
    ] {
        assert_eq!(cluster(nothing).choose(), Ok(Choice::NothingRequested));
    }
}

#[test]
fn an_image_has_precedence_over_the_version() {
    let update = chosen(json!({"image": B, "version": "4.99.0"}));
    assert_eq!(
        (update.image.to_string(), update.offer),
        (B.to_owned(), Offer::Image)
    );
    assert_eq!(update.warnings, Vec::<String>::new());
    assert_eq!(chosen(json!({"image": A})).offer, Offer::AlreadyDesired);

    let risky = chosen(json!({"image": C}));
    assert_eq!(
        risky.warnings,
        ["the update to 4.17.1 has known risks: Risky; Recommended is False (Risky): It is."]
    );
    let tagged = chosen(json!({"image": "quay.io/r:4.16.8-x86_64", "force": true}));
    assert!(
        tagged.warnings[0].contains("named by tag: the cluster-version operator cannot verify it"),
        "{tagged:?}"
    );
    let error = cluster(json!({"image": "quay.io/R"}))
        .choose()
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("the release image: `quay.io/R` is not"),
        "{error}"
    );
}

#[test]
fn a_version_that_is_not_on_offer_is_an_error_with_those_that_are() {
    let error = |version: &str| {
        cluster(json!({"version": version}))
            .choose()
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        error("4.16.9"),
        "the desired version `4.16.9` is not on offer: when image is empty the update must be an available update; \
         recommended: 4.16.8; with known risks: 4.17.1\n\
         hint: set the image of the release too, or name it with `--platform-image`"
    );
    assert_eq!(
        error("4.16"),
        "the desired version `4.16` must be a semantic version (1.2.3[-...])"
    );
    let mut many = cluster(json!({"version": "5.0.0"}));
    many.status.available_updates = (0..30_000)
        .map(|patch| Release {
            version: format!("4.16.{patch}-{}", "x".repeat(1_000)),
            ..Release::default()
        })
        .collect();
    let error = many.choose().unwrap_err().to_string();
    assert!(error.contains(", 29988 more; with known risks"), "{error}");
    assert!(error.len() < 4_000, "{}", error.len());
}

#[test]
fn two_payloads_of_one_version_are_an_error() {
    let mut version = cluster(json!({"version": "4.16.8"}));
    let mut twice = version.status.available_updates[0].clone();
    version.status.available_updates.push(twice.clone());
    assert!(version.choose().is_ok(), "the same image twice is one payload");
    twice.image = C.to_owned();
    version.status.available_updates.push(twice);
    let error = version.choose().unwrap_err().to_string();
    assert!(
        error.contains(
            "there are multiple possible payloads for this version, specify the exact image: quay.io/r@"
        ),
        "{error}"
    );
}

#[test]
fn the_multi_payload_of_the_current_version_is_taken_from_the_offers() {
    let present = chosen(json!({"architecture": "Multi"}));
    assert_eq!(
        (present.image.to_string(), present.offer),
        (A.to_owned(), Offer::AlreadyDesired)
    );
    assert!(
        present.warnings[0].contains("`architecture: Multi`"),
        "{present:?}"
    );

    let mut version = cluster(json!({"architecture": "Multi"}));
    version.status.available_updates.push(Release {
        version: "4.16.3".to_owned(),
        image: C.to_owned(),
        ..Release::default()
    });
    let Ok(Choice::Update(update)) = version.choose() else {
        panic!("{version:?}")
    };
    assert_eq!(
        (update.image.to_string(), update.offer),
        (C.to_owned(), Offer::Available)
    );

    let mut version = cluster(json!({"architecture": "Multi", "version": "4.16.3"}));
    version.status.desired.architecture = MULTI.to_owned();
    let Ok(Choice::Update(update)) = version.choose() else {
        panic!("{version:?}")
    };
    assert_eq!(
        (update.offer, update.warnings),
        (Offer::AlreadyDesired, Vec::new())
    );
}

#[test]
fn the_newest_recommended_update_of_the_channels_minor_version_is_found() {
    let mut version = cluster(json!(null));
    let recommended = |version: &ClusterVersion| version.recommended().map(|release| release.version.clone());
    assert_eq!(recommended(&version).as_deref(), Some("4.16.8"));
    for offered in ["4.16.10", "4.17.1", "4.15.30", "not a version"] {
        version.status.available_updates.push(Release {
            version: offered.to_owned(),
            image: B.to_owned(),
            ..Release::default()
        });
    }
    assert_eq!(recommended(&version).as_deref(), Some("4.16.10"));
    version.spec.channel = "eus-4.17".to_owned();
    assert_eq!(recommended(&version), None, "its risks may apply");
    version.status.conditional_updates[0].conditions[0].status = "True".to_owned();
    assert_eq!(recommended(&version).as_deref(), Some("4.17.1"));
    version.spec.channel = "stable-4.15".to_owned();
    assert_eq!(recommended(&version), None, "4.15.30 is older");
    version.spec.channel = String::new();
    assert_eq!(recommended(&version).as_deref(), Some("4.16.10"));
}

#[test]
fn the_newest_completed_release_counts() {
    let mut version = cluster(json!(null));
    assert_eq!(version.completed().unwrap().image, A);
    assert_eq!((version.partial(), version.is_progressing()), (None, false));
    version.status.history.insert(
        0,
        HistoryEntry {
            state: "Partial".to_owned(),
            image: B.to_owned(),
            ..HistoryEntry::default()
        },
    );
    version.status.conditions.push(Condition {
        kind: "Progressing".to_owned(),
        status: "True".to_owned(),
        ..Condition::default()
    });
    assert_eq!(version.completed().unwrap().image, A);
    assert_eq!(version.partial().unwrap().image, B);
    assert!(version.is_progressing());
}

#[test]
fn an_update_runs_if_its_release_is_desired_and_partial() {
    let digest = |image: &str| image.parse::<Reference>().unwrap().digest().unwrap();
    let mut updating = cluster(json!(null));
    let entry = |state: &str, image: &str| HistoryEntry {
        state: state.to_owned(),
        image: image.to_owned(),
        ..HistoryEntry::default()
    };
    updating.status.desired.image = B.to_owned();
    updating.status.history = vec![entry("Partial", B), entry("Completed", A)];
    updating.status.conditions = vec![Condition {
        kind: "Progressing".to_owned(),
        status: "True".to_owned(),
        ..Condition::default()
    }];
    assert!(updating.is_updating_to(&digest(B)));
    assert!(!updating.is_updating_to(&digest(A)));
    for change in [
        |version: &mut ClusterVersion| version.status.conditions.clear(),
        |version: &mut ClusterVersion| version.status.desired.image = A.to_owned(),
        |version: &mut ClusterVersion| version.status.desired.image = "not an image".to_owned(),
        |version: &mut ClusterVersion| version.status.history[0].state = "Completed".to_owned(),
        |version: &mut ClusterVersion| drop(version.status.history.remove(0)),
        // The first installation.
        |version: &mut ClusterVersion| version.status.history.truncate(1),
    ] {
        let mut other = updating.clone();
        change(&mut other);
        assert!(!other.is_updating_to(&digest(B)), "{other:?}");
    }
}

/// `oc adm upgrade --clear` during an update, or a desired update that somebody removed.
#[test]
fn an_update_that_has_begun_is_requested_although_no_update_is_desired() {
    let entry = |state: &str, image: &str| HistoryEntry {
        state: state.to_owned(),
        image: image.to_owned(),
        ..HistoryEntry::default()
    };
    for desired_update in [json!(null), json!({}), json!({"force": true})] {
        let mut updating = cluster(desired_update);
        assert_eq!(updating.choose(), Ok(Choice::NothingRequested));
        updating.status.desired.image = B.to_owned();
        updating.status.history = vec![entry("Partial", B), entry("Completed", A)];
        let Ok(Choice::Update(update)) = updating.choose() else {
            panic!("{:?}", updating.choose());
        };
        assert_eq!(
            (update.image.to_string().as_str(), update.offer),
            (B, Offer::AlreadyDesired)
        );
        for change in [
            |version: &mut ClusterVersion| version.status.history[0].state = "Completed".to_owned(),
            // It was cleared before it began.
            |version: &mut ClusterVersion| version.status.desired.image = A.to_owned(),
            // The first installation.
            |version: &mut ClusterVersion| version.status.history.truncate(1),
            // Back to the completed release.
            |version: &mut ClusterVersion| version.status.history[1].image = B.to_owned(),
            |version: &mut ClusterVersion| version.status.history.clear(),
        ] {
            let mut other = updating.clone();
            change(&mut other);
            assert_eq!(other.choose(), Ok(Choice::NothingRequested), "{other:?}");
        }
    }
}
