//! Tests which requests a refused image costs, and how a failing signature server is asked again.

use super::keys::Keys;
use super::site::{Attached, Site, attachment, name};
use super::{entry, has_sigstore, podman_pull, run, stored};
use crate::image::{Format, Image, Images};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// Everything must be signed by key `a`.
pub(super) const SIGNED_BY_A: &str =
    r#"{"default":[{"type":"signedBy","keyType":"GPGKeys","keyPath":"/etc/containers/keys/a.gpg"}]}"#;
/// Nothing must be signed.
pub(super) const ACCEPT: &str = r#"{"default":[{"type":"insecureAcceptAnything"}]}"#;
const REJECT: &str = r#"{"default":[{"type":"reject"}]}"#;
const SIGNED_BY_RSA: &str =
    r#"{"default":[{"type":"sigstoreSigned","keyPath":"/etc/containers/keys/rsa.pub"}]}"#;
const BY_FULCIO: &str = r#"{"default":[{"type":"sigstoreSigned","fulcio":{"caPath":"/etc/containers/keys/rsa.pub",
    "oidcIssuer":"https://issuer.test","subjectEmail":"a@signer.test"},
    "rekorPublicKeyPath":"/etc/containers/keys/rekor.pub"}]}"#;

/// Requests for layers of `image` among `requests`.
pub(super) fn layers_of(image: &Image, requests: &[String]) -> Vec<String> {
    let is_layer = |request: &&String| image.layers.iter().any(|layer| request.contains(&layer.digest));
    requests.iter().filter(is_layer).cloned().collect()
}

/// Requests for signatures.
fn for_signatures(requests: &[String]) -> Vec<&String> {
    requests
        .iter()
        .filter(|it| it.contains(".sig ") || it.contains("/signature-"))
        .collect()
}

#[test]
fn a_refused_image_costs_no_layer_and_the_others_are_pulled() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let site = Site::new(&["a", "b"]);
    let [signed, by_b, unsigned] = ["gpg/a", "gpg/b", "unsigned"].map(|repository| site.push(repository));
    let names = ["gpg/a", "gpg/b", "unsigned"].map(name);
    site.sign_by_gpg("a", "gpg/a:1", &names[0], &[]);
    site.sign_by_gpg("b", "gpg/b:1", &names[1], &[]);
    // The flag replaces the node's policy, which accepts everything.
    let node = site.node(ACCEPT);
    let policy = node.out("policy.json");
    std::fs::write(&policy, SIGNED_BY_A).unwrap();
    let before = site.requests().len();
    let flags = ["--policy", policy.to_str().unwrap()];
    let pulled = run(&node, "run", &flags, &names).exits(6);
    let requests = &site.requests()[before..];
    assert_eq!(stored(&node), [names[0].clone()].into(), "{pulled}");
    assert_eq!(layers_of(&signed, requests).len(), 1, "{requests:#?}");
    for (image, name) in [(by_b, &names[1]), (unsigned, &names[2])] {
        assert_eq!(layers_of(&image, requests), Vec::<String>::new());
        let reason = entry(&pulled, name)["reason"].as_str().unwrap_or_default();
        for part in ["signedBy", "default", policy.to_str().unwrap()] {
            assert!(reason.contains(part), "`{part}` is not in: {reason}");
        }
    }
    // `plan` has the same verdicts, and stores nothing.
    let other = site.node(ACCEPT);
    run(&other, "plan", &flags, &names).exits(6);
    assert_eq!(stored(&other), [].into());
}

#[test]
fn a_rule_that_nothing_satisfies_costs_no_signature() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let site = Site::new(&["a"]);
    site.push("gpg/a");
    let names = [name("gpg/a")];
    site.sign_by_gpg("a", "gpg/a:1", &names[0], &[]);
    for (policy, rule) in [(REJECT, "`reject`"), (BY_FULCIO, "`fulcio`")] {
        let (ours, theirs) = (site.node(policy), site.node(policy));
        let before = site.requests().len();
        let refused = run(&ours, "run", &[], &names).exits(6).says(rule);
        let requests = &site.requests()[before..];
        assert_eq!(for_signatures(requests), Vec::<&String>::new(), "{refused}");
        podman_pull(&theirs, &names);
        assert_eq!((stored(&ours), stored(&theirs)), ([].into(), [].into()));
    }
}

/// An image with a sigstore signature in a registry that fails on command, and a node that demands the signature.
fn failing_registry() -> (Registry, TestNode, [String; 1]) {
    let (registry, keys) = (Registry::start(), Keys::make(TestNode::trusting(&[]), &[]));
    let text = "image signed oci\nlayer gzip\nfile /a 0644 0:0 \"a\"\n";
    let image = Images::of(text, &[]).images.remove(0);
    let names = [registry.tagged("signed")];
    registry.push("signed", Some("latest"), &image);
    let signature = Attached::signed(&keys, "rsa", &image.digest(), &names[0]);
    let tag = format!("{}.sig", image.digest().replace(':', "-"));
    registry.push(
        "signed",
        Some(&tag),
        &attachment("signed", Format::Oci, &[signature]),
    );
    let node = TestNode::trusting(&[registry.host()]);
    keys.give_to(&node);
    node.write("etc/containers/policy.json", SIGNED_BY_RSA);
    let settings = format!(
        "docker:\n  {}:\n    use-sigstore-attachments: true\n",
        registry.host()
    );
    node.write("etc/containers/registries.d/site.yaml", &settings);
    (registry, node, names)
}

#[test]
fn signatures_are_requested_again_until_the_registry_has_recovered() {
    needs!(root(), stock(), openssl());
    if !has_sigstore() {
        return;
    }
    let (registry, node, names) = failing_registry();
    registry.fault(Fault::on(".sig").times(2).status(503).header("Retry-After", "0"));
    run(&node, "run", &[], &names).exits(0);
    assert_eq!(registry.acts(), [2]);
    assert_eq!(stored(&node), names.into());
}

#[test]
fn unavailable_signatures_are_not_missing_signatures() {
    needs!(root(), stock(), openssl());
    if !has_sigstore() {
        return;
    }
    let (registry, node, names) = failing_registry();
    registry.fault(Fault::on(".sig").status(403));
    let denied = run(&node, "run", &[], &names);
    assert!(![0, 6].contains(&denied.code), "{denied}");
    assert_eq!(stored(&node), [].into(), "{denied}");
    assert_eq!(registry.layer_requests().len(), 0, "{denied}");
    registry.end_faults();
    run(&node, "run", &[], &names).exits(0);
}
