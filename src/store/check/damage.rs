//! The kinds of damage that a check reports, each as one line of text.

use std::fmt;

use crate::store::escaped_name::EscapedName;

/// The most damages of one layer that are kept for messages; more are only counted.
const SHOWN: usize = 10;

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// The layer's record in layers.json, or the image's in images.json.
    Record(String),
    /// One of the overlay driver's own files of a layer: `link`, `lower`, `l/<link>`, `work`, `merged`, `empty`.
    Links {
        /// The file or directory.
        file: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The layer's tar-split.
    TarSplit(String),
    /// A file or directory of the layer's tree.
    Tree {
        /// The path in the layer.
        path: EscapedName,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of an image's big data: manifest, list, config.
    Data {
        /// Its key in the image's record.
        key: EscapedName,
        /// What is wrong with it.
        reason: String,
    },
    /// An item of signatures in an image's big data, or their lengths in the record's `metadata`. The image is usable
    /// where no signatures are required, and `Store::put_signatures` repairs it without its layers.
    Signatures {
        /// The item's key in the image's record, or `metadata`.
        key: EscapedName,
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(reason) => write!(f, "record: {reason}"),
            Self::Links { file, reason } => write!(f, "`{file}`: {reason}"),
            Self::TarSplit(reason) => write!(f, "tar-split: {reason}"),
            Self::Tree { path, reason } => write!(f, "`/{path}`: {reason}"),
            Self::Data { key, reason } | Self::Signatures { key, reason } => write!(f, "`{key}`: {reason}"),
        }
    }
}

impl Damage {
    /// Whether only the signatures of an image are damaged.
    pub fn is_of_signatures(&self) -> bool {
        matches!(self, Self::Signatures { .. })
    }
}

/// The damages of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDamage {
    /// The first of them.
    pub shown: Vec<Damage>,
    /// Their total number.
    pub count: u64,
}

/// Collects the damages of one layer.
#[derive(Default)]
pub(super) struct DamageList {
    shown: Vec<Damage>,
    count: u64,
}

impl DamageList {
    pub(super) fn add(&mut self, damage: Damage) {
        self.count += 1;
        if self.shown.len() < SHOWN {
            self.shown.push(damage);
        }
    }

    /// Adds a damage of the tree.
    pub(super) fn at(&mut self, path: &[u8], reason: String) {
        let path = EscapedName::new(path);
        self.add(Damage::Tree { path, reason });
    }

    pub(super) fn into_damage(self) -> Option<LayerDamage> {
        let Self { shown, count } = self;
        (count > 0).then_some(LayerDamage { shown, count })
    }
}
