//! Compares what the last run requested with the store: what is missing now. Needs no registry and no API.
//!
//! An image is present if `run` would find it present: CRI-O finds it under the requested name, its records are whole, and
//! its layers can be mounted. A tag must still name the image to which the registry resolved it in the last run. Whether the
//! tag has moved since, whether files of a layer are damaged, and what the signature policy says now, only `plan`, `verify`
//! and `run` know.

mod text;

use std::path::PathBuf;

use serde::{Serialize, Serializer};

use crate::oci::{Platform, Reference};
use crate::report::{API_VERSION, ImagePhase};
use crate::run_history::{RequestedImage, RunHistory};
use crate::store::{Inventory, StoreError, StoreLocation};

/// The document that `status -o json` prints.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CacheStatus {
    api_version: &'static str,
    kind: &'static str,
    /// Whether every requested image is known and in the store.
    pub is_complete: bool,
    /// The file of the history.
    pub history_file: PathBuf,
    /// What the last version spec requests; absent if no run has recorded it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestStatus>,
    /// The last runs.
    #[serde(serialize_with = "entries")]
    pub history: RunHistory,
}

/// The runs alone, because this document has a version and a kind of its own.
fn entries<S: Serializer>(history: &RunHistory, serializer: S) -> Result<S::Ok, S::Error> {
    history.history.serialize(serializer)
}

/// What the store has now of what the last version spec requests.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestStatus {
    /// Whether all requested images are known: the release and every catalog were read.
    pub is_known: bool,
    /// Requested images that are known.
    pub wanted: usize,
    /// Of these, in the store.
    pub present: usize,
    /// The others.
    pub missing: Vec<MissingImage>,
}

/// A requested image that the store does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissingImage {
    /// The normalised reference.
    pub name: String,
    /// Why it counts as missing.
    pub reason: String,
}

impl CacheStatus {
    /// Looks up each image of the last list in the inventory.
    pub fn of(
        history: RunHistory,
        history_file: PathBuf,
        inventory: &Inventory,
        platform: &Platform,
    ) -> Result<Self, StoreError> {
        let request = match history.last_request() {
            None => None,
            Some((_, requested)) => {
                let mut missing = Vec::new();
                for image in &requested.images {
                    if let Some(reason) = why_missing(image, inventory, platform)? {
                        let name = image.name.clone();
                        missing.push(MissingImage { name, reason });
                    }
                }
                Some(RequestStatus {
                    is_known: requested.is_complete,
                    wanted: requested.images.len(),
                    present: requested.images.len() - missing.len(),
                    missing,
                })
            }
        };
        Ok(Self {
            api_version: API_VERSION,
            kind: "Status",
            is_complete: request
                .as_ref()
                .is_some_and(|it| it.is_known && it.missing.is_empty()),
            history_file,
            request,
            history,
        })
    }

    /// The document, with a line end.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("strings, numbers and lists always serialise");
        json + "\n"
    }
}

/// Why the image is missing; none if it is present.
fn why_missing(
    image: &RequestedImage,
    inventory: &Inventory,
    platform: &Platform,
) -> Result<Option<String>, StoreError> {
    let because = |reason: &str| Ok(Some(reason.to_owned()));
    let Ok(reference) = image.name.parse::<Reference>() else {
        return because("the history has no usable name for it");
    };
    let Some(stored) = inventory.find(&reference, platform)? else {
        return because("the store does not have it");
    };
    // As a run decides: another program may remove the other name of the repository.
    let keeps_name =
        stored.names.contains(&reference.to_string()) || stored.location != StoreLocation::GraphRoot;
    match (reference.tag(), &image.id) {
        (None, _) if !keeps_name => return because("the store has it only under another name"),
        (Some(_), Some(id)) if *id != stored.id.to_string() => {
            return because("the store has another image under this tag");
        }
        (Some(_), None) if !matches!(image.state, ImagePhase::Present | ImagePhase::Pulled) => {
            return because("no run has checked which image this tag names");
        }
        _ => {}
    }
    inventory.find_flaw(stored)
}
