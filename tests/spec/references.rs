//! Parses the cases of distribution/reference, `expected/reference-cases.json` of the corpus.

use serde_json::Value;
use spoke_precache::oci::Reference;

use crate::corpus;

/// As Docker reads it: a name without a registry is on Docker Hub.
fn parse(text: &str) -> Option<Reference> {
    let reference: Reference = text.parse().ok()?;
    match reference.domain() {
        "" => format!("docker.io/{text}").parse().ok(),
        _ => Some(reference),
    }
}

/// The normalised form of the result of `Parse`, which adds no defaults.
fn normalised(domain: &str, repository: &str) -> String {
    match (
        domain.contains(['.', ':']) || domain == "localhost",
        repository.contains('/'),
    ) {
        (true, _) => repository.to_owned(),
        (false, true) => format!("docker.io/{repository}"),
        (false, false) => format!("docker.io/library/{repository}"),
    }
}

#[test]
fn references_agree_with_every_case() {
    let Some(text) = corpus("expected/reference-cases.json") else {
        return;
    };
    let document: Value = serde_json::from_str(&text).unwrap();
    let asked = std::cell::Cell::new(0);
    let cases = |section: &str| {
        let cases = document[section].as_array();
        let cases = cases.unwrap_or_else(|| panic!("no section {section}"));
        asked.set(asked.get() + cases.len());
        cases
    };
    let mut count = 0;
    let mut check = |agrees: bool, case: &dyn std::fmt::Debug| {
        assert!(agrees, "{case:?}");
        count += 1;
    };
    let text = |case: &Value, field: &str| case[field].as_str().unwrap().to_owned();

    for case in cases("parse_no_normalization") {
        let reference = parse(&text(case, "input"));
        check(reference.is_some() == case["ok"].as_bool().unwrap(), case);
        if let Some(reference) = reference {
            // `shortnames.IsShortName` in terms of what `Parse` finds.
            let domain = text(case, "domain");
            let as_written: Reference = text(case, "input").parse().unwrap();
            check(
                as_written.is_short() == (!domain.contains(['.', ':']) && domain != "localhost"),
                case,
            );
            check(
                reference.repository() == normalised(&text(case, "domain"), &text(case, "repository")),
                case,
            );
            let (tag, digest) = (text(case, "tag"), text(case, "digest"));
            let target = match (digest.as_str(), tag.as_str()) {
                ("", "") => ":latest".to_owned(),
                ("", tag) => format!(":{tag}"),
                (digest, _) => format!("@{digest}"),
            };
            check(reference.to_string() == reference.repository() + &target, case);
        }
    }
    for case in cases("parse_named") {
        let input = text(case, "input");
        let canonical = parse(&input).filter(|reference| reference.repository() == input);
        check(canonical.is_some() == case["ok"].as_bool().unwrap(), case);
        if let Some(reference) = canonical {
            check(
                reference.domain() == text(case, "domain") && reference.path() == text(case, "path"),
                case,
            );
        }
    }
    for case in cases("parse_docker_ref") {
        check(
            parse(&text(case, "input")).unwrap().to_string() == text(case, "expected"),
            case,
        );
    }
    for case in cases("parse_any_reference") {
        check(
            parse(&text(case, "input")).unwrap().to_string() == text(case, "equivalent"),
            case,
        );
    }
    for case in cases("repository_info") {
        for name in ["FamiliarName", "FullName", "AmbiguousName"] {
            let name = text(case, name);
            if name.is_empty() {
                continue;
            }
            let reference = parse(&name).unwrap();
            check(
                reference.domain() == text(case, "Domain") && reference.path() == text(case, "RemoteName"),
                case,
            );
        }
    }
    for case in cases("normalized_name_valid") {
        check(parse(case.as_str().unwrap()).is_some(), case);
    }
    for case in cases("normalized_name_invalid") {
        check(parse(case.as_str().unwrap()).is_none(), case);
    }
    for case in cases("remote_name_valid") {
        check(
            parse(&format!("docker.io/{}", case.as_str().unwrap())).is_some(),
            case,
        );
    }
    for case in cases("remote_name_invalid") {
        // Its test parses the name without a domain.
        check(parse(case.as_str().unwrap()).is_none(), case);
    }
    for case in cases("domain_regexp") {
        let domain = text(case, "input");
        let found = parse(&format!("{domain}/x")).is_some_and(|reference| reference.domain() == domain);
        check(found == case["match"].as_bool().unwrap(), case);
    }
    for case in cases("full_name_regexp") {
        // The expression takes no tag; what is left of the text after one was split off is another name.
        let name = parse(&text(case, "input"))
            .filter(|reference| reference.to_string().ends_with(":latest") && reference.digest().is_none());
        // Nor does it know the greatest length, which `Parse` checks.
        let short = text(case, "input").len() <= 255;
        check(
            name.is_some() == (case["match"].as_bool().unwrap() && short),
            case,
        );
    }
    for case in cases("reference_regexp") {
        let input = text(case, "input");
        // The expression is content with 32 digits of digest, `Parse` then is not.
        let whole = input
            .split_once("@sha256:")
            .is_none_or(|(_, hex)| hex.len() == 64);
        check(
            parse(&input).is_some() == (case["match"].as_bool().unwrap() && whole),
            case,
        );
    }
    for case in cases("identifier_regexp") {
        check(
            parse(&text(case, "input")).is_none() == case["match"].as_bool().unwrap(),
            case,
        );
    }
    let sections = document.as_object().unwrap().values();
    let cases: usize = sections.filter_map(Value::as_array).map(Vec::len).sum();
    assert_eq!(asked.take(), cases, "a section was left out");
    eprintln!("distribution/reference: {cases} cases, {count} checks agree");
}
