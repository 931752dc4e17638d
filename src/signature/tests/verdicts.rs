//! Tests which images a policy accepts, and how it explains a refusal, with containers/image's own fixtures.

use std::collections::BTreeMap;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

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
                annotations: Some(BTreeMap::from([(
                    SigstoreSignature::SIGNATURE_ANNOTATION.to_owned(),
                    "YQ==".to_owned(),
                )])),
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
             `docker.io`)\nhint: simple signatures are in a lookaside store",
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
