//! Verifies the signature of a release, as the cluster-version operator does before an update.
//!
//! ```text
//! keyrings    --release-keys, else VerificationConfigMap of the running release, else of the cluster     inputs, keyring_file,
//!                                                                    verification_config_map, running_release
//! signatures  --signature-store, else ConfigMaps of the cluster, then signature stores                    signature_store
//! each signature → openpgp → Payload,       for each keyring without a valid signature → Verdict          examination, verdict
//! ```
//!
//! The keys never come from the release that is verified. Every keyring needs a valid signature, and one signature may
//! satisfy several. The order and the rules are those of library-go's `pkg/verify` and of the operator's `pkg/cvo`; the
//! differences are stated where they are made.
//!
//! A release is refused only if it is known to have no valid signature: some store has answered, or some signature was
//! found. Without keys, stores or answers it is not verifiable, which is another verdict.

mod examination;
mod inputs;
mod keyring_file;
mod reasons;
mod running_release;
mod signature_download;
mod signature_store;
#[cfg(test)]
mod tests;
mod verdict;
mod verification;
mod verification_config_map;

pub use inputs::Inputs;
pub use keyring_file::{KeyringFileError, NamedKeyring, read_keyring_files};
pub use running_release::find as find_verification_config_map;
pub use signature_download::download;
pub use signature_store::{StoreUrl, StoreUrlError};
pub use verdict::{Satisfied, Verdict};
pub use verification::verify;
pub use verification_config_map::{VerificationConfigMap, VerificationConfigMapError};
