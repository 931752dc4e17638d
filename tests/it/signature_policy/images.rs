//! Lists the images of the comparison: unsigned, signed in many ways, and with signatures that must not count.

use serde_json::json;

use super::site::{Attached, Place, SIMPLE_SIGNING, Site, name, payload};
use crate::image::Format;

/// Of a signature that no tool makes.
const ATOMIC: &str = "atomic container signature";
const COSIGN: &str = "cosign container image signature";

/// Publishes all images and returns the names by which nodes request them. Names below `gpg/` have lookaside signatures,
/// names below `sigstore/` have attachments.
pub(super) fn publish(site: &Site) -> Vec<String> {
    let mut names = vec![name("unsigned")];
    site.push("unsigned");
    names.extend(signed_by_gpg(site));
    names.extend(signed_by_sigstore(site));
    names.extend(signed_twice(site));
    names.extend(signed_lists(site));
    names.extend(elsewhere(site));
    names
}

fn signed_by_gpg(site: &Site) -> Vec<String> {
    let mut names = Vec::new();
    let mut push = |repository: &str| {
        names.push(name(repository));
        (site.push(repository).digest(), format!("{repository}:1"))
    };
    for key in ["a", "b", "nist", "subkey", "expired", "short", "revoked"] {
        let repository = format!("gpg/{key}");
        let (_, target) = push(&repository);
        site.sign_by_gpg(key, &target, &name(&repository), &[]);
    }
    for (repository, identity) in [
        ("gpg/other-repository", "images.example.test/other/signed:1"),
        ("gpg/other-tag", "images.example.test/gpg/other-tag:2"),
        (
            "gpg/other-registry",
            "elsewhere.example.test/gpg/other-registry:1",
        ),
    ] {
        let (_, target) = push(repository);
        site.sign_by_gpg("a", &target, identity, &[]);
    }
    let made = |digest: &str, kind: &str, identity: &str| {
        site.keys.openpgp_message("a", &payload(kind, digest, identity))
    };
    let (other, _) = push("gpg/copied-from");
    let signature = made(&other, ATOMIC, &name("gpg/copied"));
    for (repository, signatures) in [
        ("gpg/copied", vec![signature]),
        ("gpg/empty-file", vec![Vec::new()]),
        ("gpg/unknown-kind-of-blob", vec![b"\0other-json\n{}".to_vec()]),
    ] {
        let (digest, _) = push(repository);
        for (index, bytes) in signatures.iter().enumerate() {
            site.put_lookaside(repository, &digest, index + 1, bytes);
        }
    }
    let (digest, _) = push("gpg/name-only");
    let signature = made(&digest, ATOMIC, "images.example.test/gpg/name-only");
    site.put_lookaside("gpg/name-only", &digest, 1, &signature);
    let (digest, _) = push("gpg/type-of-sigstore");
    let signature = made(&digest, COSIGN, &name("gpg/type-of-sigstore"));
    site.put_lookaside("gpg/type-of-sigstore", &digest, 1, &signature);
    let (digest, _) = push("gpg/garbage-first");
    site.put_lookaside("gpg/garbage-first", &digest, 1, b"no signature");
    let good = made(&digest, ATOMIC, &name("gpg/garbage-first"));
    site.put_lookaside("gpg/garbage-first", &digest, 2, &good);
    // Signature 3 is never read: signature 2 is missing.
    let (digest, _) = push("gpg/gap");
    site.put_lookaside("gpg/gap", &digest, 1, b"no signature");
    site.put_lookaside("gpg/gap", &digest, 3, &made(&digest, ATOMIC, &name("gpg/gap")));
    let (digest, _) = push("gpg/detached");
    let mut altered = made(&digest, ATOMIC, &name("gpg/detached"));
    if let Some(last) = altered.last_mut() {
        *last ^= 1;
    }
    site.put_lookaside("gpg/detached", &digest, 1, &altered);
    names
}

fn signed_by_sigstore(site: &Site) -> Vec<String> {
    let mut names = Vec::new();
    let mut push = |repository: &str| {
        names.push(name(repository));
        (site.push(repository).digest(), format!("{repository}:1"))
    };
    for key in ["one", "two"] {
        let repository = format!("sigstore/{key}");
        let (_, target) = push(&repository);
        site.sign_by_sigstore(key, Place::Attachment, &target, &name(&repository), &[]);
    }
    for (repository, identity) in [
        ("sigstore/other-repository", "images.example.test/other/signed:1"),
        ("sigstore/other-tag", "images.example.test/sigstore/other-tag:2"),
    ] {
        let (_, target) = push(repository);
        site.sign_by_sigstore("one", Place::Attachment, &target, identity, &[]);
    }
    let signed =
        |key: &str, digest: &str, identity: &str| Attached::signed(&site.keys, key, digest, identity);
    for key in ["rsa", "ed25519"] {
        let repository = format!("sigstore/{key}");
        let (digest, _) = push(&repository);
        site.attach(
            &repository,
            &digest,
            Format::Oci,
            &[signed(key, &digest, &name(&repository))],
        );
    }
    let (other, _) = push("sigstore/copied-from");
    let (digest, _) = push("sigstore/copied");
    let copied = signed("rsa", &other, &name("sigstore/copied"));
    site.attach("sigstore/copied", &digest, Format::Oci, &[copied]);
    let (digest, _) = push("sigstore/name-only");
    let name_only = signed("rsa", &digest, "images.example.test/sigstore/name-only");
    site.attach("sigstore/name-only", &digest, Format::Oci, &[name_only]);
    let (digest, _) = push("sigstore/logged");
    let logged = signed("rsa", &digest, &name("sigstore/logged")).logged(&site.keys, "rsa.pub");
    site.attach("sigstore/logged", &digest, Format::Oci, &[logged]);
    let (digest, _) = push("sigstore/attestation-first");
    let attestation = Attached {
        mime_type: "application/vnd.dsse.envelope.v1+json",
        payload: r#"{"payloadType":"<&>"}"#.to_owned(),
        annotations: json!({"predicateType": "<a> & b", "a": "ü"}),
    };
    let good = signed("rsa", &digest, &name("sigstore/attestation-first"));
    site.attach(
        "sigstore/attestation-first",
        &digest,
        Format::Oci,
        &[attestation, good],
    );
    let (digest, _) = push("sigstore/no-annotation");
    let bare = Attached {
        mime_type: SIMPLE_SIGNING,
        payload: payload(COSIGN, &digest, &name("sigstore/no-annotation")),
        annotations: json!({}),
    };
    site.attach("sigstore/no-annotation", &digest, Format::Oci, &[bare]);
    let (digest, _) = push("sigstore/schema-2");
    let good = Attached {
        mime_type: "application/vnd.docker.image.rootfs.diff.tar",
        ..signed("rsa", &digest, &name("sigstore/schema-2"))
    };
    site.attach("sigstore/schema-2", &digest, Format::Docker, &[good]);
    names
}

fn signed_twice(site: &Site) -> Vec<String> {
    let repositories = ["twice/a-and-b", "twice/both-kinds", "twice/everywhere"];
    let identities = repositories.map(name);
    let targets = repositories.map(|repository| {
        site.push(repository);
        format!("{repository}:1")
    });
    for (target, identity) in targets.iter().zip(&identities) {
        site.sign_by_gpg("a", target, identity, &[]);
    }
    site.sign_by_gpg("b", &targets[0], &identities[0], &[]);
    site.sign_by_sigstore("one", Place::Attachment, &targets[1], &identities[1], &[]);
    site.sign_by_sigstore("one", Place::Everywhere, &targets[2], &identities[2], &[]);
    identities.into()
}

/// Lists: signed with all their instances, the list only, and one instance only.
fn signed_lists(site: &Site) -> Vec<String> {
    let repositories = [
        "list/all",
        "list/list-only",
        "list/instance-only",
        "list/sigstore",
    ];
    let lists = repositories.map(|repository| site.push_list(repository));
    let [all, only, instance, sigstore] = repositories.map(name);
    site.sign_by_gpg("a", "list/all:1", &all, &["--all"]);
    site.sign_by_gpg("a", "list/list-only:1", &only, &["--multi-arch=index-only"]);
    let target = format!("list/instance-only@{}", lists[2].instances[0].digest());
    site.sign_by_gpg("a", &target, &instance, &[]);
    site.sign_by_sigstore("one", Place::Attachment, "list/sigstore:1", &sigstore, &["--all"]);
    vec![all, only, instance, sigstore]
}

/// By digest, by the physical name, at a mirror, and with other settings in registries.d.
fn elsewhere(site: &Site) -> Vec<String> {
    let host = site.host();
    let mut names = Vec::new();
    let mut sign = |repository: &str, requested: &str, identity: &str| {
        let digest = site.push(repository).digest();
        site.sign_by_gpg("a", &format!("{repository}:1"), identity, &[]);
        site.sign_by_sigstore(
            "one",
            Place::Attachment,
            &format!("{repository}:1"),
            identity,
            &[],
        );
        names.push(requested.replace("DIGEST", &digest));
    };
    sign(
        "digest/gpg",
        "images.example.test/digest/gpg@DIGEST",
        &name("digest/gpg"),
    );
    sign(
        "digest/tag",
        "images.example.test/digest/tag:1@DIGEST",
        &name("digest/tag"),
    );
    let direct = format!("{host}/direct/gpg:1");
    sign("direct/gpg", &direct, &direct);
    let mirrored = |name: &str| format!("mirrored.example.test/{name}:1");
    sign("mirror/by-name", &mirrored("by-name"), &mirrored("by-name"));
    sign(
        "mirror/by-mirror",
        &mirrored("by-mirror"),
        &format!("{host}/mirror/by-mirror:1"),
    );
    sign(
        "mirror/team/by-mirror",
        &mirrored("team/by-mirror"),
        &format!("{host}/mirror/team/by-mirror:1"),
    );
    for repository in ["file/gpg", "old/gpg", "unread/gpg"] {
        sign(repository, &name(repository), &name(repository));
    }
    names
}
