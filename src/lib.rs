//! Pre-caches the images of an OpenShift upgrade in a node's CRI-O store.

pub mod cancel;
pub mod cli;
pub mod exit;
pub mod fetch;
pub mod job;
pub mod oci;
pub mod plan;
pub mod preflight;
pub mod registry;
pub mod report;
pub mod settings;
pub mod sources;
pub mod spec;
pub mod spool;
pub mod store;
