//! Builds, applies and deletes PinnedImageSets, which protect images from the kubelet's garbage collection.
//!
//! The Machine Config Operator lets CRI-O pin their images (`machineconfiguration.openshift.io/v1`, OpenShift 4.19 and
//! later). A set has at most 500 images, each named by digest, with a domain that contains a dot and at most one path
//! component before the last (openshift/api `machineconfiguration/v1/types_pinnedimageset.go`). The API refuses a whole set
//! for one invalid name, so images with such names are left out and reported.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use super::ClusterError;
use super::api_client::{Api, Body, Effort};
use super::rbac::{DELETE_PINS, PATCH_PINS};
use crate::oci::Reference;

/// The most images of one set.
const SET_LIMIT: usize = 500;

/// The longest name of an image.
const NAME_LIMIT: usize = 447;

/// The most sets, so that a role can name them: 4,000 images are more than a node has.
const SETS: usize = 8;

/// The name of the first set; the others have a number as suffix.
const NAME: &str = "spoke-precache";

/// The label that selects the MachineConfigPool: the one of single nodes.
pub(super) const ROLE: (&str, &str) = ("machineconfiguration.openshift.io/role", "master");

/// The label by which all sets can be deleted together.
const OWNER: (&str, &str) = ("app.kubernetes.io/managed-by", "spoke-precache");

/// How long the API may take to apply all sets, and again to delete unneeded ones.
const APPLY_PATIENCE: Duration = Duration::from_secs(30);

/// The images to pin, divided into sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedImageSets {
    /// References by digest, sorted, each once.
    images: Vec<Reference>,
}

impl PinnedImageSets {
    /// The sets for these references by digest, and the references that no set can contain.
    pub fn of(images: impl IntoIterator<Item = Reference>) -> (Self, Vec<Reference>) {
        let (mut images, mut left_out): (Vec<_>, Vec<_>) = images
            .into_iter()
            .partition(|image| is_pinnable(&image.to_string()));
        images.sort_by_cached_key(Reference::to_string);
        images.dedup();
        left_out.extend(images.drain((SET_LIMIT * SETS).min(images.len())..));
        (Self { images }, left_out)
    }

    /// The names of all sets that any run may create.
    pub fn names() -> impl Iterator<Item = String> {
        (1..=SETS).map(|number| match number {
            1 => NAME.to_owned(),
            _ => format!("{NAME}-{number}"),
        })
    }

    /// The images of all sets.
    pub fn images(&self) -> &[Reference] {
        &self.images
    }

    /// The sets as YAML for `oc apply -f`.
    pub fn to_yaml(&self) -> String {
        let mut text = String::from(
            "# Protects images that were cached for an upgrade from the kubelet's garbage collection, on the nodes of the pool of the\n\
             # label; the Machine Config Operator pulls them on nodes that do not have them. After the upgrade:\n\
             #   oc delete -f THIS-FILE\n",
        );
        for (name, images) in self.sets() {
            // Writing to a String cannot fail. These names contain no special characters of YAML.
            let _ = write!(
                text,
                "---\napiVersion: machineconfiguration.openshift.io/v1\nkind: PinnedImageSet\nmetadata:\n  name: {name}\n  \
                 labels:\n    {}: {}\n    {}: {}\nspec:\n  pinnedImages:\n",
                OWNER.0, OWNER.1, ROLE.0, ROLE.1
            );
            for image in images {
                let _ = writeln!(text, "  - name: \"{image}\"");
            }
        }
        text
    }

    /// Creates the sets or replaces those of an earlier run.
    pub async fn apply(&self, api: &Api) -> Result<(), ClusterError> {
        let effort = Effort::patient(APPLY_PATIENCE);
        for (name, images) in self.sets() {
            let images: Vec<_> = images
                .iter()
                .map(|name| json!({"name": name.to_string()}))
                .collect();
            let set = json!({
                "apiVersion": "machineconfiguration.openshift.io/v1",
                "kind": "PinnedImageSet",
                "metadata": {"name": name, "labels": {OWNER.0: OWNER.1, ROLE.0: ROLE.1}},
                "spec": {"pinnedImages": images},
            });
            let body = Body::new("application/apply-patch+yaml", &set);
            api.send(&PATCH_PINS, &name, &body, effort).await?;
        }
        Ok(())
    }

    /// Deletes the sets that an earlier run needed and this one does not, or their images would stay pinned for ever. Tries
    /// every name, because an earlier run may have been killed between two deletions.
    pub async fn delete_others(&self, api: &Api) -> Result<(), ClusterError> {
        let effort = Effort::patient(APPLY_PATIENCE);
        for name in Self::names().skip(self.sets().count()) {
            if api.delete(&DELETE_PINS, &name, effort).await? {
                tracing::info!("deleted the PinnedImageSet `{name}` of an earlier run");
            }
        }
        Ok(())
    }

    fn sets(&self) -> impl Iterator<Item = (String, &[Reference])> {
        Self::names().zip(self.images.chunks(SET_LIMIT))
    }
}

/// Whether the API accepts the name: `host[:port][/namespace]/name@sha256:…`.
fn is_pinnable(image: &str) -> bool {
    let Some((name, digest)) = image.split_once("@sha256:") else {
        return false;
    };
    let Some((domain, path)) = name.split_once('/') else {
        return false;
    };
    let (host, port) = domain.split_once(':').unwrap_or((domain, "443"));
    let (namespace, last) = path.split_once('/').unwrap_or(("", path));
    let all = |text: &str, more: &str| {
        text.chars()
            .all(|letter| letter.is_ascii_alphanumeric() || more.contains(letter))
    };
    let is_hex = |letter: u8| letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter);
    image.len() <= NAME_LIMIT
        && digest.len() == 64
        && digest.bytes().all(is_hex)
        && host.contains('.')
        && host.split('.').all(|label| !label.is_empty() && all(label, "-"))
        && (2..=5).contains(&port.len())
        && port.bytes().all(|digit| digit.is_ascii_digit())
        && namespace.len() <= 61
        && all(namespace, "-_")
        && all(last, "-_.")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_digest(name: &str) -> String {
        format!("{name}@sha256:{}", "0a".repeat(32))
    }

    fn reference(name: &str) -> Reference {
        by_digest(name).parse().expect("a reference")
    }

    #[test]
    fn names_that_the_api_would_refuse_are_left_out() {
        for (name, is_accepted) in [
            ("quay.io/openshift-release-dev/ocp-release", true),
            ("registry.example.com:5000/image", true),
            ("127.0.0.1:5000/a/b.c", true),
            ("quay.io/a/b/c", false),
            ("quay.io/a.b/c", false),
            ("localhost/a", false),
            ("localhost:5000/a", false),
            ("host.example:500000/a", false),
        ] {
            assert_eq!(is_pinnable(&by_digest(name)), is_accepted, "{name}");
        }
        for name in [
            "quay.io/a:v1",
            "quay.io/a",
            "quay.io/a@sha256:00",
            &by_digest("quay.io/a\"\nb"),
            &by_digest(&format!("quay.io/{}", "a".repeat(400))),
        ] {
            assert!(!is_pinnable(name), "{name}");
        }
    }

    #[test]
    fn more_images_than_the_limit_of_a_set_need_several_sets() {
        let images = (0..1001).map(|number| reference(&format!("quay.io/a/b{number}")));
        let (sets, left_out) = PinnedImageSets::of(images.chain([reference("quay.io/a/b0")]));
        assert_eq!((sets.images().len(), left_out.len()), (1001, 0));
        let sizes: Vec<_> = sets.sets().map(|(name, images)| (name, images.len())).collect();
        let name = |name: &str| name.to_owned();
        assert_eq!(
            sizes,
            [
                (name("spoke-precache"), 500),
                (name("spoke-precache-2"), 500),
                (name("spoke-precache-3"), 1)
            ]
        );
        assert!(PinnedImageSets::of([]).0.sets().next().is_none());
        let images = (0..4002).map(|number| reference(&format!("quay.io/a/b{number}")));
        let (sets, left_out) = PinnedImageSets::of(images);
        let counts = (sets.images().len(), sets.sets().count(), left_out.len());
        assert_eq!(counts, (4000, 8, 2));
    }

    #[test]
    fn the_yaml_is_a_valid_set() {
        let (sets, _) = PinnedImageSets::of([reference("quay.io/a/b")]);
        let digest = "0a".repeat(32);
        assert_eq!(
            sets.to_yaml(),
            format!(
                "# Protects images that were cached for an upgrade from the kubelet's garbage collection, on the nodes of the pool of the\n\
                 # label; the Machine Config Operator pulls them on nodes that do not have them. After the upgrade:\n\
                 #   oc delete -f THIS-FILE\n\
                 ---\n\
                 apiVersion: machineconfiguration.openshift.io/v1\n\
                 kind: PinnedImageSet\n\
                 metadata:\n  \
                   name: spoke-precache\n  \
                   labels:\n    \
                     app.kubernetes.io/managed-by: spoke-precache\n    \
                     machineconfiguration.openshift.io/role: master\n\
                 spec:\n  \
                   pinnedImages:\n  \
                   - name: \"quay.io/a/b@sha256:{digest}\"\n"
            )
        );
    }
}
