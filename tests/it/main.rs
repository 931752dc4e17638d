//! Tests the program as a whole, against a registry that fails on command, with podman and skopeo as the reference.
//!
//! One binary, so that it links once. `image`, `registry` and `link` are helpers that examples and benches include too;
//! `test_node` with `conditions`, `stock`, `failing_filesystem`, `compare` and `needs` are helpers of tests alone. The other
//! modules are tests. Tests that need root or a tool print why they are skipped; with `CI=true` they fail. `SPOKE_LONG=1` adds
//! the tests that take minutes. `SPOKE_STOCK_ROOT=$(.ci/stock-trixie)` uses the podman of another Debian.

#![allow(clippy::unwrap_used)]

mod compare;
mod failing_filesystem;
mod image;
mod link;
mod needs;
mod notice;
mod operators;
mod registry;
mod stock;
mod store;
mod test_node;
mod unpack;

mod additional_stores;
mod alongside;
mod catalog;
mod cluster;
mod cluster_input;
mod config_file;
mod container;
mod crash;
mod credentials;
mod deadline;
mod debug_sections;
mod delta_creation;
mod deltas;
mod disk;
mod disk_errors;
mod disk_full;
mod documentation;
mod early_layers;
mod entrypoint;
mod exit_codes;
mod export;
mod faults;
mod go_json;
mod helper_checks;
mod history;
mod host_storage;
mod hostile_content;
mod image_names;
mod imports;
mod invalid_settings;
mod io_budget;
mod leftovers;
mod limit_rate;
mod manifests;
mod media;
mod network;
mod oci_delta;
mod only_used;
mod operator_share;
mod page_cache;
mod pinning;
mod plan_estimates;
mod podman_parity;
mod podman_service;
mod policy_parity;
mod power_loss;
mod random_stops;
mod release;
mod release_signature;
mod resume;
mod reuse;
mod root_entry;
mod scale;
mod signature_policy;
mod spool_disk_errors;
mod talm;
mod termination;
mod upgrade_at;
mod verify;
mod wait_reasons;
mod zstd_chunked;
