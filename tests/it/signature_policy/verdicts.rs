//! Pulls every image under every policy with podman and with the program, and compares what is then in the stores.

use super::keys::ALL;
use super::policies::{Policy, Verdicts, policies};
use super::site::{Site, name};
use super::{entry, has_sigstore, images, podman_pull, recorded, run, stored};
use crate::compare::{compare, inconsistencies};
use crate::needs::{needs, note};

/// Enough for what does not depend on how an image is signed.
const FEW: [&str; 5] = [
    "unsigned",
    "gpg/a",
    "sigstore/one",
    "sigstore/logged",
    "twice/both-kinds",
];

/// Its key is a subkey. podman 5.4 accepts only primary keys; containers/image accepts subkeys from version 5.37
/// (<https://github.com/containers/image/pull/2905>), and so does the program.
const BY_SUBKEY: &str = "gpg/subkey";

/// Signatures that cannot be read. podman then refuses the image under every policy.
const UNREADABLE: [&str; 5] = [
    "gpg/empty-file",
    "gpg/unknown-kind-of-blob",
    "gpg/garbage-first",
    "gpg/gap",
    "sigstore/schema-2",
];

/// The verdicts under one policy.
struct Comparison {
    accepted: usize,
    refused: usize,
    differences: Vec<String>,
}

impl Comparison {
    fn of(site: &Site, policy: &Policy, names: &[String]) -> Self {
        let (ours, theirs) = (site.node(&policy.text), site.node(&policy.text));
        let errors = podman_pull(&theirs, names).join("\n");
        let run = run(&ours, "run", &[], names);
        let names: Vec<String> = names.iter().map(|name| recorded(name)).collect();
        let [accepted, our_accepted] = [&theirs, &ours].map(stored);
        let mut differences = inconsistencies(&ours.graph_root());
        let unreadable = UNREADABLE.map(name);
        let refused: Vec<&String> = names
            .iter()
            .filter(|name| !our_accepted.contains(*name))
            .collect();
        let code = match policy.verdicts {
            Verdicts::Unusable => 7,
            _ if refused.is_empty() => 0,
            _ if refused.iter().all(|name| unreadable.contains(name)) => 5,
            _ => 6,
        };
        if run.code != code {
            differences.push(format!("the exit code is not {code}: {run}"));
        }
        match policy.verdicts {
            Verdicts::Same => {
                for name in accepted.symmetric_difference(&our_accepted) {
                    let who = if accepted.contains(name) {
                        "podman"
                    } else {
                        "the program"
                    };
                    differences.push(format!(
                        "only {who} accepts `{name}`: {}\n{errors}",
                        entry(&run, name)
                    ));
                }
                differences.extend(compare(&ours.graph_root(), &theirs.graph_root(), &[]));
            }
            Verdicts::Unsupported(_) if accepted.is_empty() => {
                differences.push(format!("podman accepts nothing: {errors}"));
            }
            Verdicts::Unusable if !errors.lines().all(|error| error.starts_with("invalid policy in")) => {
                differences.push(format!("podman can use it: {errors}"));
            }
            Verdicts::Unsupported(_) | Verdicts::Unusable => {
                differences.extend(our_accepted.iter().map(|name| format!("`{name}` is accepted")));
            }
        }
        let expected = match policy.verdicts {
            Verdicts::Unusable => None,
            Verdicts::Unsupported(rule) => Some(rule),
            Verdicts::Same => Some(" (rule: "),
        };
        for (name, expected) in refused.into_iter().zip(expected.iter().cycle()) {
            let reason = entry(&run, name)["reason"].to_string();
            if !unreadable.contains(name) && !reason.contains(expected) {
                differences.push(format!("no `{expected}` in the reason: {reason}"));
            }
        }
        Self {
            accepted: accepted.len(),
            refused: names.len() - accepted.len(),
            differences: differences
                .iter()
                .map(|it| format!("policy `{}`: {it}", policy.name))
                .collect(),
        }
    }
}

#[test]
fn podman_and_the_program_give_the_same_verdicts() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let site = Site::new(ALL);
    let mut names = images::publish(&site);
    names.retain(|it| *it != name(BY_SUBKEY));
    let few = FEW.map(name);
    let (mut accepted, mut refused, mut differences) = (0, 0, Vec::new());
    let policies = policies(&site);
    for policy in &policies {
        let names = if policy.needs_all_images { &names } else { &few[..] };
        let comparison = Comparison::of(&site, policy, names);
        accepted += comparison.accepted;
        refused += comparison.refused;
        differences.extend(comparison.differences);
    }
    note(&format!(
        "{} policies and {} images: podman accepts {accepted} times and refuses {refused} times",
        policies.len(),
        names.len()
    ));
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_signature_by_a_subkey_is_accepted() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let site = Site::new(&["subkey"]);
    site.push(BY_SUBKEY);
    let names = [name(BY_SUBKEY)];
    site.sign_by_gpg("subkey", &format!("{BY_SUBKEY}:1"), &names[0], &[]);
    let policy = r#"{"default":[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/etc/containers/keys/subkey.gpg"}]}"#;
    run(&site.node(policy), "run", &[], &names).exits(0);
}
