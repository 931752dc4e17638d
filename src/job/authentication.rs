//! Decides whether an image's manifest is authenticated.
//!
//! The store remembers the digest of the blob that a layer was unpacked from, and later pulls of other images reuse the layer
//! by it. If the layer was made from a delta, that digest is only what the manifest states. Any other author could
//! name the blob of another image there, so the digest is recorded only for images of an authenticated release and for images
//! with a verified signature.

use crate::image_request::{ImageRequest, Requester};
use crate::oci::Reference;

use super::namers::{Namer, Naming};
use super::signature_policy::SignaturePolicy;

/// What is known about the origin of references.
pub(super) struct Authentication<'a> {
    policy: &'a SignaturePolicy,
    is_release_authenticated: bool,
}

impl<'a> Authentication<'a> {
    /// `is_release_signed` is whether the signature of the release was verified.
    pub(super) fn new(policy: &'a SignaturePolicy, naming: &Naming, is_release_signed: bool) -> Self {
        let is_authenticated = |it: &Reference| it.digest().is_some() || policy.needs_signatures(it);
        let mut releases = naming.namers.iter().filter_map(|namer| match namer {
            Namer::Release(release) => Some(release),
            Namer::Index(_) => None,
        });
        Self {
            policy,
            is_release_authenticated: is_release_signed || releases.all(is_authenticated),
        }
    }

    /// Whether the manifest of a resolved image is authenticated: the node's policy verified its signature, or it belongs to
    /// a release that is given by digest or whose signature was verified. A digest of any other image only says that the
    /// manifest is the requested one, not that its author is trusted.
    pub(super) fn covers(&self, request: &ImageRequest) -> bool {
        // Such an image is resolved only if a signature satisfies the rule.
        if self.policy.needs_signatures(&request.reference) {
            return true;
        }
        let has_digest = request.reference.digest().is_some();
        let requesters = &request.requesters;
        self.is_release_authenticated
            && requesters.iter().any(|requester| match requester {
                Requester::ReleaseImage => true,
                Requester::Release { .. } => has_digest,
                Requester::OperatorIndex | Requester::Additional | Requester::Operator { .. } => false,
            })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;

    use super::*;
    use crate::oci::Digest;
    use crate::signature::KeyFiles;
    use crate::spec::{Excludes, VersionSpec};

    #[derive(Debug)]
    struct NoKeys;

    impl KeyFiles for NoKeys {
        fn read(&self, _: &std::path::Path) -> std::io::Result<Vec<u8>> {
            Err(std::io::ErrorKind::NotFound.into())
        }
    }

    #[test]
    fn only_images_of_an_authenticated_release_count_without_a_signature() {
        let policy = SignaturePolicy {
            node: None,
            namespaces: Default::default(),
            key_files: Arc::new(NoKeys),
            unknown: None,
        };
        let by_tag = |name: &str| format!("example.com/{name}:1").parse::<Reference>().unwrap();
        let by_digest = |name: &str| by_tag(name).with_digest(Digest::of(name.as_bytes()));
        let component = Requester::Release { tag: "etcd".into() };
        let operator = Requester::Operator {
            package: "ptp".into(),
        };
        let (release, index, additional) = (
            Requester::ReleaseImage,
            Requester::OperatorIndex,
            Requester::Additional,
        );
        let (given_by_tag, given_by_digest) = (by_tag("r"), by_digest("r"));
        for (given, is_signed, requester, reference, expected) in [
            (&given_by_tag, false, &release, &given_by_tag, false),
            (&given_by_tag, true, &release, &given_by_tag, true),
            (&given_by_digest, false, &release, &given_by_digest, true),
            (&given_by_tag, false, &component, &by_digest("a"), false),
            (&given_by_tag, true, &component, &by_digest("a"), true),
            (&given_by_digest, false, &component, &by_digest("a"), true),
            (&given_by_digest, false, &component, &by_tag("a"), false),
            (&given_by_digest, true, &additional, &by_digest("a"), false),
            (&given_by_digest, true, &index, &by_digest("c"), false),
            (&given_by_digest, true, &operator, &by_digest("a"), false),
        ] {
            let spec = VersionSpec {
                platform_image: Some(given.clone()),
                operators_indexes: vec![by_digest("c")],
                ..VersionSpec::default()
            };
            let naming = Naming::new(&spec, Excludes::new(&[]).unwrap(), Vec::new());
            let authentication = Authentication::new(&policy, &naming, is_signed);
            let request = ImageRequest::new(reference.clone(), requester.clone());
            assert_eq!(
                authentication.covers(&request),
                expected,
                "{request:?} of {given}, {is_signed}"
            );
        }
    }
}
