//! Defines a version spec with all keys of the hub, to which only the cluster's release can be added.

use super::{DocumentError, SpecDocument};
use crate::spec::VersionSpec;

/// The keys of a ConfigMap.
#[derive(Clone, Debug)]
pub(super) struct CompleteSpec {
    /// The object.
    pub(super) title: String,
    pub(super) spec: VersionSpec,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
}

impl CompleteSpec {
    /// Alone.
    pub(super) fn into_document(self, ignored: Vec<String>) -> SpecDocument {
        SpecDocument {
            spec: self.spec,
            warnings: self.warnings,
            upgrade_at: None,
            cluster_version: None,
            notes: Vec::new(),
            nothing_requested: None,
            title: self.title,
            ignored,
        }
    }

    /// With the release that the cluster requests.
    ///
    /// # Errors
    /// If it names a release itself, unless a flag overrides both.
    pub(super) fn with_release(
        self,
        cluster: SpecDocument,
        is_named_by_flag: bool,
    ) -> Result<SpecDocument, DocumentError> {
        if self.spec.platform_image.is_some() && !is_named_by_flag {
            return Err(DocumentError::TwoReleases { object: self.title });
        }
        Ok(SpecDocument {
            spec: VersionSpec {
                platform_image: cluster.spec.platform_image,
                ..self.spec
            },
            warnings: [self.warnings, cluster.warnings].concat(),
            title: format!("{}, {}", self.title, cluster.title),
            ..cluster
        })
    }
}
