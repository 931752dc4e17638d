//! Reads a version spec from the objects of YAML or JSON files: a ConfigMap with the hub's keys, or what a cluster or a hub has
//! for the next upgrade.
//!
//! Every source has the meaning of the keys that the hub would mount. [`SpecInput`] combines the objects of several files.

mod cluster_versions;
mod complete_spec;
mod config_map;
mod error;
mod kube_object;
mod named_by_flags;
mod operators;
mod policy;
mod pre_caching_config;
mod raw_templates;
mod release;
mod spec_input;
mod text_position;
mod upgrade_config;
mod yaml_tree;

use jiff::Timestamp;

use super::VersionSpec;
use crate::cluster_version::ClusterVersion;
pub use error::DocumentError;
pub use named_by_flags::NamedByFlags;
pub use spec_input::SpecInput;
pub use text_position::TextPosition;

/// A version spec that was read from files.
#[derive(Debug, Default)]
pub struct SpecDocument {
    /// The spec.
    pub spec: VersionSpec,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// When the upgrade begins, perhaps in the past.
    pub upgrade_at: Option<Timestamp>,
    /// The cluster's own ClusterVersion.
    pub cluster_version: Option<ClusterVersion>,
    /// How the release was chosen.
    pub notes: Vec<String>,
    /// Why the cluster needs no release, if that is so.
    pub nothing_requested: Option<String>,
    /// Which objects it is made of, as in `ConfigMap openshift-talo-pre-cache/pre-cache-spec`.
    pub title: String,
    /// The other objects of the files.
    pub ignored: Vec<String>,
}

/// Reads the version spec from the bytes of one YAML or JSON file.
///
/// # Errors
/// If the file has no version spec, more than one, or an invalid one.
pub fn from_document(bytes: &[u8]) -> Result<SpecDocument, DocumentError> {
    let mut input = SpecInput::default();
    input.add("", bytes)?;
    input.read(NamedByFlags::default())
}

fn text(bytes: &[u8]) -> Result<&str, DocumentError> {
    let not_text_at = |offset: usize| DocumentError::NotText {
        line: 1 + bytes[..offset].iter().filter(|&&byte| byte == b'\n').count(),
    };
    let text = std::str::from_utf8(bytes).map_err(|error| not_text_at(error.valid_up_to()))?;
    match text.find('\0') {
        Some(offset) => Err(not_text_at(offset)),
        None => Ok(text.strip_prefix('\u{feff}').unwrap_or(text)),
    }
}

/// The first objects as a list.
fn listed(found: &[String]) -> String {
    /// Enough to recognise a wrong file.
    const OBJECTS: usize = 10;
    let mut shown = found[..found.len().min(OBJECTS)].to_vec();
    match found.len() {
        0 => shown.push("nothing".to_owned()),
        count if count > OBJECTS => shown.push(format!("{} more", count - OBJECTS)),
        _ => {}
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests;
