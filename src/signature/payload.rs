//! Parses the signed content of a signature: the digest of a manifest and the name of the image.
//!
//! ```text
//! {"critical": {"type": …, "image": {"docker-manifest-digest": …}, "identity": {"docker-reference": …}},
//!  "optional": {"creator": …, "timestamp": …, …}}
//! ```
//!
//! containers/image `signature/simple.go` and `signature/internal/sigstore_payload.go`; for releases library-go
//! `pkg/verify/verify.go`. The caller has verified that the bytes are signed.

use serde_json::value::RawValue;

use super::shown;
use super::strict_json::{self, FormatError, document, exact_fields, fields, members};
use crate::oci::Digest;

const SIMPLE_SIGNING_TYPE: &str = "atomic container signature";
const SIGSTORE_TYPE: &str = "cosign container image signature";

/// The signed content is not that of a signature.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PayloadError(String);

/// The signed content of a signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Digest of the manifest.
    pub manifest: Digest,
    /// The image as the signer names it; any text, also an empty one.
    pub docker_reference: String,
}

impl Payload {
    /// The body of a simple signature, as strictly as containers/image reads it.
    pub fn of_simple_signing(body: &[u8]) -> Result<Self, PayloadError> {
        Self::parse(body, SIMPLE_SIGNING_TYPE, |optional| match optional {
            Some(optional) => check_optional(optional),
            None => Err(FormatError::new("Key `optional` missing in a JSON object")),
        })
    }

    /// The payload of a sigstore signature, as strictly as containers/image reads it.
    pub fn of_sigstore(payload: &[u8]) -> Result<Self, PayloadError> {
        Self::parse(payload, SIGSTORE_TYPE, |optional| match optional {
            // cosign writes null without annotations of the user.
            Some(optional) if optional.get() == "null" => Ok(()),
            Some(optional) => check_optional(optional),
            None => Err(FormatError::new("Key `optional` missing in a JSON object")),
        })
    }

    /// The body of a release's signature. The cluster-version operator accepts no optional field that it does not know, but
    /// none has to be there. Unlike it, this accepts no repeated or differently spelled names and nothing after the object;
    /// no real signature has them.
    pub fn of_release(body: &[u8]) -> Result<Self, PayloadError> {
        let payload = Self::parse(body, SIMPLE_SIGNING_TYPE, |optional| match optional {
            Some(optional) if optional.get() != "null" => {
                let [creator, timestamp] = fields(optional, ["creator", "timestamp"])?;
                creator.map(strict_json::text).transpose()?;
                let number = |value| strict_json::optional::<i64>(value, "a whole number");
                timestamp.map(number).transpose().map(drop)
            }
            _ => Ok(()),
        })?;
        match payload.docker_reference.is_empty() {
            true => Err(PayloadError("`docker-reference` is empty".to_owned())),
            false => Ok(payload),
        }
    }

    fn parse(
        json: &[u8],
        expected_type: &str,
        check_optional: impl FnOnce(Option<&RawValue>) -> Result<(), FormatError>,
    ) -> Result<Self, PayloadError> {
        let parse = || {
            let [critical, optional] = fields(document(json)?, ["critical", "optional"])?;
            check_optional(optional).map_err(|error| error.within("optional"))?;
            let critical =
                critical.ok_or_else(|| FormatError::new("Key `critical` missing in a JSON object"))?;
            parse_critical(critical, expected_type).map_err(|error| error.within("critical"))
        };
        parse().map_err(|error: FormatError| PayloadError(error.to_string()))
    }
}

fn parse_critical(critical: &RawValue, expected_type: &str) -> Result<Payload, FormatError> {
    let [kind, image, identity] = exact_fields(critical, ["type", "image", "identity"])?;
    let kind = strict_json::text(kind).map_err(|error| error.within("type"))?;
    if kind != expected_type {
        let message = format!("Unrecognized signature type `{}`", shown(&kind));
        return Err(FormatError::new(message));
    }
    let [digest] = exact_fields(image, ["docker-manifest-digest"]).map_err(|error| error.within("image"))?;
    let digest = strict_json::text(digest).map_err(|error| error.within("docker-manifest-digest"))?;
    let manifest = digest.parse().map_err(|_| {
        FormatError::new(format!(
            "invalid docker-manifest-digest value `{}`",
            shown(&digest)
        ))
    })?;
    let [reference] =
        exact_fields(identity, ["docker-reference"]).map_err(|error| error.within("identity"))?;
    let docker_reference = strict_json::text(reference).map_err(|error| error.within("docker-reference"))?;
    Ok(Payload {
        manifest,
        docker_reference,
    })
}

/// containers/image accepts any further members, but checks the two that it writes.
fn check_optional(optional: &RawValue) -> Result<(), FormatError> {
    for (name, value) in members(optional)? {
        match name.as_str() {
            "creator" => drop(strict_json::text(value).map_err(|error| error.within("creator"))?),
            "timestamp" => {
                let number = strict_json::optional::<f64>(value, "a number");
                let number = number.map_err(|error| error.within("timestamp"))?;
                // 2^63 and more does not fit into the int64 of Go.
                let is_integer =
                    |number: f64| number.fract() == 0.0 && number.abs() < 9_223_372_036_854_775_808.0;
                if !number.is_none_or(is_integer) {
                    return Err(FormatError::new("Field optional.timestamp is not an integer"));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:634a8f35b5f16dcf4aaa0822adc0b1964bb786fca12f6831de8ddc45e5986a00";

    fn json(kind: &str, optional: &str) -> String {
        format!(
            r#"{{"critical":{{"type":"{kind}","image":{{"docker-manifest-digest":"{DIGEST}"}},"identity":{{"docker-reference":"quay.io/a:1"}}}}{optional}}}"#
        )
    }

    type Parser = fn(&[u8]) -> Result<Payload, PayloadError>;
    const SIMPLE: (Parser, &str) = (Payload::of_simple_signing, SIMPLE_SIGNING_TYPE);
    const SIGSTORE: (Parser, &str) = (Payload::of_sigstore, SIGSTORE_TYPE);
    const RELEASE: (Parser, &str) = (Payload::of_release, SIMPLE_SIGNING_TYPE);

    #[test]
    fn the_digest_and_the_reference_are_read() {
        for (parse, kind) in [SIMPLE, SIGSTORE, RELEASE] {
            let optional = r#","optional":{"creator":"me","timestamp":1458239713}"#;
            let payload = parse(json(kind, optional).as_bytes()).expect("a payload");
            assert_eq!(payload.manifest.to_string(), DIGEST);
            assert_eq!(payload.docker_reference, "quay.io/a:1");
        }
    }

    #[test]
    fn optional_members_are_those_of_each_program() {
        // The member, and whether simple signing, sigstore and a release accept it.
        for (optional, accepted) in [
            ("", [false, false, true]),
            (r#","optional":null"#, [false, true, true]),
            (r#","optional":{}"#, [true, true, true]),
            (r#","optional":[]"#, [false, false, false]),
            (r#","optional":{"creator":1}"#, [false, false, false]),
            (
                r#","optional":{"creator":null,"timestamp":null}"#,
                [true, true, true],
            ),
            (r#","optional":{"timestamp":1.0}"#, [true, true, false]),
            (r#","optional":{"timestamp":1.5}"#, [false, false, false]),
            (r#","optional":{"timestamp":1e99}"#, [false, false, false]),
            (r#","optional":{"timestamp":"1"}"#, [false, false, false]),
            (r#","optional":{"Creator":1}"#, [true, true, false]),
            (r#","optional":{"new":{"a":[1]}}"#, [true, true, false]),
            (r#","optional":{"new":1e999}"#, [false, false, false]),
            (r#","optional":{"new":1,"new":1}"#, [false, false, false]),
            (r#","optional":{},"optional":{}"#, [false, false, false]),
            (r#","optional":{},"other":{}"#, [false, false, false]),
            (r#","Optional":{}"#, [false, false, false]),
            (r#","optional":{}}{"#, [false, false, false]),
        ] {
            let found = [SIMPLE, SIGSTORE, RELEASE]
                .map(|(parse, kind)| parse(json(kind, optional).as_bytes()).is_ok());
            assert_eq!(found, accepted, "{optional}");
        }
    }

    #[test]
    fn critical_members_must_be_exact() {
        let good = json(SIMPLE_SIGNING_TYPE, r#","optional":{}"#);
        for (from, to, why) in [
            ("atomic", "cosign", "Unrecognized signature type"),
            ("\"type\"", "\"Type\"", "Unknown key `Type`"),
            ("\"type\"", "\"type\":null,\"type\"", "Duplicate key `type`"),
            ("\"type\"", "\"x\":1,\"type\"", "Unknown key `x`"),
            ("sha256:", "sha512:", "invalid docker-manifest-digest value"),
            ("sha256:", "SHA256:", "invalid docker-manifest-digest value"),
            ("\"quay.io/a:1\"", "[]", "`docker-reference`: a string expected"),
            (
                "\"quay.io/a:1\"",
                "\"\\ud800\"",
                "`docker-reference`: a string expected",
            ),
            ("\"docker-reference\"", "\"reference\"", "Unknown key `reference`"),
            (
                "\"docker-reference\":\"quay.io/a:1\"",
                "",
                "Key `docker-reference` missing",
            ),
            ("\"critical\"", "\"Critical\"", "Unknown key `Critical`"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            let error = Payload::of_simple_signing(bad.as_bytes())
                .expect_err(&bad)
                .to_string();
            assert!(error.contains(why), "{bad}: {error}");
        }
        for bad in ["", "null", "[]", "{", "\u{feff}{}"] {
            assert!(Payload::of_simple_signing(bad.as_bytes()).is_err(), "{bad}");
        }
        let empty = good.replace("quay.io/a:1", "");
        assert!(Payload::of_simple_signing(empty.as_bytes()).is_ok());
        assert!(Payload::of_release(empty.as_bytes()).is_err());
    }
}
