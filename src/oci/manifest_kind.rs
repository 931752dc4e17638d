//! Decides from the body of a document whether it is an image manifest or an index.
//!
//! The body decides, as in containers/image (`GuessMIMEType`): the store keeps no Content-Type, so every later reader of
//! the manifest decides by the body too. A Content-Type that contradicts the body is refused (CVE-2021-41190).

use std::collections::BTreeMap;

use oci_distribution::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::go_json;
use super::go_json::schema::{IMAGE_MANIFEST, INDEX};
use super::manifest_error::{ManifestError, excerpt};
use super::media_type::{SCHEMA1_MEDIA_TYPE, SCHEMA1_SIGNED_MEDIA_TYPE};

/// What a body claims to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ManifestKind {
    Image,
    Index { oci: bool },
}

/// The fields of the outermost object, with their values unparsed. A parsed tree takes forty times its length in memory,
/// and the bytes are not verified yet.
#[derive(Deserialize)]
struct Fields<'a>(#[serde(borrow)] BTreeMap<String, &'a RawValue>);

impl<'a> Fields<'a> {
    /// The value of a field, if it has the expected type.
    fn read<T: Deserialize<'a>>(&self, name: &str) -> Option<T> {
        self.0
            .get(name)
            .and_then(|value| serde_json::from_str(value.get()).ok())
    }
}

impl ManifestKind {
    pub(super) fn of(body: &[u8]) -> Result<Self, ManifestError> {
        let fields: Fields<'_> = serde_json::from_slice(body).map_err(ManifestError::not_json)?;
        let media_type: Option<String> = fields.read("mediaType");
        match media_type.as_deref() {
            Some(OCI_IMAGE_MEDIA_TYPE | IMAGE_MANIFEST_MEDIA_TYPE) => return Ok(Self::Image),
            Some(OCI_IMAGE_INDEX_MEDIA_TYPE) => return Ok(Self::Index { oci: true }),
            Some(IMAGE_MANIFEST_LIST_MEDIA_TYPE) => return Ok(Self::Index { oci: false }),
            Some(SCHEMA1_MEDIA_TYPE | SCHEMA1_SIGNED_MEDIA_TYPE) => return Err(ManifestError::Schema1),
            Some(other) if !other.is_empty() => return Err(ManifestError::MediaType(excerpt(other))),
            _ => {}
        }
        match fields.read::<i64>("schemaVersion") {
            Some(2) => {}
            Some(1) => return Err(ManifestError::Schema1),
            Some(version) => return Err(ManifestError::SchemaVersion(version.to_string())),
            None => return Err(ManifestError::SchemaVersion("missing".into())),
        }
        // `manifests` decides when it is not empty; only its beginning is read.
        let has_instances = fields.0.get("manifests").is_some_and(|instances| {
            let inside = instances.get().trim_start().strip_prefix('[');
            inside.is_some_and(|inside| !inside.trim_start().starts_with(']'))
        });
        Ok(if has_instances && !fields.0.contains_key("config") {
            Self::Index { oci: true }
        } else {
            Self::Image
        })
    }

    /// What Go decodes such a body into.
    pub(super) fn schema(self) -> go_json::Type {
        match self {
            Self::Image => IMAGE_MANIFEST,
            Self::Index { .. } => INDEX,
        }
    }

    /// Refuses a Content-Type that names the other kind. Docker's and OCI's types of one kind are equivalent here. Types
    /// that name no kind, such as `application/json`, are accepted: caches and object stores send them.
    pub(super) fn check_content_type(self, content_type: Option<&str>) -> Result<(), ManifestError> {
        let Some(header) = content_type else { return Ok(()) };
        let essence = header.split(';').next().unwrap_or_default().trim();
        let is_index = match essence {
            OCI_IMAGE_MEDIA_TYPE | IMAGE_MANIFEST_MEDIA_TYPE => false,
            OCI_IMAGE_INDEX_MEDIA_TYPE | IMAGE_MANIFEST_LIST_MEDIA_TYPE => true,
            SCHEMA1_MEDIA_TYPE | SCHEMA1_SIGNED_MEDIA_TYPE => return Err(ManifestError::Schema1),
            _ => return Ok(()),
        };
        if is_index == matches!(self, Self::Index { .. }) {
            Ok(())
        } else {
            Err(ManifestError::ContentType(excerpt(essence)))
        }
    }
}
