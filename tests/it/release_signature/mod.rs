//! Tests the verification of a release's signature.

mod running_release;
mod runs;
pub(crate) mod signature_server;
pub(crate) mod signing_key;
mod stores;
