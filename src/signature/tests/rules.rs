//! Tests which policies are valid and which rule applies to an image, with containers/image's own answers.

use serde_json::json;

use super::{corpus, json_of, policy, reference};
use crate::signature::{Policy, PolicyError, named_reference, rule};

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
