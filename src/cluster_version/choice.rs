//! Chooses the release image that a ClusterVersion asks for, by the rules of the cluster-version operator.
//!
//! ```text
//! desiredUpdate.image → the version in availableUpdates → status.desired → the version in conditionalUpdates → an error
//! no desiredUpdate    → status.desired, if the update to it is not completed                              → nothing
//! ```
//!
//! The operator itself takes a version only from `availableUpdates` (`findUpdateFromConfig`); the managed-upgrade operator and
//! people take it from `conditionalUpdates` and then set the image. Such an update has a warning that names its risks.

use std::collections::HashSet;
use std::fmt;

use super::semantic_version::SemanticVersion;
use super::{ClusterVersion, ConditionalUpdate, DesiredUpdate, MULTI, Release, shown};
use crate::oci::{Reference, ReferenceError};

/// The most versions or risks in a message; a cluster has been seen with 69 conditional updates.
const NAMED: usize = 12;

/// What a ClusterVersion asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// There is no desired update.
    NothingRequested,
    /// An update.
    Update(ChosenUpdate),
}

/// The chosen release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenUpdate {
    /// The release image.
    pub image: Reference,
    /// Its version, if it is known.
    pub version: Option<String>,
    /// Where it comes from.
    pub offer: Offer,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Where the chosen release comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The image is requested by name.
    Image,
    /// A recommended update.
    Available,
    /// An update with known risks.
    Conditional,
    /// The release that the operator applies or has applied. A node may still miss its images.
    AlreadyDesired,
}

/// The versions on offer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offers {
    /// Recommended.
    pub available: Vec<String>,
    /// With known risks that may apply.
    pub conditional: Vec<String>,
}

/// Why no image can be chosen; the first two and the fourth have the operator's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// Not a version.
    #[error(
        "the desired version `{}` must be a semantic version (1.2.3[-...])",
        shown(version)
    )]
    NotSemantic {
        /// The text.
        version: String,
    },
    /// The version is not on offer.
    #[error(
        "the desired version `{}` is not on offer: when image is empty the update must be an available update; {offers}\n\
         hint: set the image of the release too, or name it with `--platform-image`",
        shown(version)
    )]
    NotOffered {
        /// The version.
        version: String,
        /// The others.
        offers: Offers,
    },
    /// Two payloads, for example of two architectures.
    #[error(
        "the desired version `{}` has several payloads: there are multiple possible payloads for this version, specify the \
         exact image: {}",
        shown(version),
        listed(images)
    )]
    SeveralPayloads {
        /// The version.
        version: String,
        /// The images.
        images: Vec<String>,
    },
    /// Not an image reference.
    #[error("the release image: {0}")]
    Image(#[from] ReferenceError),
}

impl ClusterVersion {
    /// Chooses the image of `spec.desiredUpdate`, else that of a running update: without a desired update the operator
    /// continues with the release that it is at (`sync`).
    pub fn choose(&self) -> Result<Choice, ChoiceError> {
        let choice = match &self.spec.desired_update {
            Some(update) => self.choose_update(update)?,
            None => Choice::NothingRequested,
        };
        match (choice, self.unfinished()) {
            (Choice::NothingRequested, Some(release)) => {
                self.chosen(release, Offer::AlreadyDesired).map(Choice::Update)
            }
            (choice, _) => Ok(choice),
        }
    }

    /// The release of an update that has begun and is not completed. The first installation is no update, nor is the return
    /// to the completed release.
    fn unfinished(&self) -> Option<&Release> {
        let desired = &self.status.desired;
        let is_begun = self.partial().is_some_and(|entry| entry.image == desired.image);
        let is_other = self.completed().is_some_and(|entry| entry.image != desired.image);
        (is_begun && is_other && !desired.image.is_empty()).then_some(desired)
    }

    /// Chooses the image of an update that somebody wants, as if it were `spec.desiredUpdate`.
    pub fn choose_update(&self, update: &DesiredUpdate) -> Result<Choice, ChoiceError> {
        let chosen = match update {
            DesiredUpdate { image, version, .. } if !image.is_empty() => self.choose_image(image, version),
            DesiredUpdate {
                architecture,
                version,
                ..
            } if architecture == MULTI => self.choose_multi(version),
            DesiredUpdate { version, .. } if !version.is_empty() => self.choose_version(version),
            _ => return Ok(Choice::NothingRequested),
        };
        chosen.map(Choice::Update)
    }

    /// Chooses the image of a version.
    pub fn choose_version(&self, version: &str) -> Result<ChosenUpdate, ChoiceError> {
        if version.parse::<SemanticVersion>().is_err() {
            let version = version.to_owned();
            return Err(ChoiceError::NotSemantic { version });
        }
        let status = &self.status;
        if let Some(release) = the_one(version, status.available_updates.iter())? {
            return self.chosen(release, Offer::Available);
        }
        if status.desired.version == version && !status.desired.image.is_empty() {
            return self.chosen(&status.desired, Offer::AlreadyDesired);
        }
        let conditional = status.conditional_updates.iter().map(|update| &update.release);
        if let Some(release) = the_one(version, conditional)? {
            return self.chosen(release, Offer::Conditional);
        }
        Err(ChoiceError::NotOffered {
            version: version.to_owned(),
            offers: self.offers(),
        })
    }

    /// Chooses the newest recommended update, as if it were `spec.desiredUpdate`: see [`Self::recommended`].
    pub fn choose_recommended(&self) -> Result<Option<ChosenUpdate>, ChoiceError> {
        let release = self.recommended();
        release
            .map(|release| self.chosen(release, Offer::Available))
            .transpose()
    }

    /// Whether the cluster runs this release and moves to no other.
    pub fn runs(&self, image: &Reference) -> bool {
        let newest = self.status.history.first();
        newest.is_some_and(|entry| entry.is_completed() && entry.image.parse().as_ref() == Ok(image))
    }

    /// The versions on offer.
    pub fn offers(&self) -> Offers {
        let available = self.status.available_updates.iter();
        let available: Vec<String> = available.map(|release| release.version.clone()).collect();
        let recommended: HashSet<&String> = available.iter().collect();
        let conditional = self.status.conditional_updates.iter();
        let conditional = conditional.map(|update| &update.release.version);
        let conditional = conditional.filter(|version| !recommended.contains(version));
        Offers {
            conditional: conditional.cloned().collect(),
            available,
        }
    }

    /// Chooses an image by name; `version` is its version, if it is known.
    pub fn choose_image(&self, image: &str, version: &str) -> Result<ChosenUpdate, ChoiceError> {
        let release = Release {
            image: image.to_owned(),
            version: version.to_owned(),
            ..Release::default()
        };
        self.chosen(&release, Offer::Image)
    }

    /// The multi-architecture payload of `version`, or of the current version.
    ///
    /// Whether `status.desired` is that payload already is unknown for an operator that does not report its architecture.
    fn choose_multi(&self, version: &str) -> Result<ChosenUpdate, ChoiceError> {
        let desired = &self.status.desired;
        let version = if version.is_empty() {
            &desired.version
        } else {
            version
        };
        let mut chosen = self.choose_version(version)?;
        if chosen.offer == Offer::AlreadyDesired && desired.architecture != MULTI {
            chosen.warnings.push(format!(
                "`architecture: {MULTI}` is requested, and the ClusterVersion names no other payload of `{}` than the present \
                 one, which may be of one architecture; name the other image with `--platform-image`",
                shown(version)
            ));
        }
        Ok(chosen)
    }

    fn chosen(&self, release: &Release, offer: Offer) -> Result<ChosenUpdate, ChoiceError> {
        let image: Reference = release.image.parse()?;
        let mut warnings = Vec::new();
        let is_desired = self.status.desired.image.parse().as_ref() == Ok(&image);
        let updates = &self.status.available_updates;
        let is_available = updates.iter().any(|update| update.image == release.image);
        let mut conditional = self.status.conditional_updates.iter();
        if !is_desired
            && !is_available
            && let Some(update) = conditional.find(|update| update.release.image == release.image)
        {
            warnings.push(risks(update));
        }
        if image.digest().is_none() {
            warnings.push(format!(
                "the release image `{image}` is named by tag: the cluster-version operator cannot verify it, and the tag may \
                 name another image later"
            ));
        }
        Ok(ChosenUpdate {
            image,
            version: Some(&release.version)
                .filter(|version| !version.is_empty())
                .cloned(),
            offer: if is_desired { Offer::AlreadyDesired } else { offer },
            warnings,
        })
    }
}

/// The release of this version with an image.
fn the_one<'a>(
    version: &str,
    releases: impl Iterator<Item = &'a Release>,
) -> Result<Option<&'a Release>, ChoiceError> {
    let mut found: Vec<&Release> = releases
        .filter(|release| release.version == version && !release.image.is_empty())
        .collect();
    let mut images = HashSet::new();
    found.retain(|release| images.insert(&release.image));
    match found[..] {
        [] => Ok(None),
        [release] => Ok(Some(release)),
        _ => Err(ChoiceError::SeveralPayloads {
            version: version.to_owned(),
            images: found.iter().map(|release| release.image.clone()).collect(),
        }),
    }
}

/// The warning about a conditional update.
fn risks(update: &ConditionalUpdate) -> String {
    let names: Vec<String> = update.risks.iter().map(|risk| risk.name.clone()).collect();
    let mut text = format!(
        "the update to {} has known risks: {}",
        shown(&update.release.version),
        listed(&names)
    );
    if let Some(condition) = update.recommended() {
        text += &format!(
            "; Recommended is {} ({}): {}",
            shown(&condition.status),
            shown(&condition.reason),
            shown(&condition.message)
        );
    }
    text
}

/// The first names as a list.
fn listed(names: &[String]) -> String {
    let mut items: Vec<String> = names.iter().take(NAMED).map(|name| shown(name)).collect();
    match names.len() {
        0 => items.push("none".to_owned()),
        count if count > NAMED => items.push(format!("{} more", count - NAMED)),
        _ => {}
    }
    items.join(", ")
}

impl fmt::Display for Offers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "recommended: {}; with known risks: {}",
            listed(&self.available),
            listed(&self.conditional)
        )
    }
}
