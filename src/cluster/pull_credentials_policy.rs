//! Warns if the kubelet does not let pods use images that it did not pull itself (KEP-2535; on by default since Kubernetes
//! 1.35).
//!
//! The kubelet keeps a record of each image that it pulled, with the credentials. A pre-cached image has no such record; the
//! kubelet calls it "preloaded". If the policy requires verified credentials for such an image, the kubelet pulls it again
//! before it starts a pod: the layers are not downloaded again, but the registry must respond, and during an upgrade it may
//! be down
//! (kubernetes `pkg/kubelet/images/pullmanager`: `MustAttemptImagePull`, `NeverVerifyAllowlistedImages`).
//!
//! | policy | a preloaded image |
//! |---|---|
//! | `NeverVerify`, `NeverVerifyPreloadedImages` (the default) | is used |
//! | `NeverVerifyAllowlistedImages` | is used if its repository is in `preloadedImagesVerificationAllowlist` |
//! | `AlwaysVerify` | is pulled again, with credentials or without |

use serde::Deserialize;

use crate::oci::Reference;
use crate::report::Count;

/// How many images a warning names.
const NAMED: usize = 3;

/// The settings of the kubelet's configuration. Before Kubernetes 1.33 there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PullVerification {
    image_pull_credentials_verification_policy: String,
    preloaded_images_verification_allowlist: Option<Vec<String>>,
}

impl PullVerification {
    /// Warns about the images that pods can use only while the registry is reachable.
    pub fn warning(&self, images: &[Reference]) -> Option<String> {
        let policy = &self.image_pull_credentials_verification_policy;
        let (affected, hint): (Vec<_>, _) = match policy.as_str() {
            "AlwaysVerify" => (
                images.iter().collect(),
                "with `NeverVerifyPreloadedImages`, the default, the kubelet uses cached images without a registry",
            ),
            "NeverVerifyAllowlistedImages" => (
                images.iter().filter(|image| !self.allows(image)).collect(),
                "add their repositories to `preloadedImagesVerificationAllowlist`, or set the policy to \
                 `NeverVerifyPreloadedImages`",
            ),
            _ => return None,
        };
        let names: Vec<_> = affected
            .iter()
            .take(NAMED)
            .map(|image| format!("`{image}`"))
            .collect();
        let more = match affected.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        (!affected.is_empty()).then(|| {
            format!(
                "the kubelet's `imagePullCredentialsVerificationPolicy` is `{policy}`: pods start from {} of {} only while \
                 the registry is reachable: {}{more}\nhint: {hint}",
                affected.len(),
                Count(images.len(), "cached image"),
                names.join(", ")
            )
        })
    }

    /// Replaces what a later file has.
    pub(super) fn override_with(&mut self, later: Self) {
        if !later.image_pull_credentials_verification_policy.is_empty() {
            self.image_pull_credentials_verification_policy =
                later.image_pull_credentials_verification_policy;
        }
        if later.preloaded_images_verification_allowlist.is_some() {
            self.preloaded_images_verification_allowlist = later.preloaded_images_verification_allowlist;
        }
    }

    /// Whether a pattern matches: a repository, or a prefix that ends with `/*`.
    fn allows(&self, image: &Reference) -> bool {
        let repository = image.repository();
        let mut patterns = self.preloaded_images_verification_allowlist.iter().flatten();
        patterns.any(|pattern| match pattern.strip_suffix('*') {
            Some(prefix) => repository.starts_with(prefix),
            None => repository == *pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn warning(settings: &str) -> Option<String> {
        let images = ["quay.io/a/b:1", "quay.io/a/c:1", "quay.io/ab:1", "docker.io/d:1"];
        let images = images.map(|image| image.parse().unwrap());
        let settings: PullVerification = serde_json::from_str(settings).unwrap();
        settings.warning(&images)
    }

    #[test]
    fn policies_that_allow_preloaded_images_need_no_warning() {
        for settings in [
            "{}",
            r#"{"imagePullCredentialsVerificationPolicy": "NeverVerify"}"#,
            r#"{"imagePullCredentialsVerificationPolicy": "NeverVerifyPreloadedImages"}"#,
            r#"{"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
                "preloadedImagesVerificationAllowlist": ["quay.io/*", "docker.io/library/d"]}"#,
        ] {
            assert_eq!(warning(settings), None, "{settings}");
        }
    }

    #[test]
    fn a_policy_that_pulls_preloaded_images_again_is_a_warning_with_the_images() {
        let always = warning(r#"{"imagePullCredentialsVerificationPolicy": "AlwaysVerify"}"#).unwrap();
        assert!(always.contains("`AlwaysVerify`"), "{always}");
        let expected = "4 of 4 cached images only while the registry is reachable: `quay.io/a/b:1`, `quay.io/a/c:1`, `quay.io/ab:1` and 1 more";
        assert!(always.contains(expected), "{always}");
        let listed = r#"{"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": ["quay.io/a/*", "docker.io/library/d"]}"#;
        let listed = warning(listed).unwrap();
        assert!(
            listed.contains("1 of 4 cached images only while the registry is reachable: `quay.io/ab:1`\n"),
            "{listed}"
        );
        let none = r#"{"imagePullCredentialsVerificationPolicy": "NeverVerifyAllowlistedImages",
            "preloadedImagesVerificationAllowlist": null}"#;
        assert!(warning(none).unwrap().contains("4 of 4"));
    }
}
