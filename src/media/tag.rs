//! Decides in which repositories of a medium a tag is looked for.

use crate::oci::Digest;

/// Where oc-mirror stores release images, whatever their name is (`releaseImagePathComponents` and
/// `releaseComponentPathComponents` of its `internal/pkg/release/const.go`).
const OC_MIRROR_RELEASES: [&str; 2] = ["openshift/release-images", "openshift/release"];

/// The names under which a copy of the repository may be stored: with and without its host. What belongs to one digest may
/// also be where oc-mirror stores releases.
pub(super) fn repository_names<'a>(repository: &'a str, tag: &str) -> Vec<&'a str> {
    let path = repository.split_once('/').map(|(_, path)| path);
    let releases = match names_digest(tag) {
        true => &OC_MIRROR_RELEASES[..],
        false => &[],
    };
    let names = [Some(repository), path];
    names
        .into_iter()
        .flatten()
        .chain(releases.iter().copied())
        .collect()
}

/// Whether the tag contains a digest, as those of sigstore attachments and of referrers do: `sha256-<hex>`, `sha256-<hex>.sig`.
/// Then it means the same in every repository.
pub(super) fn names_digest(tag: &str) -> bool {
    let hex = tag.strip_prefix("sha256-").and_then(|rest| rest.get(..64));
    hex.is_some_and(|hex| Digest::from_hex(hex).is_ok())
}
