//! Lists the errors of reading a catalog and of finding the requested packages.

use crate::cancel::Stopped;
use crate::oci::ReferenceError;
use crate::spec::shown;
use crate::store::StoreError;

/// The most names in a message.
const LISTED: usize = 10;

/// Why a catalog or a request cannot be used. A retry helps only with the first two.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The run was cancelled during the reading.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The image could not be read from the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file of the catalog could not be read.
    #[error("cannot read `{}` of the catalog: {why}", shown(file))]
    Io {
        /// Path in the image.
        file: String,
        /// The system's error.
        why: String,
    },
    /// The image has no label of a catalog, and no catalog at the default paths.
    #[error(
        "the image is not an operator catalog: it has neither of the labels \
         `operators.operatorframework.io.index.configs.v1` and `operators.operatorframework.io.index.database.v1`, nor \
         `/configs`, nor `/database/index.db`\nhint: check that it is an index image"
    )]
    NotACatalog,
    /// A label of the image names a missing or wrong path.
    #[error("the image's label names {what} `{}` as its catalog, but {why}", shown(path))]
    WrongLabel {
        /// `the directory` or `the database`.
        what: &'static str,
        /// The label's value.
        path: String,
        /// Why it is wrong.
        why: &'static str,
    },
    /// A file with invalid content.
    #[error("`{}` of the catalog, line {line}: {}", shown(file), shown(why))]
    Malformed {
        /// Path in the image.
        file: String,
        /// Counted from 1.
        line: u64,
        /// The parser's message.
        why: String,
    },
    /// A limit of catalogs is exceeded.
    #[error("`{}` of the catalog: it has more than {limit} {what}", shown(file))]
    LimitExceeded {
        /// Path in the image.
        file: String,
        /// The limit.
        limit: u64,
        /// The unit.
        what: &'static str,
    },
    /// The file is not a database, is damaged, or needs too many resources.
    #[error("the catalog's database `{}`: {}", shown(file), shown(why))]
    Database {
        /// Path in the image.
        file: String,
        /// SQLite's message.
        why: String,
    },
    /// The catalog defines something twice, and the right definition is unknown.
    #[error("package `{}` has {what} `{}` more than once", shown(package), shown(name))]
    Duplicate {
        /// The package.
        package: String,
        /// `the channel`, `the bundle` and the like.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The catalog has no such package.
    #[error("the catalog has no package `{}`{}", shown(package), did_you_mean(similar))]
    NoPackage {
        /// As requested.
        package: String,
        /// Similar names, the most similar first.
        similar: Vec<String>,
    },
    /// The package has no such channel.
    #[error(
        "package `{}` has no channel `{}`, it has {}{}",
        shown(package),
        shown(channel),
        list(channels),
        did_you_mean(similar)
    )]
    NoChannel {
        /// The package.
        package: String,
        /// As requested, or the default.
        channel: String,
        /// Its channels, sorted by name.
        channels: Vec<String>,
        /// Similar names, the most similar first.
        similar: Vec<String>,
    },
    /// The default channel is requested, but the package has none.
    #[error(
        "package `{}` has no default channel; its channels are {}\nhint: request one of them",
        shown(package),
        list(channels)
    )]
    NoDefaultChannel {
        /// The package.
        package: String,
        /// Its channels, sorted by name.
        channels: Vec<String>,
    },
    /// The channel has no entries.
    #[error("channel `{}` of package `{}` is empty", shown(channel), shown(package))]
    EmptyChannel {
        /// The package.
        package: String,
        /// The channel.
        channel: String,
    },
    /// Every entry is replaced or skipped.
    #[error(
        "channel `{}` of package `{}` has no head: each of {} is replaced or skipped by an entry of the channel",
        shown(channel),
        shown(package),
        list(entries)
    )]
    NoHead {
        /// The package.
        package: String,
        /// The channel.
        channel: String,
        /// Its entries.
        entries: Vec<String>,
    },
    /// The bundle to install is ambiguous.
    #[error(
        "channel `{}` of package `{}` has {} heads, which no other entry replaces or skips: {}",
        shown(channel), shown(package), heads.len(), list(heads)
    )]
    SeveralHeads {
        /// The package.
        package: String,
        /// The channel.
        channel: String,
        /// The heads, by name.
        heads: Vec<String>,
    },
    /// The catalog does not contain the bundle of a channel's head.
    #[error(
        "channel `{}` of package `{}` has the head `{}`, but the catalog does not contain this bundle",
        shown(channel),
        shown(package),
        shown(bundle)
    )]
    NoBundle {
        /// The package.
        package: String,
        /// The channel.
        channel: String,
        /// The head.
        bundle: String,
    },
    /// A bundle names no image.
    #[error("bundle `{}` of package `{}` names no image", shown(bundle), shown(package))]
    NoImages {
        /// The package.
        package: String,
        /// The bundle.
        bundle: String,
    },
    /// A bundle has an invalid image reference.
    #[error(
        "bundle `{}` of package `{}`: `{field}`: {why}",
        shown(bundle),
        shown(package)
    )]
    Pullspec {
        /// The package.
        package: String,
        /// The bundle.
        bundle: String,
        /// Such as `relatedImages[3].image`.
        field: String,
        /// Why.
        why: ReferenceError,
    },
}

impl CatalogError {
    /// Whether the request is just not in this catalog; another catalog may have it.
    pub fn is_absence(&self) -> bool {
        matches!(self, Self::NoPackage { .. } | Self::NoChannel { .. })
    }
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    let mut shown: Vec<String> = names.iter().take(LISTED).map(|name| quoted(name)).collect();
    if names.len() > LISTED {
        shown.push(format!("{} more", names.len() - LISTED));
    }
    shown.join(", ")
}

fn did_you_mean(similar: &[String]) -> String {
    if similar.is_empty() {
        return String::new();
    }
    let similar: Vec<String> = similar.iter().map(|name| quoted(name)).collect();
    format!("\nhint: did you mean {}?", similar.join(" or "))
}

fn quoted(name: &str) -> String {
    format!("`{}`", shown(name))
}
