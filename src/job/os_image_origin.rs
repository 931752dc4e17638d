//! States where the update takes each operating system in the store from, by the sets of the node's pools.

use super::os_images::{Origin, OsImages};
use crate::cluster::PoolPins;
use crate::report::{OsImageOrigin, OsImageReport};

impl OsImages {
    /// Whether it depends on PinnedImageSets where the update takes the operating system from.
    pub fn depend_on_pins(&self) -> bool {
        self.origin() == Some(Origin::Pinned)
    }

    /// Whether the release can take the operating system from the store.
    pub(super) fn can_be_used(&self) -> bool {
        matches!(self.origin(), Some(Origin::Pinned | Origin::Store))
    }

    /// Where the update takes each image from. `pins` is why they are unknown, if they are; `has_name` is whether the record of
    /// the image of a tag has its name by digest.
    pub(super) fn origins(
        &self,
        pins: Result<&PoolPins, &str>,
        has_name: impl Fn(&str) -> bool,
    ) -> Vec<OsImageReport> {
        let Some(by_version) = self.origin() else {
            return Vec::new();
        };
        let report = |(tag, bytes): &(String, u64)| {
            let (origin, message) = match self.by_release(by_version, pins) {
                // podman 4.3 finds an image only by a name of its record, podman 5.4 by a digest in the repository too.
                (OsImageOrigin::Store, _) if !has_name(tag) => (
                    OsImageOrigin::Registry,
                    "the update may download it again: the store has it only under other names, by which some versions of \
                     podman do not find it\nhint: `run` adds the name of the \
                     release"
                        .to_owned(),
                ),
                origin => origin,
            };
            OsImageReport {
                tag: tag.clone(),
                origin,
                bytes: *bytes,
                message,
            }
        };
        self.images.iter().map(report).collect()
    }

    /// Where the update takes an image from that the store has by its name.
    fn by_release(&self, by_version: Origin, pins: Result<&PoolPins, &str>) -> (OsImageOrigin, String) {
        let from_store = "the update takes it from the store".to_owned();
        match (by_version, pins) {
            (Origin::Store, _) => (OsImageOrigin::Store, from_store),
            (Origin::Registry, _) => (
                OsImageOrigin::Registry,
                format!(
                    "release {} never takes it from the store: the update downloads it again",
                    self.version
                ),
            ),
            (Origin::Pinned, Ok(pins)) if !pins.sets.is_empty() => (
                OsImageOrigin::Store,
                format!(
                    "{from_store}: pool `{}` has PinnedImageSets",
                    pins.pools.join("`, `")
                ),
            ),
            (Origin::Pinned, Ok(pins)) => (
                OsImageOrigin::Registry,
                format!(
                    "the update downloads it again: {} no PinnedImageSet\nhint: pin the images with `--pin api`, or apply what \
                     `--pin FILE` writes",
                    match pins.pools.as_slice() {
                        [] => "no pool has this node, so it has".to_owned(),
                        pools => format!("pool `{}` has", pools.join("`, `")),
                    }
                ),
            ),
            (Origin::Pinned, Err(why)) => (
                OsImageOrigin::Unknown,
                format!(
                    "the update takes it from the store only if a pool of this node has a PinnedImageSet, which is unknown: {why}"
                ),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_and_a_set_of_the_pool_decide_where_the_os_is_taken_from() {
        use OsImageOrigin::{Registry, Store, Unknown};
        let pool = PoolPins {
            pools: vec!["master".to_owned()],
            ..PoolPins::default()
        };
        let with_set = PoolPins {
            sets: vec!["any".to_owned()],
            ..pool.clone()
        };
        for (version, expected) in [
            ("4.18.3", Some([Registry; 3])),
            ("4.19.0", Some([Unknown, Registry, Store])),
            ("4.22.9", Some([Unknown, Registry, Store])),
            ("4.23.0", Some([Store; 3])),
            ("nightly", None),
        ] {
            let images = OsImages {
                version: version.to_owned(),
                images: vec![("rhel-coreos".to_owned(), 1)],
            };
            let origins =
                [Err("no API"), Ok(&pool), Ok(&with_set)].map(|pins| images.origins(pins, |_| true));
            let found = origins.each_ref().map(|it| it.first().map(|image| image.origin));
            assert_eq!(found, expected.map_or([None; 3], |it| it.map(Some)), "{version}");
            let unnamed = images.origins(Ok(&with_set), |_| false);
            assert!(unnamed.iter().all(|image| image.origin == Registry), "{version}");
        }
    }
}
