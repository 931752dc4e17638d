//! Determines which operating system images of a release an update takes from the store, and which it downloads again.
//!
//! The machine-config daemon of the new release rebases the node, and the release decides where it takes the image from
//! (machine-config-operator `pkg/daemon/update.go`: `updateLayeredOS`):
//!
//! | release | from the store |
//! |---|---|
//! | 4.12 to 4.18 | never; 4.17 and 4.18 with the TechPreview gate `PinnedImages` |
//! | 4.19 to 4.22 | if a pool of the node has a PinnedImageSet and podman finds the image by its name |
//! | 4.23 and later | if podman finds the image by its name |
//!
//! `machine-os-content` and the extensions are pulled by `podman pull`, which reuses what is in the store.

use crate::image_request::Requester;
use crate::plan::{ImageAction, Plan, PlannedImage};
use crate::release::OsTag;
use crate::report::Size;

/// Where an update takes the operating system from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Registry,
    /// The store if the image is pinned, otherwise the registry.
    Pinned,
    Store,
}

/// The operating system images of a release that a plan contains; a node runs one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsImages {
    pub(super) version: String,
    /// Each tag and the compressed size of its layers.
    pub(super) images: Vec<(String, u64)>,
}

impl OsImages {
    /// The operating system images of `plan` whose size is known.
    pub(super) fn of(
        version: &str,
        plan: &Plan,
        bytes: impl Fn(&PlannedImage) -> Option<u64>,
    ) -> Option<Self> {
        let wanted = plan.images.iter();
        let wanted = wanted.filter(|image| !matches!(image.action, ImageAction::Failed(_)));
        let images: Vec<_> = wanted
            .filter_map(|image| Some((tag(&image.requesters)?.to_owned(), bytes(image)?)))
            .collect();
        let version = version.to_owned();
        (!images.is_empty()).then_some(Self { version, images })
    }

    /// Where an update takes them from; `None` if the release is not known here.
    pub(super) fn origin(&self) -> Option<Origin> {
        origin(&self.version)
    }

    /// Explains that an update downloads the operating system again. `None` if it uses the store.
    pub fn note(&self, is_pinned: bool) -> Option<String> {
        let (never, condition, pin) = match self.origin()? {
            Origin::Registry => ("never ", ": the update downloads it again", ""),
            Origin::Pinned if !is_pinned => (
                "",
                " only if it is pinned in the cluster: otherwise the update downloads it again",
                "pin the images with `--pin api`, or apply what `--pin FILE` writes before the update; or ",
            ),
            Origin::Pinned | Origin::Store => return None,
        };
        let images = self.images.iter();
        let images: Vec<_> = images
            .map(|(tag, bytes)| format!("`{tag}` ({})", Size(*bytes)))
            .collect();
        let excludes = self.images.iter();
        let excludes: Vec<_> = excludes
            .map(|(tag, _)| format!("`--exclude '^\"{tag}\\$'`"))
            .collect();
        Some(format!(
            "release {} {never}takes the operating system's image {} from the store{condition}\nhint: {pin}leave it out with {}",
            self.version,
            images.join(", "),
            excludes.join(" ")
        ))
    }
}

/// The payload's tag of an image with these requesters, if it is an operating system.
pub(super) fn tag(requesters: &[Requester]) -> Option<&str> {
    let tags = requesters.iter().filter_map(|requester| match requester {
        Requester::Release { tag } => Some(tag.as_str()),
        _ => None,
    });
    tags.into_iter().find(|tag| OsTag::of(tag) == Some(OsTag::System))
}

/// Whether an update to release `version` takes the image of this tag from the store although no container uses it, or why not.
/// `None` for a tag without an operating system or its extensions.
pub(super) fn need(tag: &str, version: &str, is_pinned: bool) -> Option<Result<(), String>> {
    Some(match (OsTag::of(tag)?, origin(version)) {
        // By `podman pull`, which leaves no container. Extensions only on nodes that have some, or another kernel.
        (OsTag::MachineOsContent | OsTag::Extensions, _) => Ok(()),
        (OsTag::System, Some(Origin::Registry)) => Err(format!(
            "release {version} never takes the operating system from the store"
        )),
        (OsTag::System, Some(Origin::Pinned)) if !is_pinned => Err(format!(
            "release {version} takes the operating system from the store only if a pool of the node has a PinnedImageSet, \
             which `--pin` makes"
        )),
        (OsTag::System, Some(Origin::Pinned | Origin::Store) | None) => Ok(()),
    })
}

/// `None` for a version that is not an OpenShift version, such as that of a CI build.
fn origin(version: &str) -> Option<Origin> {
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    Some(match (numbers.next()??, numbers.next()??) {
        (..=3, _) => return None,
        (4, ..=18) => Origin::Registry,
        (4, 19..=22) => Origin::Pinned,
        _ => Origin::Store,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_an_operating_system_that_the_update_takes_from_the_store_is_needed() {
        for (tag, version, is_pinned, is_needed) in [
            ("etcd", "4.16.8", false, None),
            ("rhel-coreos-tools", "nightly", false, Some(true)),
            ("rhel-coreos", "4.16.8", true, Some(false)),
            ("rhel-coreos-10", "4.19.0", false, Some(false)),
            ("rhel-coreos-10", "4.19.0", true, Some(true)),
            ("stream-coreos", "4.23.0", false, Some(true)),
            ("rhel-coreos-extensions", "4.16.8", false, Some(true)),
            ("machine-os-content", "4.12.0", false, Some(true)),
        ] {
            let need = need(tag, version, is_pinned).map(|need| need.is_ok());
            assert_eq!(need, is_needed, "{tag} {version}");
        }
    }

    fn note(version: &str, is_pinned: bool) -> Option<String> {
        let images = [("rhel-coreos", 1 << 30), ("rhel-coreos-10", 1 << 29)];
        let images = images.map(|(tag, bytes)| (tag.to_owned(), bytes)).to_vec();
        let version = version.to_owned();
        OsImages { version, images }.note(is_pinned)
    }

    #[test]
    fn the_release_decides_whether_the_os_is_downloaded_again() {
        for (version, unpinned, pinned) in [
            ("4.12.0", true, true),
            ("4.18.23", true, true),
            ("4.19.0-rc.1", true, false),
            ("4.22.1", true, false),
            ("4.23.0", false, false),
            ("5.0.0", false, false),
            ("0.0.1-2024-05-06", false, false),
            ("nightly", false, false),
        ] {
            let notes = [false, true].map(|is_pinned| note(version, is_pinned).is_some());
            assert_eq!(notes, [unpinned, pinned], "{version}");
        }
        assert_eq!(
            note("4.16.8", false).as_deref(),
            Some(
                "release 4.16.8 never takes the operating system's image `rhel-coreos` (1.0 GiB), `rhel-coreos-10` (512.0 MiB) \
                 from the store: the update downloads it again\nhint: leave it out with \
                 `--exclude '^\"rhel-coreos\\$'` `--exclude '^\"rhel-coreos-10\\$'`"
            )
        );
    }
}
