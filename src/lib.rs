//! Pre-caches the images of an OpenShift upgrade in a node's CRI-O store.
//!
//! # The way of the data
//!
//! ```text
//! VersionSpec ─→ release image ─→ Payload ─select→ ImageRequest* ─┐                   settings, spec, catalog, release
//!      ├───────→ index images ──→ Catalog ─heads─→ ImageRequest* ─┤
//!      └───────→ additional images ──────────────→ ImageRequest* ─┤
//!                                                       ┌─────────┘
//!                  Registries::resolve → ResolvedImage* ┤                              registry
//!                  Store::inventory ───→ Inventory ─────┴─Plan::build→ Plan            store, plan
//!                                                                       │
//!            the kubelet's line ─verdict→ it fits, or exit code 3 ──────┤              preflight
//!                                                                       ↓
//!   Plan.blobs[i] ─fetch→ VerifiedBlob ─unpack→ StagedLayer ─commit_layers, commit_image→ the store
//!                 fetch, spool           store::unpack           store                      │
//!                                                                                           │
//!   Inventory, once more: is everything there? ←────────────────────────────────────────────┘
//!        └─→ Outcome ─→ Report, exit code                                               job, report, exit_code
//! ```
//!
//! Every arrow is one function, and every type is evidence of the step before: a [`VerifiedBlob`](spool::VerifiedBlob)
//! exists only after its digest matched, a [`StagedLayer`](store::StagedLayer) removes itself unless it is committed, a
//! [`Plan`](plan::Plan) is a value that can be printed, and `plan` shows what `run` would do. Images that name others go
//! the same way as every other, and what they name follows them. [`job`] has the pipeline on one screen.
//!
//! `verify` ends with the inventory, and reads every layer in it again; `verify --repair` goes the same way as `run`, with
//! the layers that are damaged taken for missing, and replaces them in their place.
//!
//! # Modules
//!
//! Each imports only from those above it; `tests/it/imports.rs` holds that.
//!
//! | module | what it knows |
//! |---|---|
//! | [`oci`] | references, digests, manifests, configs; raw bytes beside parsed values; platform choice |
//! | [`cancel`] | one stop signal and its reason |
//! | [`priority`] | priorities of a guest: CPU time, disk time |
//! | [`write_back`] | bytes to the disk ahead of a sync |
//! | [`report`] | events; log lines and bars; the report file and the termination message |
//! | [`spec`] | the version spec as keys and as documents, and its exclude patterns |
//! | [`spool`] | blobs on disk by digest, whole or begun |
//! | [`http`] | client defaults, backoff, `Retry-After` and causes of failures, for registries and the cluster's API |
//! | [`registry`] | registries.conf, logins, certificates, proxies, names, faults, the one retry loop |
//! | [`store`] | containers/storage: locks, layers, images, staging, unpacking, commit, check, mending |
//! | [`cluster`] | the cluster's API: threshold, proxy, authorities, deadline; annotations, events, pinned images |
//! | [`fetch`] | many blobs, bounded, each once |
//! | [`image_request`] | one image to pull, and who requests it |
//! | [`catalog`], [`release`] | what an operator catalog and a release's payload name |
//! | [`plan`] | what is to be done, decided once |
//! | [`preflight`] | whether it fits below the kubelet's line |
//! | [`exit_code`] | from failures to the one exit code |
//! | [`job`] | the pipeline |
//! | [`pinning`] | what keeps the images in the store afterwards |
//! | [`cli`], [`settings`] | flags as typed; flags, environment and host files as resolved |
//! | [`entrypoint`], [`signals`] | by which name it was started; what tells it to stop |
//!
//! # Invariants
//!
//! Most of them are about absence:
//!
//! - [`plan`], [`spec`] and [`oci`] do no I/O, read no clock and start nothing.
//! - [`store`], [`spool`], [`plan`], [`spec`], [`oci`] and [`report`] know no async runtime: sockets are tasks, hashing,
//!   unpacking and the store are threads, and a bounded channel is between them.
//! - [`registry`] does not know what a release is; [`release`] and [`catalog`] do not know what a layer's directory looks like.
//! - Only [`store`] writes below the graph root, only [`settings`] reads the environment, only [`exit_code`] chooses a number,
//!   only `main` exits.
//! - Bytes are unpacked only after their digest matched; a manifest is stored as the bytes that came.
//! - Nothing is visible in the store before it is whole: whoever looks sees the old state or the new one, also after
//!   `kill -9` and after power loss. No lock is held while anything is fetched or unpacked.
//! - What is said to be present was seen in the store after the last write; a run that missed something does not end
//!   with 0.
//! - Nothing from the network or the disk panics, exhausts memory, hangs or writes outside its place. Secrets are in no
//!   log, error or report.
//! - Nothing depends on the cluster's API: no run fails by it, and only the start waits for it, for a bounded time.
//! - No program is executed: no podman, no skopeo, no shell.

pub mod cancel;
pub mod catalog;
pub mod cli;
pub mod cluster;
pub mod entrypoint;
pub mod exit_code;
pub mod fetch;
pub mod http;
pub mod image_request;
pub mod job;
pub mod oci;
pub mod pinning;
pub mod plan;
pub mod preflight;
pub mod priority;
pub mod registry;
pub mod release;
pub mod report;
pub mod settings;
pub mod signals;
pub mod spec;
pub mod spool;
pub mod store;
pub mod write_back;

#[cfg(test)]
#[path = "../tests/it/notice.rs"]
mod notice;
