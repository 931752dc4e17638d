//! Why a catalog, or what is asked of it, cannot be used.

use crate::cancel::Stopped;
use crate::oci::ReferenceError;
use crate::spec::shown;
use crate::store::StoreError;

/// How many names a message lists.
const LISTED: usize = 10;

/// What is wrong with a catalog, or with what was asked of it. But for the first two, a retry does not help.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The program was told to stop while it read.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The image could not be read out of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The system could not read a file of the catalog.
    #[error("cannot read `{}` of the catalog: {why}", shown(file))]
    Io {
        /// Path in the image.
        file: String,
        /// The system's answer.
        why: String,
    },
    /// The image says nowhere that it has a catalog, and has none where they are by custom.
    #[error(
        "the image is no operator catalog: it has neither of the labels \
         `operators.operatorframework.io.index.configs.v1` and `operators.operatorframework.io.index.database.v1`, nor \
         `/configs`, nor `/database/index.db`\nhint: is it an index image?"
    )]
    NotACatalog,
    /// A label of the image names what is not there.
    #[error(
        "the image's label says that its catalog is {what} `{}`, but {why}",
        shown(path)
    )]
    Misplaced {
        /// `the directory` or `the database`.
        what: &'static str,
        /// The label's value.
        path: String,
        /// What is there.
        why: &'static str,
    },
    /// A file that is no catalog's.
    #[error("`{}` of the catalog, line {line}: {}", shown(file), shown(why))]
    Malformed {
        /// Path in the image.
        file: String,
        /// Counted from 1.
        line: u64,
        /// What is wrong, in the parser's words.
        why: String,
    },
    /// More than a catalog can have.
    #[error("`{}` of the catalog: it has more than {limit} {what}", shown(file))]
    TooMuch {
        /// Path in the image.
        file: String,
        /// How much there may be.
        limit: u64,
        /// Of what.
        what: &'static str,
    },
    /// The database is none, is damaged, or asks for too much.
    #[error("the catalog's database `{}`: {}", shown(file), shown(why))]
    Database {
        /// Path in the image.
        file: String,
        /// What is wrong, in SQLite's words.
        why: String,
    },
    /// The catalog says one thing twice, and nobody knows which is meant.
    #[error("package `{}` has {what} `{}` more than once", shown(package), shown(name))]
    Twice {
        /// The package.
        package: String,
        /// `the channel`, `the bundle` and the like.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// The catalog has no such package.
    #[error("the catalog has no package `{}`{}", shown(package), did_you_mean(near))]
    NoPackage {
        /// As asked for.
        package: String,
        /// Names that are like it, the nearest first.
        near: Vec<String>,
    },
    /// The package has no such channel.
    #[error(
        "package `{}` has no channel `{}`, it has {}{}",
        shown(package),
        shown(channel),
        list(channels),
        did_you_mean(near)
    )]
    NoChannel {
        /// The package.
        package: String,
        /// As asked for, or the default.
        channel: String,
        /// Those that it has, by name.
        channels: Vec<String>,
        /// Names that are like it, the nearest first.
        near: Vec<String>,
    },
    /// The default channel was asked for, and the package says none.
    #[error(
        "package `{}` has no default channel; its channels are {}\nhint: name one",
        shown(package),
        list(channels)
    )]
    NoDefaultChannel {
        /// The package.
        package: String,
        /// Those that it has, by name.
        channels: Vec<String>,
    },
    /// Nothing could be installed from the channel.
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
    /// Nobody knows which of them would be installed.
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
    /// A channel's head is described nowhere.
    #[error(
        "channel `{}` of package `{}` has `{}` as its head, but the catalog has no such bundle",
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
    /// A bundle names no image at all.
    #[error("bundle `{}` of package `{}` names no image", shown(bundle), shown(package))]
    NoImages {
        /// The package.
        package: String,
        /// The bundle.
        bundle: String,
    },
    /// A bundle names an image that cannot be one.
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
        /// What is wrong with it.
        why: ReferenceError,
    },
}

impl CatalogError {
    /// True if what was asked for is simply not in this catalog; another may have it.
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

fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() {
        return String::new();
    }
    let near: Vec<String> = near.iter().map(|name| quoted(name)).collect();
    format!("\nhint: did you mean {}?", near.join(" or "))
}

fn quoted(name: &str) -> String {
    format!("`{}`", shown(name))
}
