//! The version spec: what the coming upgrade needs, as the hub or a person wrote it down.
//!
//! [`from_keys`] reads what the hub mounted, [`from_document`] what a person has in a file, [`VersionSpec::merge`] adds what
//! stands on the command line, and [`VersionSpec::validate`] refuses what would be a silent success.
//! [`VersionSpec::to_yaml`] and its siblings write it down again. [`Excludes`] are the patterns, compiled. Nothing here
//! does I/O; whoever reads files hands their bytes in.

mod bre;
mod bre_bracket;
mod config_map_keys;
mod document;
mod exclude_patterns;
mod printer;
mod space_required;

pub use bre::BreError;
pub use config_map_keys::from_keys;
pub use document::{Document, DocumentError, TextPosition, from_document};
pub use exclude_patterns::{Excludes, Hit, HitPosition, PatternError};
pub use space_required::{SpaceError, parse_space};

use crate::oci::{Reference, ReferenceError};

/// How much of a text from outside a message repeats, in characters.
const SHOWN: usize = 200;

/// What is wanted on this node. Lists have no duplicates and keep their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VersionSpec {
    /// The release image of the coming version.
    pub platform_image: Option<Reference>,
    /// Index images: each holds an operator catalog.
    pub operators_indexes: Vec<Reference>,
    /// `package:channel`, as written: what of the catalogs is wanted.
    pub packages_and_channels: Vec<String>,
    /// Basic regular expressions for images of the release that are not wanted.
    pub exclude_patterns: Vec<String>,
    /// Images that are wanted besides.
    pub additional_images: Vec<Reference>,
    /// Bytes that must be free before anything is pulled; 0 demands nothing.
    pub space_required: u64,
}

/// What stands on the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Instead of the spec's.
    pub platform_image: Option<Reference>,
    /// Besides the spec's.
    pub operators_indexes: Vec<Reference>,
    /// Besides the spec's.
    pub packages_and_channels: Vec<String>,
    /// Besides the spec's.
    pub images: Vec<Reference>,
    /// Besides the spec's.
    pub excludes: Vec<String>,
    /// In bytes, instead of the spec's.
    pub space_required: Option<u64>,
}

/// Why a version spec cannot be used; a retry does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A directory of something else.
    #[error(
        "the version spec has none of the keys that it may have; found: {}",
        list(found)
    )]
    NoKeys {
        /// Names of what is there.
        found: Vec<String>,
    },
    /// Neither a release nor an operator nor an image.
    #[error(
        "the version spec asks for nothing\n\
         hint: set `platform.image`, `operators.indexes` or `additionalImages`, or give `--platform-image`, \
         `--operator-index` or `--image`"
    )]
    NothingToDo,
    /// Packages and no catalog.
    #[error(
        "`operators.packagesAndChannels` asks for {} and `operators.indexes` names no catalog to find it in\n\
         hint: set `operators.indexes`, or give `--operator-index`",
        list(packages)
    )]
    PackagesWithoutIndex {
        /// What is asked for.
        packages: Vec<String>,
    },
    /// Bytes that are no text.
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
    /// The hub formatted an image that is not there.
    #[error(
        "`{key}`, line {line}: `%!s(<nil>)` is no image; the hub found a CatalogSource without one\n\
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
        /// What is wrong.
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
        /// What is wrong.
        why: SpaceError,
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
    /// Adds what stands on the command line: lists grow, single values are replaced.
    pub fn merge(self, overrides: Overrides) -> Self {
        // As in the ConfigMap: a blank pattern, which would match every image, is none.
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

    /// Refuses a spec that asks for nothing, or for packages of no catalog.
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

/// The first of each, in their order.
fn unique<T: Clone + Eq + std::hash::Hash>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = std::collections::HashSet::new();
    items
        .into_iter()
        .filter(|item| seen.insert(item.clone()))
        .collect()
}

/// As much of a text from outside as a message can bear.
pub(crate) fn shown(text: &str) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().take(SHOWN).map(visible).collect()
}

fn list(names: &[String]) -> String {
    /// Enough to see that it is the wrong directory.
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
