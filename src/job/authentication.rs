//! Tells whether somebody whom the node trusts vouches for an image's manifest.
//!
//! The store remembers the digest of the blob that a layer was unpacked from, and later pulls of other images reuse the layer
//! by it. If the layer was made from a delta, that digest is only what the manifest states. A manifest of a stranger could
//! name the blob of another image, so that digest is recorded only for manifests that somebody vouches for.

use crate::image_request::{ImageRequest, Requester};
use crate::oci::Reference;

use super::namers::{Namer, Naming};
use super::signature_policy::SignaturePolicy;

/// What is known about the origin of references.
pub(super) struct Authentication<'a> {
    policy: &'a SignaturePolicy,
    is_release_authenticated: bool,
    /// Whether all of them are, because any of them may have named an image.
    are_catalogs_authenticated: bool,
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
            are_catalogs_authenticated: naming.indexes().all(is_authenticated),
        }
    }

    /// Whether the manifest of a resolved image is vouched for: the node's policy verified its signature, or its digest comes
    /// from the version spec, from an authenticated release or from an authenticated catalog.
    pub(super) fn covers(&self, request: &ImageRequest) -> bool {
        // Such an image is resolved only if a signature satisfies the rule.
        if self.policy.needs_signatures(&request.reference) {
            return true;
        }
        let has_digest = request.reference.digest().is_some();
        request.requesters.iter().any(|requester| match requester {
            Requester::ReleaseImage => has_digest || self.is_release_authenticated,
            Requester::OperatorIndex | Requester::Additional => has_digest,
            Requester::Release { .. } => has_digest && self.is_release_authenticated,
            Requester::Operator { .. } => has_digest && self.are_catalogs_authenticated,
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
    fn a_digest_counts_if_its_origin_does() {
        let policy = SignaturePolicy {
            node: None,
            namespaces: Default::default(),
            key_files: Arc::new(NoKeys),
            unknown: None,
        };
        let by_tag = |name: &str| format!("example.com/{name}:1").parse::<Reference>().unwrap();
        let by_digest = |name: &str| by_tag(name).with_digest(Digest::of(name.as_bytes()));
        let (component, operator) = (
            Requester::Release { tag: "etcd".into() },
            Requester::Operator {
                package: "ptp".into(),
            },
        );
        for (release, is_signed, catalog, requester, reference, expected) in [
            (
                by_tag("r"),
                false,
                by_digest("c"),
                Requester::Additional,
                by_digest("a"),
                true,
            ),
            (
                by_digest("r"),
                true,
                by_digest("c"),
                Requester::Additional,
                by_tag("a"),
                false,
            ),
            (
                by_digest("r"),
                false,
                by_tag("c"),
                component.clone(),
                by_digest("a"),
                true,
            ),
            (
                by_tag("r"),
                false,
                by_tag("c"),
                component.clone(),
                by_digest("a"),
                false,
            ),
            (
                by_tag("r"),
                true,
                by_tag("c"),
                component.clone(),
                by_digest("a"),
                true,
            ),
            (
                by_digest("r"),
                false,
                by_digest("c"),
                component,
                by_tag("a"),
                false,
            ),
            (
                by_digest("r"),
                false,
                by_digest("c"),
                operator.clone(),
                by_digest("a"),
                true,
            ),
            (by_digest("r"), true, by_tag("c"), operator, by_digest("a"), false),
            (
                by_tag("r"),
                false,
                by_tag("c"),
                Requester::ReleaseImage,
                by_tag("r"),
                false,
            ),
            (
                by_tag("r"),
                true,
                by_tag("c"),
                Requester::ReleaseImage,
                by_tag("r"),
                true,
            ),
        ] {
            let spec = VersionSpec {
                platform_image: Some(release.clone()),
                operators_indexes: vec![catalog.clone()],
                ..VersionSpec::default()
            };
            let naming = Naming::new(&spec, Excludes::new(&[]).unwrap(), Vec::new());
            let authentication = Authentication::new(&policy, &naming, is_signed);
            let request = ImageRequest::new(reference, requester);
            assert_eq!(
                authentication.covers(&request),
                expected,
                "{request:?} of {release}, {catalog}, {is_signed}"
            );
        }
    }
}
