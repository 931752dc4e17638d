//! Tests the verification of a release's signature.

mod running_release;
mod signature_server;
mod signing_key;
mod stores;
