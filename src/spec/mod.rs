//! Defines the version spec: the images that the next upgrade needs, as the hub or a person specifies them.
//!
//! [`from_keys`] parses the keys of the mounted ConfigMap, [`SpecInput`] files with objects, [`VersionSpec::merge`] adds the command
//! line's values, and [`VersionSpec::validate`] refuses a spec that would succeed without doing anything.
//! [`VersionSpec::to_yaml`] and its siblings print it. [`Excludes`] are the compiled exclude patterns. Nothing here does
//! I/O; the caller passes the bytes of files.

mod bre;
mod bre_bracket;
mod bre_error;
mod config_map_keys;
mod document;
mod exclude_patterns;
mod printer;
mod space_required;

pub use bre_error::BreError;
pub use config_map_keys::{from_keys, is_key};
pub use document::{DocumentError, NamedByFlags, SpecDocument, SpecInput, TextPosition, from_document};
pub use exclude_patterns::{Excludes, Hit, HitPosition, PatternError};
pub use space_required::{SpaceRequiredError, parse_space};

use crate::oci::{Reference, ReferenceError};

/// How many characters of a foreign text a message repeats.
const SHOWN: usize = 200;

/// The images to pre-cache on this node. Lists have no duplicates and keep their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSpec {
    /// The release image of the next version.
    pub platform_image: Option<Reference>,
    /// Index images: each contains an operator catalog.
    pub operators_indexes: Vec<Reference>,
    /// `package:channel`, as written: the operators to pull from the catalogs.
    pub packages_and_channels: Vec<String>,
    /// Basic regular expressions for images of the release to leave out.
    pub exclude_patterns: Vec<String>,
    /// More images to pull.
    pub additional_images: Vec<Reference>,
    /// Bytes that must be free before anything is pulled; 0 for no requirement.
    pub space_required: u64,
}

/// The values of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Replaces the spec's.
    pub platform_image: Option<Reference>,
    /// Added to the spec's.
    pub operators_indexes: Vec<Reference>,
    /// Added to the spec's.
    pub packages_and_channels: Vec<String>,
    /// Added to the spec's.
    pub images: Vec<Reference>,
    /// Added to the spec's.
    pub excludes: Vec<String>,
    /// In bytes; replaces the spec's.
    pub space_required: Option<u64>,
}

/// Why a version spec cannot be used; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A directory of something else.
    #[error("the version spec has no known key; found: {}", list(found))]
    NoKeys {
        /// Names of the keys.
        found: Vec<String>,
    },
    /// No release, no operator and no image.
    #[error(
        "the version spec requests no images\n\
         hint: set `platform.image`, `operators.indexes` or `additionalImages`, or give `--platform-image`, \
         `--operator-index` or `--image`"
    )]
    NothingToDo,
    /// Packages without a catalog.
    #[error(
        "`operators.packagesAndChannels` requests {}, but `operators.indexes` names no catalog\n\
         hint: set `operators.indexes`, or give `--operator-index`",
        list(packages)
    )]
    PackagesWithoutIndex {
        /// The requested packages.
        packages: Vec<String>,
    },
    /// Bytes that are not text.
    #[error("`{key}`, line {line}: not UTF-8")]
    NotUtf8 {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Counted from 1.
        line: usize,
    },
    /// A zero byte: binary, or UTF-16.
    #[error("`{key}`, line {line}: a zero byte\nhint: save the text as UTF-8")]
    Nul {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Counted from 1.
        line: usize,
    },
    /// The hub formatted a missing image (`fmt.Sprintf("%s", nil)`).
    #[error(
        "`{key}`, line {line}: `%!s(<nil>)` is not an image; the hub found a CatalogSource without an image\n\
         hint: set `spec.image` of the policy's CatalogSource"
    )]
    GoNil {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Counted from 1.
        line: usize,
    },
    /// Not an image reference.
    #[error("`{key}`, line {line}: {why}")]
    Reference {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Counted from 1.
        line: usize,
        /// Why not.
        why: ReferenceError,
    },
    /// Two releases.
    #[error("`{key}` names more than one image")]
    SeveralPlatformImages {
        /// The key of the ConfigMap.
        key: &'static str,
    },
    /// Not an amount of space.
    #[error("`{key}`, line {line}: {why}")]
    Space {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Counted from 1.
        line: usize,
        /// Why not.
        why: SpaceRequiredError,
    },
    /// Two amounts.
    #[error("`{key}`, line {line}: a second amount")]
    SeveralAmounts {
        /// The key of the ConfigMap.
        key: &'static str,
        /// Of the second, counted from 1.
        line: usize,
    },
}

impl VersionSpec {
    /// Adds the command line's values: lists grow, single values are replaced.
    pub fn merge(self, overrides: Overrides) -> Self {
        // As in the ConfigMap, a blank pattern is ignored; it would match every image.
        let excludes = overrides
            .excludes
            .iter()
            .flat_map(|text| config_map_keys::patterns(text));
        Self {
            platform_image: overrides.platform_image.or(self.platform_image),
            operators_indexes: unique(
                self.operators_indexes
                    .into_iter()
                    .chain(overrides.operators_indexes),
            ),
            packages_and_channels: unique(
                self.packages_and_channels
                    .into_iter()
                    .chain(overrides.packages_and_channels),
            ),
            additional_images: unique(self.additional_images.into_iter().chain(overrides.images)),
            exclude_patterns: unique(self.exclude_patterns.into_iter().chain(excludes)),
            space_required: overrides.space_required.unwrap_or(self.space_required),
        }
    }

    /// Refuses a spec that requests no images, or packages without a catalog.
    pub fn validate(&self) -> Result<(), SpecError> {
        let has_indexes = !self.operators_indexes.is_empty();
        if !has_indexes && !self.packages_and_channels.is_empty() {
            let packages = self.packages_and_channels.clone();
            return Err(SpecError::PackagesWithoutIndex { packages });
        }
        if self.platform_image.is_none() && !has_indexes && self.additional_images.is_empty() {
            return Err(SpecError::NothingToDo);
        }
        Ok(())
    }
}

/// The items without duplicates, in their order.
fn unique<T: Clone + Eq + std::hash::Hash>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    items
        .into_iter()
        .filter(|item| seen.insert(item.clone()))
        .collect()
}

/// A foreign text in a form that is safe in a message: bounded, without control characters.
pub(crate) fn shown(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN).map(visible).collect()
}

fn list(names: &[String]) -> String {
    /// Enough to recognise a wrong directory.
    const NAMES: usize = 10;
    let mut shown: Vec<String> = names
        .iter()
        .take(NAMES)
        .map(|name| format!("`{}`", shown(name)))
        .collect();
    match names.len() {
        0 => shown.push("nothing".to_owned()),
        count if count > NAMES => shown.push(format!("{} more", count - NAMES)),
        _ => {}
    }
    shown.join(", ")
}
