//! Tests images that are in the store already: without the signatures that a policy demands, and with damaged ones.

use std::path::Path;
use std::process::Command;

use super::requests::{ACCEPT, SIGNED_BY_A, layers_of};
use super::site::{Place, Site, name};
use super::{entry, has_sigstore, podman_pull, run, stored};
use crate::compare::{compare, inconsistencies};
use crate::image::Image;
use crate::needs::needs;
use crate::test_node::TestNode;

/// An image with a signature of each kind, and one without signatures.
struct Scene {
    site: Site,
    signed: Image,
    unsigned: Image,
    /// `signed`, `unsigned`
    names: [String; 2],
}

impl Scene {
    fn new() -> Self {
        let site = Site::new(&["a"]);
        let [signed, unsigned] = ["signed", "unsigned"].map(|repository| site.push(repository));
        let names = ["signed", "unsigned"].map(name);
        site.sign_by_gpg("a", "signed:1", &names[0], &[]);
        site.sign_by_sigstore("one", Place::Attachment, "signed:1", &names[0], &[]);
        Self {
            site,
            signed,
            unsigned,
            names,
        }
    }

    /// A node that pulled both images with their signatures.
    fn node(&self) -> TestNode {
        let node = self.site.node(ACCEPT);
        run(&node, "run", &[], &self.names).exits(0);
        node
    }

    /// A node where podman did.
    fn podman_node(&self) -> TestNode {
        let node = self.site.node(ACCEPT);
        podman_pull(&node, &self.names);
        assert_eq!(stored(&node), self.names.clone().into());
        node
    }

    /// Requests for layers from request `from` on.
    fn layer_requests(&self, from: usize) -> Vec<String> {
        let requests = self.site.requests();
        [&self.signed, &self.unsigned]
            .map(|image| layers_of(image, &requests[from..]))
            .concat()
    }
}

fn set_policy(node: &TestNode, policy: &str) {
    node.write("etc/containers/policy.json", policy);
}

#[track_caller]
fn same_stores(ours: &TestNode, theirs: &TestNode) {
    let mut wrong = inconsistencies(&ours.graph_root());
    wrong.extend(compare(&ours.graph_root(), &theirs.graph_root(), &[]));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_present_image_that_the_policy_refuses_is_no_success() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let scene = Scene::new();
    let node = scene.node();
    set_policy(&node, SIGNED_BY_A);
    let before = scene.site.requests().len();
    for verb in ["run", "verify"] {
        let refused = run(&node, verb, &[], &scene.names).exits(6);
        assert_eq!(refused.images("failed"), [&scene.names[1]], "{refused}");
        let reason = entry(&refused, &scene.names[1])["reason"]
            .as_str()
            .unwrap_or_default();
        for part in ["signedBy", "default"] {
            assert!(reason.contains(part), "`{part}` is not in: {reason}");
        }
    }
    assert_eq!(scene.layer_requests(before), Vec::<String>::new());
    // It stays: other pods may use it, and CRI-O decides about them.
    assert_eq!(stored(&node), scene.names.clone().into());
}

#[test]
fn a_present_image_gets_its_signatures_without_any_layer() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let scene = Scene::new();
    let theirs = scene.podman_node();
    for policy in [ACCEPT, SIGNED_BY_A] {
        let node = scene.site.node(ACCEPT);
        let settings = node.host().join("etc/containers/registries.d");
        let set_aside = node.host().join("etc/containers/set-aside");
        std::fs::rename(&settings, &set_aside).unwrap();
        run(&node, "run", &[], &scene.names).exits(0);
        std::fs::rename(&set_aside, &settings).unwrap();
        set_policy(&node, policy);
        let before = scene.site.requests().len();
        let accepted = if policy == ACCEPT { 0 } else { 6 };
        run(&node, "run", &[], &scene.names).exits(accepted);
        assert_eq!(scene.layer_requests(before), Vec::<String>::new(), "{policy}");
        same_stores(&node, &theirs);
    }
}

/// The cache of an older version has no signatures, and a site may be without a network.
#[test]
fn signatures_that_no_rule_needs_are_a_warning_if_they_are_unavailable() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let scene = Scene::new();
    let node = scene.site.node(ACCEPT);
    let settings = node.host().join("etc/containers/registries.d");
    std::fs::remove_dir_all(settings).unwrap();
    run(&node, "run", &[], &scene.names).exits(0);
    // Nothing listens on port 1.
    node.write(
        "etc/containers/registries.d/down.yaml",
        "default-docker: {lookaside: 'http://127.0.0.1:1'}",
    );
    let offline = run(&node, "run", &[], &scene.names).exits(0);
    assert_eq!(offline.images("present").len(), 2, "{offline}");
    let warnings = offline.report["warnings"].to_string();
    assert!(warnings.contains("stay without signatures"), "{offline}");
}

#[test]
fn verify_names_signatures_and_rule() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let scene = Scene::new();
    let node = scene.node();
    set_policy(&node, SIGNED_BY_A);
    let (fingerprint, _) = scene.site.keys.signer("a");
    let verified = run(&node, "verify", &[], &scene.names[..1]).exits(0);
    let signatures = &entry(&verified, &scene.names[0])["signatures"];
    assert_eq!(signatures["count"], 2, "{verified}");
    assert_eq!(signatures["accepted"], true, "{verified}");
    for part in ["2 signatures", "signedBy", &fingerprint[24..]] {
        assert!(verified.stderr.contains(part), "`{part}` is not in: {verified}");
    }
}

#[test]
fn damaged_signatures_are_repaired_without_any_layer() {
    needs!(root(), stock(), docker_registry(), nginx(), openssl());
    if !has_sigstore() {
        return;
    }
    let scene = Scene::new();
    let (node, theirs) = (scene.node(), scene.podman_node());
    set_policy(&node, SIGNED_BY_A);
    let signed = &scene.names[..1];
    for script in [
        "truncate -s -1 signatures",
        "printf x | dd of=signatures bs=1 seek=30 conv=notrunc status=none",
        "rm signatures",
        "rm =*c2lnbmF0dXJlL*  2>/dev/null || rm signature-*",
        "truncate -s 0 signatures signature-*",
    ] {
        in_image(&node, &scene.signed, script);
        let found = run(&node, "verify", &[], signed);
        assert_ne!(found.code, 0, "{script}: {found}");
        let before = scene.site.requests().len();
        run(&node, "verify", &["--repair"], signed).exits(0);
        assert_eq!(scene.layer_requests(before), Vec::<String>::new(), "{script}");
        same_stores(&node, &theirs);
        run(&node, "verify", &[], signed).exits(0);
    }
}

/// Runs a script in the directory of an image's big data.
#[track_caller]
fn in_image(node: &TestNode, image: &Image, script: &str) {
    let directory = node.graph_root().join("overlay-images").join(image.id());
    assert!(Path::new(&directory).is_dir());
    let status = Command::new("bash")
        .args(["-euc", script])
        .current_dir(directory)
        .status();
    assert!(status.unwrap().success(), "{script}");
}
