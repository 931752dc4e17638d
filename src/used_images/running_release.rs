//! Finds the release that runs here: the one that the ClusterVersion names, or the one whose images the containers have.

use std::collections::BTreeSet;

use super::image_identity::ImageIdentity;
use super::image_use::ImageUse;
use super::refusal::Refusal;
use crate::cluster_version::ClusterVersion;
use crate::oci::Reference;
use crate::release::Payload;
use crate::spec::shown;

/// A release whose release image is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredRelease {
    /// The release image.
    pub image: ImageIdentity,
    /// Its payload.
    pub payload: Payload,
}

/// The release that runs here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRelease<'r>(&'r StoredRelease);

impl<'r> RunningRelease<'r> {
    /// Finds it among the release images in the store. `version` is `None` if the cluster's API did not
    /// return it.
    ///
    /// The containers have to agree with the result: three quarters of the images of any release that they use must be of this
    /// one. Releases share few images, so a release that does not run here has far fewer.
    pub fn find(
        releases: &'r [StoredRelease],
        version: Option<&ClusterVersion>,
        uses: &[ImageUse],
    ) -> Result<Self, Refusal> {
        if let Some(update) = version.and_then(ClusterVersion::partial) {
            return Err(Refusal::Updating {
                to: shown(&update.image),
            });
        }
        let containers = uses.iter().filter(|it| it.is_container());
        let images: BTreeSet<&ImageIdentity> = containers.map(|it| &it.image).collect();
        let counts: Vec<usize> = releases.iter().map(|it| it.count(&images)).collect();
        let running = match version {
            Some(version) => completed(releases, version)?,
            None => most_used(releases, &counts)?,
        };
        let count = releases.iter().zip(&counts).find(|(it, _)| *it == running);
        let count = count.map_or(0, |(_, count)| *count);
        let of_any = images
            .iter()
            .filter(|image| releases.iter().any(|it| it.has(image)));
        let of_any = of_any.count();
        let version = &running.payload.version;
        if count == 0 {
            return Err(unknown(format!("no container has an image of {version}")));
        }
        if count * 4 < of_any * 3 {
            return Err(unknown(format!(
                "of {of_any} images of releases that containers have, {count} are of {version}, fewer than three quarters"
            )));
        }
        // Without the API, this is the sign of an update that has just begun.
        let operator = uses.iter().filter(|it| it.is_version_operator());
        let of_other = operator.flat_map(|it| {
            releases
                .iter()
                .find(|other| other.image == it.image && *other != running)
        });
        match of_other.into_iter().next() {
            Some(other) => Err(Refusal::Updating {
                to: shown(&other.payload.version),
            }),
            None => Ok(Self(running)),
        }
    }

    /// Its payload.
    pub fn payload(&self) -> &'r Payload {
        &self.0.payload
    }

    /// Its release image.
    pub fn image(&self) -> &'r ImageIdentity {
        &self.0.image
    }
}

impl StoredRelease {
    fn has(&self, image: &ImageIdentity) -> bool {
        self.payload
            .tags
            .iter()
            .any(|tag| image.is_named_by(&tag.reference))
    }

    fn count(&self, images: &BTreeSet<&ImageIdentity>) -> usize {
        images.iter().filter(|image| self.has(image)).count()
    }
}

fn completed<'r>(
    releases: &'r [StoredRelease],
    version: &ClusterVersion,
) -> Result<&'r StoredRelease, Refusal> {
    let completed = version.completed();
    let completed =
        completed.ok_or_else(|| unknown("the ClusterVersion has no completed release".to_owned()))?;
    let reference: Reference = completed
        .image
        .parse()
        .map_err(|error| unknown(format!("the ClusterVersion's completed release: {error}")))?;
    let found = releases
        .iter()
        .find(|release| release.image.is_named_by(&reference));
    found.ok_or_else(|| unknown(format!("its release image `{reference}` is not in the store")))
}

fn most_used<'r>(releases: &'r [StoredRelease], counts: &[usize]) -> Result<&'r StoredRelease, Refusal> {
    let most = counts.iter().copied().max().unwrap_or_default();
    if most == 0 && releases.len() > 1 {
        return Err(unknown(
            "no container has an image of a release in the store".to_owned(),
        ));
    }
    let mut first = releases.iter().zip(counts).filter(|(_, count)| **count == most);
    match (first.next(), first.next()) {
        (None, _) => Err(unknown(
            "there is no release image in the store, and no ClusterVersion from the cluster's API".to_owned(),
        )),
        (Some((one, _)), Some((other, _))) if one.payload.tags != other.payload.tags => {
            Err(unknown(format!(
                "{} and {} match the containers equally",
                one.payload.version, other.payload.version
            )))
        }
        (Some((one, _)), _) => Ok(one),
    }
}

fn unknown(why: String) -> Refusal {
    Refusal::UnknownRelease { why }
}
