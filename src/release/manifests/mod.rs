//! Reads the manifests of a release: which images they name, at which run level, and which a cluster includes.
//!
//! ```text
//! manifests/           the manifests of the cluster-version operator (CVO) itself, as Go templates
//! release-manifests/   those of all other operators, with the release's pullspecs
//!
//! 0000_50_console-operator_07-operator.yaml    run level 50, component `console-operator`
//!
//! ManifestFile* ─PayloadManifests::read→ PayloadManifests ─included(Inclusion)→ ReleaseManifests
//! ```
//!
//! The CVO installs an update in the order of the run levels. Components of one level are installed in parallel. An
//! image may be in the payload although nothing runs it, because `image-references` lists whatever an operator asks for.
//!
//! Nothing here fails: a file that cannot be parsed is listed, and every image in its text counts as named. The same
//! holds for a manifest whose inclusion is uncertain. [`ReleaseManifests::droppable`] names an image only if the
//! absence of a use is certain.

mod documents;
mod droppable;
mod file_name;
mod header;
mod header_lines;
mod implicit_capabilities;
mod inclusion;
mod naming;
mod payload_manifests;
mod release_manifests;
mod tag_index;
mod template;
mod upgrade_order;
mod yaml;

#[cfg(test)]
mod tests;

pub use droppable::Kept;
pub use file_name::{MANIFEST_DIRECTORIES, is_manifest};
pub use header::{OperandVersion, ResourceId};
pub use inclusion::{Capabilities, Exclusion, Filter, Inclusion};
pub use naming::Naming;
pub use payload_manifests::{FILE_LIMIT, FILES_LIMIT, ManifestFile, PayloadManifests, UnreadFile};
pub use release_manifests::{ClusterOperator, ReleaseManifests, TagUse};
pub use upgrade_order::UpgradeRank;
