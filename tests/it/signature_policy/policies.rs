//! Lists the policies of the comparison.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::site::Site;

/// A policy, by what it demands.
#[derive(Clone)]
pub(super) struct Policy {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) verdicts: Verdicts,
    /// Otherwise a few images are enough.
    pub(super) needs_all_images: bool,
}

/// What is expected of podman and the program.
#[derive(Clone, Copy)]
pub(super) enum Verdicts {
    Same,
    /// podman accepts some images; the program accepts none, and its reason contains this text.
    Unsupported(&'static str),
    /// Neither can use the policy.
    Unusable,
}

/// All of them.
pub(super) fn policies(site: &Site) -> Vec<Policy> {
    [
        plain(site),
        identities(site),
        scopes(site),
        beyond(site),
        unusable(),
    ]
    .concat()
}

fn path(file: &str) -> String {
    format!("/etc/containers/keys/{file}")
}

fn accept() -> Value {
    json!({"type": "insecureAcceptAnything"})
}

fn reject() -> Value {
    json!({"type": "reject"})
}

/// `signedBy` with one more member.
fn gpg(member: &str, value: impl Into<Value>) -> Value {
    json!({"type": "signedBy", "keyType": "GPGKeys", member: value.into()})
}

/// `sigstoreSigned` with one more member.
fn sigstore(member: &str, value: impl Into<Value>) -> Value {
    json!({"type": "sigstoreSigned", member: value.into()})
}

fn with(mut requirement: Value, member: &str, value: Value) -> Value {
    requirement[member] = value;
    requirement
}

fn of(name: &'static str, policy: &Value) -> Policy {
    Policy {
        name,
        text: policy.to_string(),
        verdicts: Verdicts::Same,
        needs_all_images: true,
    }
}

/// The same requirements for every image.
fn everywhere(name: &'static str, requirements: &[Value]) -> Policy {
    of(name, &json!({ "default": requirements }))
}

/// Requirements by scope; what has none must satisfy `default`.
fn scoped(name: &'static str, default: &Value, scopes: &[(&str, Value)]) -> Policy {
    let mut docker = json!({});
    for (scope, requirement) in scopes {
        docker[*scope] = json!([requirement]);
    }
    of(
        name,
        &json!({"default": [default], "transports": {"docker": docker, "docker-daemon": {"": [accept()]}}}),
    )
}

fn plain(site: &Site) -> Vec<Policy> {
    let data = |file: &str| STANDARD.encode(site.keys.public(file));
    vec![
        everywhere("insecureAcceptAnything", &[accept()]),
        everywhere("reject", &[reject()]),
        everywhere("signedBy keyPath", &[gpg("keyPath", path("a.gpg"))]),
        everywhere(
            "signedBy keyPath, armored EdDSA key",
            &[gpg("keyPath", path("b.gpg"))],
        ),
        everywhere(
            "signedBy keyPath, a ring of all keys",
            &[gpg("keyPath", path("all.gpg"))],
        ),
        everywhere(
            "signedBy keyPaths",
            &[gpg(
                "keyPaths",
                vec![path("b.gpg"), path("nist.gpg"), path("subkey.gpg")],
            )],
        ),
        everywhere("signedBy keyData", &[gpg("keyData", data("a.gpg"))]),
        everywhere("sigstoreSigned keyPath", &[sigstore("keyPath", path("one.pub"))]),
        everywhere(
            "sigstoreSigned keyPaths",
            &[sigstore("keyPaths", vec![path("two.pub"), path("ed25519.pub")])],
        ),
        everywhere("sigstoreSigned keyData", &[sigstore("keyData", data("one.pub"))]),
        everywhere(
            "sigstoreSigned keyDatas",
            &[sigstore("keyDatas", vec![data("one.pub"), data("rsa.pub")])],
        ),
        everywhere(
            "signedBy and sigstoreSigned",
            &[
                gpg("keyPath", path("a.gpg")),
                sigstore("keyPath", path("one.pub")),
            ],
        ),
        everywhere(
            "signedBy twice",
            &[gpg("keyPath", path("a.gpg")), gpg("keyPath", path("b.gpg"))],
        ),
    ]
}

/// Each identity for both kinds of signatures.
fn identities(site: &Site) -> Vec<Policy> {
    let mirror = format!("{}/mirror", site.host());
    let remap = |prefix: &str, signed: &str| json!({"type": "remapIdentity", "prefix": prefix, "signedPrefix": signed});
    [
        ("matchExact", json!({"type": "matchExact"})),
        (
            "matchRepoDigestOrExact",
            json!({"type": "matchRepoDigestOrExact"}),
        ),
        ("matchRepository", json!({"type": "matchRepository"})),
        (
            "exactReference",
            json!({"type": "exactReference", "dockerReference": "images.example.test/other/signed:1"}),
        ),
        (
            "exactRepository",
            json!({"type": "exactRepository", "dockerRepository": "images.example.test/other/signed"}),
        ),
        (
            "remapIdentity of a registry",
            remap("mirrored.example.test", &mirror),
        ),
        (
            "remapIdentity of a repository",
            remap("mirrored.example.test/team", &format!("{mirror}/team")),
        ),
    ]
    .into_iter()
    .map(|(name, identity)| {
        let gpg = with(gpg("keyPath", path("a.gpg")), "signedIdentity", identity.clone());
        let keys = vec![path("one.pub"), path("rsa.pub")];
        let sigstore = with(sigstore("keyPaths", keys), "signedIdentity", identity);
        scoped(name, &gpg, &[("images.example.test/sigstore", sigstore)])
    })
    .collect()
}

fn scopes(site: &Site) -> Vec<Policy> {
    let host = site.host();
    let [a, one] = [
        gpg("keyPath", path("a.gpg")),
        sigstore("keyPath", path("one.pub")),
    ];
    vec![
        scoped(
            "a rejected registry",
            &accept(),
            &[("images.example.test", reject())],
        ),
        scoped("a rejected mirror", &accept(), &[(host, reject())]),
        scoped(
            "a rejected name that a mirror serves",
            &accept(),
            &[("mirrored.example.test", reject())],
        ),
        scoped(
            "tag, repository, namespace, registry, wildcard",
            &reject(),
            &[
                ("images.example.test/gpg/b:1", accept()),
                ("images.example.test/gpg/nist:2", accept()),
                ("images.example.test/gpg/expired", accept()),
                ("images.example.test/gpg", a.clone()),
                ("images.example.test/sigstore", one.clone()),
                ("images.example.test/twice", reject()),
                ("images.example.test", accept()),
                ("*.example.test", one.clone()),
                ("*.test", reject()),
                (host, a.clone()),
            ],
        ),
        scoped(
            "wildcards only",
            &accept(),
            &[("*.example.test", a.clone()), ("*.test", reject())],
        ),
        scoped("a registry with a port", &reject(), &[(host, one)]),
        scoped("every image of the transport", &reject(), &[("", a)]),
    ]
}

/// What the program never accepts, and what no image satisfies.
fn beyond(site: &Site) -> Vec<Policy> {
    let logged = sigstore("keyPath", path("rsa.pub"));
    let mut rekor = everywhere(
        "a Rekor log",
        &[with(logged, "rekorPublicKeyPath", path("rekor.pub").into())],
    );
    rekor.verdicts = Verdicts::Unsupported("Rekor key");
    let base = json!({"type": "signedBaseLayer", "baseLayerIdentity": {"type": "matchExact"}});
    let data = STANDARD.encode(site.keys.public("garbage.gpg"));
    let policies = vec![
        rekor,
        everywhere("signedBaseLayer", std::slice::from_ref(&base)),
        everywhere(
            "signedBaseLayer after signedBy",
            &[gpg("keyPath", path("a.gpg")), base],
        ),
        everywhere(
            "a keyring that is missing",
            &[gpg("keyPath", path("missing.gpg"))],
        ),
        everywhere(
            "one of two keyrings that is missing",
            &[gpg("keyPaths", vec![path("a.gpg"), path("missing.gpg")])],
        ),
        everywhere(
            "a keyring that is no keyring",
            &[gpg("keyPath", path("garbage.gpg"))],
        ),
        everywhere("keyData that is no keyring", &[gpg("keyData", data)]),
        everywhere(
            "a keyring beside one that is none",
            &[gpg("keyPaths", vec![path("garbage.gpg"), path("a.gpg")])],
        ),
        everywhere(
            "a sigstore key that is missing",
            &[sigstore("keyPath", path("missing.pub"))],
        ),
        everywhere(
            "a sigstore key that is no key",
            &[sigstore("keyPath", path("garbage.pub"))],
        ),
        everywhere(
            "a sigstore key beside one that is none",
            &[sigstore("keyPaths", vec![path("one.pub"), path("garbage.pub")])],
        ),
        scoped("a wildcard in an unusual place", &accept(), &[("*.*", reject())]),
    ];
    let few = |policy| Policy {
        needs_all_images: false,
        ..policy
    };
    policies.into_iter().map(few).collect()
}

/// Texts that are no policy.
fn unusable() -> Vec<Policy> {
    let texts = [
        ("no default", "{}"),
        ("an empty default", r#"{"default":[]}"#),
        (
            "an unknown member",
            r#"{"default":[{"type":"reject"}],"defaults":[]}"#,
        ),
        (
            "a duplicate member",
            r#"{"default":[{"type":"reject"}],"default":[{"type":"insecureAcceptAnything"}]}"#,
        ),
        (
            "a member in capitals",
            r#"{"Default":[{"type":"insecureAcceptAnything"}]}"#,
        ),
        (
            "an unknown requirement",
            r#"{"default":[{"type":"signedByAll"}]}"#,
        ),
        (
            "an unknown member of a requirement",
            r#"{"default":[{"type":"insecureAcceptAnything","a":1}]}"#,
        ),
        (
            "a requirement without a key",
            r#"{"default":[{"type":"signedBy","keyType":"GPGKeys"}]}"#,
        ),
        (
            "a requirement with two keys",
            r#"{"default":[{"type":"sigstoreSigned","keyPath":"/a","keyData":"YQ=="}]}"#,
        ),
        (
            "an empty scope",
            r#"{"default":[{"type":"insecureAcceptAnything"}],"transports":{"docker":{"a.test":[]}}}"#,
        ),
        (
            "more after the policy",
            r#"{"default":[{"type":"insecureAcceptAnything"}]} {}"#,
        ),
        ("no JSON", "default: reject"),
    ];
    let policy = |(name, text): (&'static str, &str)| Policy {
        name,
        text: text.to_owned(),
        verdicts: Verdicts::Unusable,
        needs_all_images: false,
    };
    texts.map(policy).into()
}
