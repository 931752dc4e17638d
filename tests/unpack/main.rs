//! Unpacking compared with podman's, and with hostile layers.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

mod differential;
mod ours;
mod stock;
mod tar;
mod tree;
