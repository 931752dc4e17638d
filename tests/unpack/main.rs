//! Unpacking compared with podman's, and with hostile layers.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

mod corpus;
mod differential;
mod hostile;
mod ours;
mod random;
mod speed;
mod stock;
mod tar;
mod tree;
