//! Tests the signature policy with files and expected answers of the corpus: containers/image's own tests and fixtures.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::oci::{Digest, Reference};

const FIXTURES: &str = "policy-json/containers-image-signature-fixtures";

/// A file or directory of the corpus; nothing, with a message, if there is no corpus.
pub(super) fn corpus(path: &str) -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::skip(&format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus.join(path))
}

fn json_of(path: &Path) -> Value {
    let text = std::fs::read(path).expect("a file of the corpus");
    serde_json::from_slice(&text).expect("JSON")
}

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn policy(policy: Value) -> Policy {
    Policy::parse(policy.to_string().as_bytes()).expect("a policy")
}

/// Key files below a directory.
#[derive(Debug)]
struct Directory(PathBuf);

impl KeyFiles for Directory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(self.0.join(path))
    }
}

/// No key files.
fn no_files() -> Directory {
    Directory("/nonexistent".into())
}

/// The signatures of an image in a directory, and the digest of its manifest.
fn image_in(directory: &Path) -> (Digest, Vec<Signature>) {
    let manifest = std::fs::read(directory.join("manifest.json")).expect("a manifest");
    let blobs = (1..).map_while(|number| std::fs::read(directory.join(format!("signature-{number}"))).ok());
    let signatures = blobs.map(|blob| Signature::from_blob(&blob).expect("a signature"));
    (Digest::of(&manifest), signatures.collect())
}

#[test]
fn policies_are_accepted_and_rejected_as_containers_image_does() {
    let Some(path) = corpus("expected/policy-json-unmarshal-accept-reject.json") else {
        return;
    };
    let cases = json_of(&path);
    let reject = r#"[{"type":"reject"}]"#;
    let mut wrong = Vec::new();
    for case in cases.as_array().expect("cases") {
        let json = case["json"].as_str().expect("the JSON");
        let kind = case["type"].as_str().expect("its Go type");
        // The part of a policy that the type is.
        let requirement = |requirement: &str| format!(r#"{{"default":[{requirement}]}}"#);
        let policy = match kind.rsplit('.').next().expect("a name") {
            "Policy" => json.to_owned(),
            "PolicyRequirements" => format!(r#"{{"default":{json}}}"#),
            "policyTransportScopesWithTransport" => {
                format!(r#"{{"default":{reject},"transports":{{"docker":{json}}}}}"#)
            }
            "prSigstoreSignedFulcio" => requirement(&format!(
                r#"{{"type":"sigstoreSigned","rekorPublicKeyData":"YQ==","fulcio":{json}}}"#
            )),
            "prSigstoreSignedPKI" => requirement(&format!(r#"{{"type":"sigstoreSigned","pki":{json}}}"#)),
            kind if kind.starts_with("prm") => requirement(&format!(
                r#"{{"type":"signedBaseLayer","baseLayerIdentity":{json}}}"#
            )),
            _ => requirement(json),
        };
        let result = Policy::parse(policy.as_bytes());
        if result.is_ok() != (case["expect"] == "accept") {
            wrong.push(format!("{case}: {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_scope_of_an_image_is_the_one_that_containers_image_finds() {
    let Some(path) = corpus("expected/policy-json-scope-lookups.json") else {
        return;
    };
    for file in json_of(&path).as_array().expect("files") {
        let name = file["file"].as_str().expect("a path");
        let text = std::fs::read(corpus(name).expect("the corpus")).expect("a policy");
        let policy = Policy::parse(&text).expect(name);
        for lookup in file["lookups"].as_array().expect("look-ups") {
            let image = reference(lookup["ref"].as_str().expect("a reference"));
            let order: Vec<String> = policy::scopes_of(&named_reference::NamedReference::of(&image));
            assert_eq!(json!(order), lookup["lookup_order"], "{image}");
            let rule = policy.rule(&image);
            let scope = match rule.scope {
                rule::Scope::Named(scope) => scope,
                rule::Scope::Transport => "",
                rule::Scope::Default => "<default>",
            };
            assert_eq!(scope, lookup["scope"], "{image}");
            let types = lookup["requirements"].as_array().expect("requirements").iter();
            let types: Vec<_> = types.map(|requirement| requirement["type"].as_str()).collect();
            let rejects = types.contains(&Some("reject"));
            assert_eq!(rule.rejects(), rejects, "{image}");
        }
    }
}

#[test]
fn verdicts_are_those_of_containers_image() {
    let Some(path) = corpus("expected/policy.json") else {
        return;
    };
    let answers = json_of(&path);
    let files = Directory(corpus(FIXTURES).expect("the corpus"));
    let mut wrong = Vec::new();
    for case in answers["cases"].as_array().expect("cases") {
        let text = |name: &str| case[name].as_str().expect("a text");
        let (manifest, signatures) = image_in(&corpus(text("image")).expect("the corpus"));
        let mut requirement = json!({
            "type": text("requirement"),
            "keyPath": text("key"),
            "signedIdentity": {"type": text("signedIdentity")},
        });
        if text("requirement") == "signedBy" {
            requirement["keyType"] = json!("GPGKeys");
        }
        let policy = policy(json!({"default": [requirement]}));
        let image = reference(text("reference"));
        let result = policy
            .rule(&image)
            .evaluate(&image, manifest, &signatures, &files, Timestamp::now());
        if Some(result.is_ok()) != case["accepted"].as_bool() {
            wrong.push(format!("{case}: {result:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn policies_of_real_nodes_are_parsed() {
    let Some(directory) = corpus("policy-json") else {
        return;
    };
    for (file, image, expected) in [
        (
            "misc/common-policy.json",
            "quay.io/a:1",
            "`insecureAcceptAnything` for the policy's default",
        ),
        (
            "misc/podman-policy.json",
            "quay.io/a:1",
            "`insecureAcceptAnything` for the policy's default",
        ),
        (
            "misc/skopeo-policy.json",
            "quay.io/a:1",
            "`reject` for the policy's default",
        ),
        (
            "machineconfig/4.16.0-compact.01-master-container-runtime.policy.json",
            "quay.io/a:1",
            "`insecureAcceptAnything` for the policy's default",
        ),
        (
            "containers-image-signature-fixtures/policy.json",
            "example.com/hardened/a:1",
            "`signedBy`, `signedBy` with keyType `signedByGPGKeys`, `signedBaseLayer` for scope `example.com/hardened`",
        ),
        (
            "containers-image-signature-fixtures/policy.json",
            "a.b.com/x:1",
            "`signedBy` with keyType `signedByGPGKeys` for scope `*.com`",
        ),
        (
            "containers-image-signature-fixtures/policy.json",
            "private-mirror:5000/vendor-mirror/x:1",
            "`signedBy` for scope `private-mirror:5000/vendor-mirror`",
        ),
        (
            "containers-image-signature-fixtures/policy.json",
            "other.example/x:1",
            "`reject` for the policy's default",
        ),
    ] {
        let text = std::fs::read(directory.join(file)).expect("a policy");
        let policy = Policy::parse(&text).expect(file);
        assert_eq!(
            policy.rule(&reference(image)).to_string(),
            expected,
            "{file} {image}"
        );
    }
}

#[test]
fn the_default_of_a_transport_comes_before_that_of_the_policy() {
    let accept = json!([{"type": "insecureAcceptAnything"}]);
    let reject = json!([{"type": "reject"}]);
    let policy = policy(json!({
        "default": reject,
        "transports": {"docker": {"": accept, "quay.io": reject, "*.example.com": reject}, "atomic": {"": reject}},
    }));
    for (image, scope) in [
        ("docker.io/library/busybox:1", "the default of transport `docker`"),
        ("busybox:1", "the default of transport `docker`"),
        ("quay.io:443/a:1", "the default of transport `docker`"),
        ("quay.io/a:1", "scope `quay.io`"),
        ("a.example.com:5000/a:1", "scope `*.example.com`"),
        ("b.a.example.com/a:1", "scope `*.example.com`"),
        ("example.com/a:1", "the default of transport `docker`"),
    ] {
        let image = reference(image);
        let rule = policy.rule(&image);
        assert_eq!(rule.scope.to_string(), scope, "{image}");
        assert_eq!(
            rule.accepts_anything(),
            scope.starts_with("the default"),
            "{image}"
        );
    }
}

#[test]
fn the_keys_of_openshift_are_usable() {
    let Some(directory) = corpus("keys/by-branch") else {
        return;
    };
    for branch in ["4.17", "4.20", "4.21"] {
        let path = directory.join(format!("cluster-image-policy.{branch}.yaml"));
        let text = std::fs::read_to_string(path).expect("YAML");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        for object in objects {
            let key = &object["spec"]["policy"]["rootOfTrust"]["publicKey"]["keyData"];
            let policy = policy(json!({"default": [{"type": "sigstoreSigned", "keyData": key}]}));
            let forged = SigstoreSignature {
                mime_type: SigstoreSignature::MIME_TYPE.to_owned(),
                payload: b"{}".to_vec(),
                annotations: BTreeMap::from([(
                    SigstoreSignature::SIGNATURE_ANNOTATION.to_owned(),
                    "YQ==".to_owned(),
                )]),
            };
            let image = reference("quay.io/openshift-release-dev/ocp-release:4.21.0-x86_64");
            let refusal = policy
                .rule(&image)
                .evaluate(
                    &image,
                    Digest::of(b""),
                    &[Signature::Sigstore(forged)],
                    &no_files(),
                    Timestamp::UNIX_EPOCH,
                )
                .expect_err("a forged signature");
            assert_eq!(
                refusal.to_string(),
                "Source image rejected: signature 1: cryptographic signature verification failed with `keyData` (rule: \
                 `sigstoreSigned` for the policy's default)"
            );
        }
    }
}

#[test]
fn a_refusal_names_scope_requirement_and_reason() {
    let image = reference("docker.io/library/busybox:1");
    let simple = Signature::Simple(b"\x90".to_vec());
    let attachment = Signature::Sigstore(SigstoreSignature {
        mime_type: "application/vnd.dsse.envelope.v1+json".to_owned(),
        ..SigstoreSignature::default()
    });
    let unsigned = Signature::Sigstore(SigstoreSignature {
        mime_type: SigstoreSignature::MIME_TYPE.to_owned(),
        ..SigstoreSignature::default()
    });
    let sigstore = json!({"type": "sigstoreSigned", "keyPath": "/etc/cosign.pub"});
    let signed_by = json!({"type": "signedBy", "keyType": "GPGKeys", "keyPaths": ["/etc/a", "b"]});
    let fulcio = json!({"caPath": "/ca", "oidcIssuer": "https://a", "subjectEmail": "b@c"});
    for (requirements, signatures, expected) in [
        (
            json!([{"type": "reject"}]),
            vec![],
            "Source image rejected: Running image docker://busybox:1 is rejected by policy. (rule: `reject` for scope \
             `docker.io`",
        ),
        (
            json!([sigstore, {"type": "reject"}]),
            vec![],
            "Source image rejected: Running image docker://busybox:1 is rejected by policy. (rule: `reject`",
        ),
        (
            json!([sigstore]),
            vec![],
            "Source image rejected: A signature was required, but no signature exists (rule: `sigstoreSigned` for scope \
             `docker.io`)\nhint: it is tag `sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855.sig` of the \
             repository",
        ),
        (
            json!([sigstore]),
            vec![simple.clone(), attachment.clone()],
            "Source image rejected: A signature was required, but no signature exists (1 non-sigstore signatures, 1 sigstore \
             non-signature attachments) (rule: ",
        ),
        (
            json!([signed_by]),
            vec![],
            "Source image rejected: A signature was required, but no signature exists (rule: `signedBy` for scope \
             `docker.io`)\nhint: a simple signature is in a lookaside store",
        ),
        (
            json!([sigstore]),
            vec![unsigned.clone()],
            "Source image rejected: the key of `/etc/cosign.pub` cannot be used: No such file or directory (os error 2) \
             (rule: `sigstoreSigned` for scope `docker.io`",
        ),
        (
            json!([{"type": "sigstoreSigned", "keyDatas": ["bm9uc2Vuc2U="]}]),
            vec![unsigned.clone()],
            "Source image rejected: the key of `keyDatas[0]` cannot be used: PEM decoding failed (rule: ",
        ),
        (
            json!([signed_by]),
            vec![simple],
            "Source image rejected: the key of `/etc/a` cannot be used: No such file",
        ),
        (
            json!([{"type": "insecureAcceptAnything"}, {"type": "sigstoreSigned", "fulcio": fulcio, "rekorPublicKeyData": ""}]),
            vec![],
            "Source image rejected: it is unknown whether its signatures meet the policy (rule: `sigstoreSigned` with \
             `fulcio` for scope `docker.io`)\nhint: this program does not evaluate such a rule; leave the image to CRI-O",
        ),
        (
            json!([{"type": "sigstoreSigned", "keyPath": "/a", "rekorPublicKeyPath": "/b"}]),
            vec![unsigned],
            "Source image rejected: it is unknown whether its signatures meet the policy (rule: `sigstoreSigned` with a \
             Rekor key for scope `docker.io`",
        ),
    ] {
        let policy = policy(json!({
            "default": [{"type": "insecureAcceptAnything"}],
            "transports": {"docker": {"docker.io": requirements}},
        }));
        let rule = policy.rule(&image);
        let refusal = rule
            .evaluate(
                &image,
                Digest::of(b""),
                &signatures,
                &no_files(),
                Timestamp::UNIX_EPOCH,
            )
            .expect_err(expected);
        let text = refusal.to_string();
        assert!(text.starts_with(expected), "{text}\n{expected}");
        let is_unsupported = text.contains("it is unknown");
        assert_eq!(refusal.is_unsupported(), is_unsupported);
        assert_eq!(
            rule.rejects(),
            is_unsupported || text.contains("is rejected by policy")
        );
        assert!(!rule.accepts_anything());
    }
}

#[test]
fn what_accepts_anything_needs_no_signatures() {
    let policy = policy(json!({"default": [{"type": "insecureAcceptAnything"}]}));
    let image = reference("quay.io/a:1");
    let rule = policy.rule(&image);
    assert!(rule.accepts_anything() && !rule.rejects());
    let accepted = rule.evaluate(&image, Digest::of(b""), &[], &no_files(), Timestamp::UNIX_EPOCH);
    assert_eq!(
        accepted.expect("accepted").to_string(),
        "no signature is required"
    );
}

#[test]
fn an_invalid_policy_names_the_member() {
    for (text, why) in [
        ("", "EOF"),
        ("null", "JSON object expected"),
        ("{}", "Default policy is missing"),
        (
            r#"{"default":[]}"#,
            "`default`: List of verification policy requirements must not be empty",
        ),
        (r#"{"default":null}"#, "must not be empty"),
        (
            r#"{"default":[{"type":"reject"}],"Transports":{}}"#,
            "Unknown key `Transports`",
        ),
        (
            r#"{"default":[{"type":"reject"}],"default":[]}"#,
            "Duplicate key `default`",
        ),
        (
            r#"{"default":[{"type":"reject","Type":"reject"}]}"#,
            "`default`: Unknown key `Type`",
        ),
        (
            r#"{"default":[{"type":"rejects"}]}"#,
            "Unknown policy requirement type `rejects`",
        ),
        (r#"{"default":[{"type":"reject"}]} x"#, "trailing"),
        (
            r#"{"default":[{"type":"reject"}],"transports":{"docker":{"quay.io":[{"type":"signedBy","keyType":"GPG"}]}}}"#,
            "`docker`: `quay.io`: `signedBy`: Unrecognized keyType value `GPG`",
        ),
        (
            r#"{"default":[{"type":"reject"}],"transports":{"dir":{"relative":[{"type":"reject"}]}}}"#,
            "`dir`: Unknown key `relative`",
        ),
        (
            r#"{"default":[{"type":"sigstoreSigned","keyData":"*"}]}"#,
            "`sigstoreSigned`: `keyData`: a string in base64 expected",
        ),
        (
            r#"{"default":[{"type":"sigstoreSigned","keyData":"","signedIdentity":{"type":"exactRepository","dockerRepository":"A B"}}]}"#,
            "`signedIdentity`: Invalid format of dockerRepository `A B`: it contains white space",
        ),
    ] {
        let error = Policy::parse(text.as_bytes()).expect_err(text).to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
    assert_eq!(Policy::parse(&vec![b' '; (16 << 20) + 1]), Err(PolicyError::Size));
}

#[test]
fn null_and_empty_values_count_as_in_go() {
    for (requirement, accepted) in [
        (r#"{"type":"sigstoreSigned","keyPath":"","keyData":"YQ=="}"#, true),
        (
            r#"{"type":"sigstoreSigned","keyPath":null,"keyData":"YQ=="}"#,
            true,
        ),
        (r#"{"type":"sigstoreSigned","keyPath":"a","keyData":null}"#, true),
        (
            r#"{"type":"sigstoreSigned","keyPath":"a","keyDatas":null}"#,
            false,
        ),
        (
            r#"{"type":"sigstoreSigned","keyPath":"a","signedIdentity":null}"#,
            false,
        ),
        (r#"{"type":"sigstoreSigned","keyData":"a","fulcio":null}"#, false),
        (r#"{"type":"sigstoreSigned","keyData":""}"#, true),
        (r#"{"type":"sigstoreSigned","keyPaths":[null]}"#, true),
        (
            r#"{"type":"signedBy","keyType":"GPGKeys","keyPath":"","keyData":"YQ=="}"#,
            false,
        ),
        (r#"{"type":"signedBy","keyType":"GPGKeys","keyPath":""}"#, false),
        (r#"{"type":"signedBy","keyType":"GPGKeys","keyPaths":[]}"#, true),
        (
            r#"{"type":"signedBy","keyType":"GPGKeys","keyPaths":null}"#,
            false,
        ),
        (r#"{"type":"signedBy","keyType":"GPGKeys","keyData":""}"#, true),
        (r#"{"type":"signedBy","keyType":null,"keyData":""}"#, false),
        (r#"{"type":null}"#, false),
        ("null", false),
    ] {
        let policy = format!(r#"{{"default":[{requirement}]}}"#);
        let result = Policy::parse(policy.as_bytes());
        assert_eq!(result.is_ok(), accepted, "{requirement}: {result:?}");
    }
}

proptest! {
    #[test]
    fn what_is_accepted_is_what_was_signed(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let Some(fixtures) = corpus(FIXTURES) else { return Ok(()) };
        let directory = fixtures.join("dir-img-cosign-valid");
        let (manifest, signatures) = image_in(&directory);
        let mut blob = signatures[0].to_blob();
        for (index, byte) in changes {
            let position = index.index(blob.len());
            blob[position] = byte;
        }
        let Ok(Signature::Sigstore(changed)) = Signature::from_blob(&blob) else { return Ok(()) };
        let Signature::Sigstore(original) = &signatures[0] else { panic!("a sigstore signature") };
        let policy = policy(json!({"default": [{
            "type": "sigstoreSigned",
            "keyPath": "cosign.pub",
            "signedIdentity": {"type": "matchRepository"},
        }]}));
        let image = reference("192.168.64.2:5000/cosign-signed-single-sample:1");
        let payload = changed.payload.clone();
        let signatures = [Signature::Sigstore(changed)];
        let rule = policy.rule(&image);
        let result = rule.evaluate(&image, manifest, &signatures, &Directory(fixtures), Timestamp::UNIX_EPOCH);
        prop_assert!(result.is_err() || payload == original.payload);
    }
}
