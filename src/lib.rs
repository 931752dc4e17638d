//! Pre-caches the images of an OpenShift upgrade in a node's CRI-O store.

pub mod cancel;
pub mod oci;
pub mod plan;
pub mod preflight;
pub mod registry;
pub mod report;
pub mod sources;
pub mod spec;
pub mod spool;
pub mod store;
