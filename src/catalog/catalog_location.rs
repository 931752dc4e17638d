//! Finds the catalog in an index image, by its labels or at the default paths.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::error::CatalogError;
use crate::store::{Node, StoreError, Tree};

/// The label of a file-based catalog: its directory.
const CONFIGS_LABEL: &str = "operators.operatorframework.io.index.configs.v1";
/// The label of an SQLite catalog: its database file.
const DATABASE_LABEL: &str = "operators.operatorframework.io.index.database.v1";

/// The default paths, for images without labels; the hub's scripts only use these.
const CONFIGS: &str = "/configs";
const DATABASE: &str = "/database/index.db";

/// The location of a catalog in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogLocation {
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

impl CatalogLocation {
    /// The paths that [`Self::find`] may open in the image with this config.
    pub fn paths(config: &[u8]) -> Vec<String> {
        let labels = labels(config);
        let labels = [CONFIGS_LABEL, DATABASE_LABEL].map(|name| label(&labels, name).map(str::to_owned));
        match labels.into_iter().flatten().next() {
            Some(path) => vec![path],
            None => vec![CONFIGS.to_owned(), DATABASE.to_owned()],
        }
    }

    /// Finds the catalog of the image with this config and these files. The label of a file-based catalog takes precedence,
    /// because a migrated index may still have the database's; without a label, the default paths are tried.
    ///
    /// # Errors
    /// If there is no catalog, or a label names a missing path.
    pub fn find(tree: &Tree, config: &[u8]) -> Result<Self, CatalogError> {
        let labels = labels(config);
        if let Some(path) = label(&labels, CONFIGS_LABEL) {
            let wrong_label = |why| CatalogError::WrongLabel {
                what: "the directory",
                path: path.to_owned(),
                why,
            };
            return match open(tree, path)? {
                Some(Node::Directory(_)) => Ok(Self::Configs(path.to_owned())),
                Some(_) => Err(wrong_label("it is not a directory")),
                None => Err(wrong_label("it does not exist")),
            };
        }
        if let Some(path) = label(&labels, DATABASE_LABEL) {
            let wrong_label = |why| CatalogError::WrongLabel {
                what: "the database",
                path: path.to_owned(),
                why,
            };
            return match open(tree, path)? {
                Some(Node::File(_)) => Ok(Self::Database(path.to_owned())),
                Some(_) => Err(wrong_label("it is not a file")),
                None => Err(wrong_label("it does not exist")),
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

fn labels(config: &[u8]) -> BTreeMap<String, Option<String>> {
    let image: Option<Image> = serde_json::from_slice(config).ok();
    image.and_then(|image| image.config?.labels).unwrap_or_default()
}

/// A label that is not blank.
fn label<'l>(labels: &'l BTreeMap<String, Option<String>>, name: &str) -> Option<&'l str> {
    labels
        .get(name)?
        .as_deref()
        .filter(|path| !path.trim().is_empty())
}

fn open(tree: &Tree, path: &str) -> Result<Option<Node>, StoreError> {
    // No path of Linux contains a zero byte.
    if path.contains('\0') {
        return Ok(None);
    }
    tree.open(Path::new(path))
}
