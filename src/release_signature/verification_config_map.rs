//! Parses the ConfigMap with the keyrings and the signature stores of a release.
//!
//! ```text
//! kind: ConfigMap
//! metadata: {annotations: {release.openshift.io/verification-config-map: ""}}
//! data:
//!   verifier-public-key-<name>: <OpenPGP keys, armored or binary>      every keyring needs a valid signature
//!   store-<name>: <URL>                                                https, http or file
//! ```
//!
//! Only the annotation counts, not its value or the object's name; the first in file order is used. The ConfigMap is used as
//! a whole or not at all, as in library-go `pkg/verify/configmap.go`: a key that is ignored could be the one that would not
//! accept a release. Duplicate YAML keys are allowed, because the real file has two `namespace`; the last one counts.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use super::keyring_file::NamedKeyring;
use super::signature_store::{StoreUrl, StoreUrlError};
use crate::openpgp::{Keyring, KeyringError, Rules};
use crate::spec::shown;

/// The annotation of the ConfigMap in a payload.
pub(super) const ANNOTATION: &str = "release.openshift.io/verification-config-map";

const KEYRING_PREFIX: &str = "verifier-public-key-";
const STORE_PREFIX: &str = "store-";

/// The most keyrings, and the most stores: Red Hat has one keyring and two stores.
const MOST: usize = 32;

/// The deepest nesting of a manifest. The parser recurses.
const DEPTH_LIMIT: usize = 64;

/// The most scalars, lists and mappings of the documents in one file.
const NODES_LIMIT: usize = 250_000;

/// The keyrings and the stores; at least one of each.
#[derive(Clone, Debug)]
pub struct VerificationConfigMap {
    /// Each must be satisfied.
    pub keyrings: Vec<NamedKeyring>,
    /// Where signatures are, unless others are configured.
    pub stores: Vec<StoreUrl>,
}

/// Why a ConfigMap cannot be used. The cluster-version operator does not start with such a ConfigMap in its payload.
#[derive(Debug, thiserror::Error)]
pub enum VerificationConfigMapError {
    /// Broken YAML or JSON.
    #[error("broken YAML: {0}")]
    Syntax(String),
    /// A value of `data` is not a string.
    #[error("`data` has a value that is not a string: `{0}`")]
    NotText(String),
    /// A keyring without a usable key.
    #[error("`{key}`: {source}")]
    Keyring {
        /// The key of the ConfigMap.
        key: String,
        /// Why.
        source: KeyringError,
    },
    /// An unusable URL.
    #[error("`{key}`: {source}")]
    Store {
        /// The key of the ConfigMap.
        key: String,
        /// Why.
        source: StoreUrlError,
    },
    /// No keyring.
    #[error("it has no keyring: no key begins with `{KEYRING_PREFIX}`")]
    NoKeyring,
    /// No store.
    #[error("it has no signature store: no key begins with `{STORE_PREFIX}`")]
    NoStore,
    /// More than any real one has.
    #[error("it has more than {MOST} keyrings or stores")]
    TooMany,
}

impl VerificationConfigMap {
    /// Finds and parses the first ConfigMap with the annotation in a file of a payload.
    pub fn find(manifests: &str) -> Result<Option<Self>, VerificationConfigMapError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            budget: serde_saphyr::budget! {
                max_depth: DEPTH_LIMIT,
                max_nodes: NODES_LIMIT,
                max_events: 2 * NODES_LIMIT,
            },
        };
        let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(manifests, options)
            .map_err(|error| VerificationConfigMapError::Syntax(shown(&error.to_string())))?;
        let is_meant = |document: &&Value| {
            let annotations = &document["metadata"]["annotations"];
            document["kind"] == "ConfigMap" && annotations.get(ANNOTATION).is_some()
        };
        let Some(document) = documents.iter().find(is_meant) else {
            return Ok(None);
        };
        let mut data = BTreeMap::new();
        for (key, value) in document["data"].as_object().into_iter().flatten() {
            let Value::String(text) = value else {
                return Err(VerificationConfigMapError::NotText(shown(key)));
            };
            data.insert(key.clone(), text.clone());
        }
        Self::parse(&data).map(Some)
    }

    /// Parses the data of the ConfigMap.
    pub fn parse(data: &BTreeMap<String, String>) -> Result<Self, VerificationConfigMapError> {
        let (mut keyrings, mut stores) = (Vec::new(), Vec::new());
        for (key, value) in data {
            if keyrings.len() > MOST || stores.len() > MOST {
                return Err(VerificationConfigMapError::TooMany);
            }
            if key.starts_with(KEYRING_PREFIX) {
                let keyring = Keyring::parse(value.as_bytes(), Rules::Cvo).map_err(|source| {
                    VerificationConfigMapError::Keyring {
                        key: shown(key),
                        source,
                    }
                })?;
                keyrings.push(NamedKeyring {
                    name: shown(key),
                    keyring,
                });
            } else if key.starts_with(STORE_PREFIX) {
                let store = value
                    .parse()
                    .map_err(|source| VerificationConfigMapError::Store {
                        key: shown(key),
                        source,
                    })?;
                stores.push(store);
            }
        }
        match (keyrings.is_empty(), stores.is_empty()) {
            (_, true) => Err(VerificationConfigMapError::NoStore),
            (true, _) => Err(VerificationConfigMapError::NoKeyring),
            (false, false) => Ok(Self { keyrings, stores }),
        }
    }
}
