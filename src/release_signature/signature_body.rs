//! Parses the body of a release's signature, which names the digest and the release.
//!
//! ```text
//! {"critical": {"image": {"docker-manifest-digest": "sha256:…"},
//!               "type": "atomic container signature",
//!               "identity": {"docker-reference": "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64"}},
//!  "optional": {"creator": "Red Hat OpenShift Signing Authority 0.0.1", "timestamp": 1708999999}}
//! ```
//!
//! The digest is that of the release as it is referenced: of the list, if there is one. The identity is not compared with
//! the reference, so that mirrors work (library-go `pkg/verify/verify.go`: `verifyAtomicContainerSignature`). Unlike in a
//! policy's simple signing, `optional` may contain only the two fields. Unlike Go's parser, this one distinguishes upper and
//! lower case, and refuses duplicate fields and text after the object; no real signature has any.

use serde::Deserialize;

use crate::oci::Digest;
use crate::spec::shown;

const TYPE: &str = "atomic container signature";

/// What a signature is about.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SignatureBody {
    /// The `docker-reference`.
    pub(super) reference: String,
}

/// Why a body is not accepted for a release.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureBodyError {
    #[error("the signed text is not as expected: {0}")]
    Json(String),
    #[error("the signature's type is `{0}`, not `{TYPE}`")]
    Type(String),
    #[error("the signature's `docker-reference` is missing or empty")]
    NoIdentity,
    #[error("the signature is for `{digest}` ({reference})")]
    Digest { digest: String, reference: String },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    critical: Critical,
    #[serde(rename = "optional")]
    _optional: Option<Optional>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Critical {
    #[serde(rename = "type")]
    kind: String,
    image: Image,
    #[serde(default)]
    identity: Identity,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    #[serde(rename = "docker-reference", default)]
    reference: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Optional {
    #[serde(rename = "creator")]
    _creator: Option<String>,
    #[serde(rename = "timestamp")]
    _timestamp: Option<i64>,
}

impl SignatureBody {
    /// Parses a signed text and checks that it is for `digest`.
    pub(super) fn parse(text: &[u8], digest: Digest) -> Result<Self, SignatureBodyError> {
        let body: Body = serde_json::from_slice(text)
            .map_err(|error| SignatureBodyError::Json(shown(&error.to_string())))?;
        let Critical {
            kind,
            image,
            identity,
        } = body.critical;
        if kind != TYPE {
            return Err(SignatureBodyError::Type(shown(&kind)));
        }
        if identity.reference.is_empty() {
            return Err(SignatureBodyError::NoIdentity);
        }
        let reference = shown(&identity.reference);
        if image.digest != digest.to_string() {
            let digest = shown(&image.digest);
            return Err(SignatureBodyError::Digest { digest, reference });
        }
        Ok(Self { reference })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const BODY: &str = r#"{"critical":{"image":{"docker-manifest-digest":"DIGEST"},"type":"atomic container signature","identity":{"docker-reference":"quay.io/a/b:4.15.0-x86_64"}},"optional":{"creator":"c","timestamp":1708999999}}"#;

    fn parse(from: &str, to: &str) -> Result<SignatureBody, String> {
        let digest = Digest::of(b"release");
        assert!(BODY.contains(from), "{from}");
        let text = BODY.replacen(from, to, 1).replace("DIGEST", &digest.to_string());
        SignatureBody::parse(text.as_bytes(), digest).map_err(|error| error.to_string())
    }

    #[test]
    fn a_body_for_the_digest_is_accepted_whatever_its_reference() {
        for (from, to) in [
            ("", ""),
            ("quay.io/a/b:4.15.0-x86_64", "anything"),
            (r#","optional":{"creator":"c","timestamp":1708999999}"#, ""),
            (r#"{"creator":"c","timestamp":1708999999}"#, "{}"),
            (r#"{"creator":"c","timestamp":1708999999}"#, "null"),
            (r#""creator":"c""#, r#""creator":null"#),
            ("1708999999}}", "1708999999}} \n"),
        ] {
            parse(from, to).unwrap();
        }
        assert_eq!(parse("", "").unwrap().reference, "quay.io/a/b:4.15.0-x86_64");
    }

    #[test]
    fn a_body_with_anything_else_is_refused() {
        let other = Digest::of(b"other").to_string();
        for (from, to, why) in [
            ("DIGEST", &*other, "the signature is for `sha256:"),
            ("DIGEST", "", "the signature is for ``"),
            (
                "atomic container",
                "cosign container image",
                "the signature's type is `cosign",
            ),
            ("quay.io/a/b:4.15.0-x86_64", "", "is missing or empty"),
            (
                r#""docker-reference":"quay.io/a/b:4.15.0-x86_64""#,
                "",
                "is missing or empty",
            ),
            (
                r#"{"critical":{"#,
                r#"{"critical":{"more":1,"#,
                "unknown field `more`",
            ),
            (r#"{"creator""#, r#"{"more":1,"creator""#, "unknown field `more`"),
            (
                r#"{"critical""#,
                r#"{"more":1,"critical""#,
                "unknown field `more`",
            ),
            (r#""critical""#, r#""Critical""#, "unknown field `Critical`"),
            (r#""type":"#, r#""type":"x","type":"#, "duplicate field `type`"),
            ("1708999999", "1708999999.0", "floating point"),
            ("1708999999", "1e3", "floating point"),
            ("1708999999", "9223372036854775808", "invalid value"),
            (r#""c""#, "7", "invalid type"),
            ("1708999999}}", "1708999999}} {}", "trailing characters"),
            ("{\"critical\"", "\u{feff}{\"critical\"", "expected value"),
            ("quay.io", "\\ud800", "hex escape"),
        ] {
            let error = parse(from, to).unwrap_err();
            assert!(error.contains(why), "{to}: {error}");
        }
        for text in ["", "null", "[]", "{}", "{\"critical\":null}", "\u{0}"] {
            let error = SignatureBody::parse(text.as_bytes(), Digest::of(b"")).unwrap_err();
            assert!(matches!(error, SignatureBodyError::Json(_)), "{text}");
        }
    }
}
