//! A resolved image with its name for people.

use std::sync::Arc;

use serde::Deserialize;

use crate::delta::DeltaSource;
use crate::oci::{Reference, ResolvedImage};

/// An image with its name for people.
#[derive(Clone, Debug)]
pub(super) struct NamedImage {
    /// Its tag in the payload.
    pub(super) name: String,
    /// By digest of its manifest.
    pub(super) reference: Reference,
    pub(super) image: Arc<ResolvedImage>,
}

/// The part of a config that names the ostree commit.
#[derive(Deserialize)]
struct Config {
    config: Option<Settings>,
}

#[derive(Deserialize)]
struct Settings {
    #[serde(rename = "Labels")]
    labels: Option<Labels>,
}

#[derive(Deserialize)]
struct Labels {
    /// Images of rhel-coreos have it.
    #[serde(rename = "ostree.commit")]
    ostree_commit: Option<String>,
}

impl NamedImage {
    /// The image as a source of deltas.
    pub(super) fn source(&self) -> DeltaSource {
        let config: Option<Config> = serde_json::from_slice(self.image.config.bytes()).ok();
        let labels = config.and_then(|config| config.config?.labels);
        DeltaSource {
            config: self.image.config.digest(),
            ostree_commit: labels.and_then(|labels| labels.ostree_commit),
        }
    }
}
