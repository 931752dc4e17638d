//! Decides whether the image that a signature names is the image that was asked for.
//!
//! containers/image `signature/policy_reference_match.go`. The image is the name that the user asked for, also when a mirror
//! answered.

use std::fmt;

use super::named_reference::NamedReference;

/// `signedIdentity` of a requirement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SignedIdentity {
    /// The same repository and the same tag or digest.
    MatchExact,
    /// The same, or for an image with a digest the same repository. The default.
    MatchRepoDigestOrExact,
    /// The same repository.
    MatchRepository,
    /// This reference, whatever the image is called.
    ExactReference(NamedReference),
    /// This repository, whatever the image is called.
    ExactRepository(NamedReference),
    /// As [`Self::MatchRepoDigestOrExact`], after `prefix` of the image's repository is replaced.
    RemapIdentity { prefix: String, signed_prefix: String },
}

impl SignedIdentity {
    /// Whether a signature of `signed` is valid for the image. `signed` is as the signature has it.
    pub(super) fn matches(&self, image: &NamedReference, signed: &str) -> bool {
        let Ok(signed) = NamedReference::parse(signed) else {
            return false;
        };
        match self {
            Self::MatchExact => is_same(image, &signed),
            Self::MatchRepoDigestOrExact => is_same_repo_digest_or_exact(image, &signed),
            Self::MatchRepository => image.name() == signed.name(),
            Self::ExactReference(expected) => is_same(expected, &signed),
            Self::ExactRepository(expected) => expected.name() == signed.name(),
            Self::RemapIdentity {
                prefix,
                signed_prefix,
            } => remap(image, prefix, signed_prefix)
                .is_some_and(|image| is_same_repo_digest_or_exact(&image, &signed)),
        }
    }

    /// The value of `type` in a policy.
    fn type_name(&self) -> &'static str {
        match self {
            Self::MatchExact => "matchExact",
            Self::MatchRepoDigestOrExact => "matchRepoDigestOrExact",
            Self::MatchRepository => "matchRepository",
            Self::ExactReference(_) => "exactReference",
            Self::ExactRepository(_) => "exactRepository",
            Self::RemapIdentity { .. } => "remapIdentity",
        }
    }
}

/// `matchExact`, with a value: `` `exactRepository` of `quay.io/a` ``.
impl fmt::Display for SignedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.type_name())?;
        match self {
            Self::ExactReference(expected) | Self::ExactRepository(expected) => write!(f, " of `{expected}`"),
            Self::RemapIdentity {
                prefix,
                signed_prefix,
            } => write!(f, " of `{prefix}` to `{signed_prefix}`"),
            _ => Ok(()),
        }
    }
}

/// A name without tag and digest is no exact reference to an image, so it matches nothing.
fn is_same(image: &NamedReference, signed: &NamedReference) -> bool {
    !image.is_name_only() && !signed.is_name_only() && image == signed
}

fn is_same_repo_digest_or_exact(image: &NamedReference, signed: &NamedReference) -> bool {
    if signed.is_name_only() || image.is_name_only() {
        return false;
    }
    // An image with a digest alone: the caller compares the manifest's digest with the signed one.
    match image.has_tag() {
        true => image == signed,
        false => image.name() == signed.name(),
    }
}

/// The image as the signer names it; nothing if the result is no complete reference.
fn remap(image: &NamedReference, prefix: &str, signed_prefix: &str) -> Option<NamedReference> {
    let rest = image.name().strip_prefix(prefix);
    if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
        return Some(image.clone());
    }
    let text = image.to_string();
    NamedReference::parse_canonical(&format!("{signed_prefix}{}", &text[prefix.len()..]))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::signature::tests::corpus;

    fn is_match(identity: &SignedIdentity, image: &str, signed: &str) -> bool {
        NamedReference::parse(image).is_ok_and(|image| identity.matches(&image, signed))
    }

    /// The rows of one table of containers/image's tests.
    fn rows(table: &str) -> Vec<Vec<Value>> {
        let Some(path) = corpus("expected/policy.json") else {
            return Vec::new();
        };
        let text = std::fs::read_to_string(path).expect("the expected answers");
        let answers: Value = serde_json::from_str(&text).expect("JSON");
        let rows = answers["reference_match"][table].as_array().expect("a table");
        rows.iter()
            .map(|row| row.as_array().expect("a row").clone())
            .collect()
    }

    fn texts(row: &[Value]) -> Vec<&str> {
        row.iter().filter_map(Value::as_str).collect()
    }

    #[test]
    fn exact_and_repository_matches_hold_in_both_directions() {
        for (table, image_identity, fixed) in [
            (
                "exact",
                SignedIdentity::MatchExact,
                SignedIdentity::ExactReference as fn(NamedReference) -> SignedIdentity,
            ),
            (
                "repository",
                SignedIdentity::MatchRepository,
                SignedIdentity::ExactRepository,
            ),
        ] {
            for row in rows(table) {
                let [a, b] = texts(&row)[..] else {
                    panic!("{row:?}")
                };
                let expected = row[2].as_bool();
                for (image, signed) in [(a, b), (b, a)] {
                    let found = is_match(&image_identity, image, signed);
                    assert_eq!(Some(found), expected, "{table} {image} {signed}");
                    // The name of the image does not matter to a fixed reference.
                    let found = NamedReference::parse(image)
                        .is_ok_and(|fixed_to| is_match(&fixed(fixed_to), "example.com/other:1", signed));
                    assert_eq!(Some(found), expected, "fixed {table} {image} {signed}");
                }
            }
        }
    }

    #[test]
    fn a_digest_matches_every_reference_of_its_repository() {
        for row in rows("repo_digest_or_exact") {
            let [image, signed] = texts(&row)[..] else {
                panic!("{row:?}")
            };
            let found = is_match(&SignedIdentity::MatchRepoDigestOrExact, image, signed);
            assert_eq!(Some(found), row[2].as_bool(), "{image} {signed}");
        }
    }

    #[test]
    fn a_prefix_is_replaced_at_the_borders_of_components() {
        for row in rows("remap_prefix") {
            let [image, prefix] = texts(&row)[..] else {
                panic!("{row:?}")
            };
            let image = NamedReference::parse(image).expect("a reference");
            let is_unchanged = remap(&image, prefix, "signed.example.com") == Some(image.clone());
            assert_eq!(Some(!is_unchanged), row[2].as_bool(), "{image} {prefix}");
        }
        for row in rows("remap") {
            let [prefix, signed_prefix, image, expected] = texts(&row)[..] else {
                panic!("{row:?}")
            };
            let image = NamedReference::parse(image).expect("a reference");
            let remapped = remap(&image, prefix, signed_prefix).map(|remapped| remapped.to_string());
            assert_eq!(remapped.unwrap_or_default(), expected, "{image} {prefix}");
        }
        for row in rows("remap_match") {
            let [prefix, signed_prefix, image, signed] = texts(&row)[..] else {
                panic!("{row:?}")
            };
            let identity = SignedIdentity::RemapIdentity {
                prefix: prefix.to_owned(),
                signed_prefix: signed_prefix.to_owned(),
            };
            assert_eq!(
                Some(is_match(&identity, image, signed)),
                row[4].as_bool(),
                "{row:?}"
            );
        }
    }
}
