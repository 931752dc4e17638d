//! Where an image has its catalog.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::error::CatalogError;
use crate::store::{Node, StoreError, Tree};

/// Names the directory of a file-based catalog.
const CONFIGS_LABEL: &str = "operators.operatorframework.io.index.configs.v1";
/// Names the database of an older one.
const DATABASE_LABEL: &str = "operators.operatorframework.io.index.database.v1";

/// Where they are in images without labels; the hub's scripts look nowhere else.
const CONFIGS: &str = "/configs";
const DATABASE: &str = "/database/index.db";

/// A catalog in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogPlace {
    /// A directory of JSON and YAML files, by its path in the image.
    Configs(String),
    /// An SQLite database, by its path in the image.
    Database(String),
}

#[derive(Deserialize)]
struct Image {
    #[serde(default)]
    config: Option<Container>,
}

#[derive(Deserialize)]
struct Container {
    #[serde(default, rename = "Labels")]
    labels: Option<BTreeMap<String, Option<String>>>,
}

impl CatalogPlace {
    /// Finds the catalog of the image whose config is `config` and whose files are `tree`. The label of a file-based
    /// catalog goes before that of a database, for who migrates an index may leave the old one; an image without either is
    /// looked at in the usual places.
    ///
    /// # Errors
    /// When there is none, or a label names what is not there.
    pub fn find(tree: &Tree, config: &[u8]) -> Result<Self, CatalogError> {
        let image: Option<Image> = serde_json::from_slice(config).ok();
        let labels = image.and_then(|image| image.config?.labels).unwrap_or_default();
        let label = |name: &str| {
            labels
                .get(name)?
                .as_deref()
                .filter(|path| !path.trim().is_empty())
        };
        if let Some(path) = label(CONFIGS_LABEL) {
            let misplaced = |why| CatalogError::Misplaced {
                what: "the directory",
                path: path.to_owned(),
                why,
            };
            return match open(tree, path)? {
                Some(Node::Directory(_)) => Ok(Self::Configs(path.to_owned())),
                Some(_) => Err(misplaced("it is no directory")),
                None => Err(misplaced("there is none")),
            };
        }
        if let Some(path) = label(DATABASE_LABEL) {
            let misplaced = |why| CatalogError::Misplaced {
                what: "the database",
                path: path.to_owned(),
                why,
            };
            return match open(tree, path)? {
                Some(Node::File(_)) => Ok(Self::Database(path.to_owned())),
                Some(_) => Err(misplaced("it is no file")),
                None => Err(misplaced("there is none")),
            };
        }
        if let Some(Node::Directory(_)) = open(tree, CONFIGS)? {
            return Ok(Self::Configs(CONFIGS.to_owned()));
        }
        match open(tree, DATABASE)? {
            Some(Node::File(_)) => Ok(Self::Database(DATABASE.to_owned())),
            _ => Err(CatalogError::NotACatalog),
        }
    }
}

fn open(tree: &Tree, path: &str) -> Result<Option<Node>, StoreError> {
    // The kernel has no such paths.
    if path.contains('\0') {
        return Ok(None);
    }
    tree.open(Path::new(path))
}
