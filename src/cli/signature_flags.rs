//! Defines the flags for the signatures of releases and images.

use std::path::PathBuf;

use clap::Args;

use crate::release_signature::StoreUrl;

/// How the signatures of the release and of images are checked.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Signatures")]
pub struct SignatureFlags {
    /// Signature policy: policy.json
    ///
    /// [default: crio.conf's signature_policy, else root/.config/containers, then etc/containers]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_POLICY")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub policy: Option<PathBuf>,

    /// Keyring for the release's signature (repeatable)
    ///
    /// OpenPGP, armored or binary. Every keyring must have a key that signed the release. [default: the keyrings of the
    /// release that the cluster runs]
    #[arg(long, value_name = "FILE", env = "SPOKE_PRECACHE_RELEASE_KEYS")]
    #[arg(hide_env = true, hide_short_help = true, value_delimiter = ',')]
    pub release_keys: Vec<PathBuf>,

    /// URL with signatures of releases: https, http or file (repeatable)
    ///
    /// [default: the cluster's signature ConfigMaps and stores, else those of the release that the cluster runs]
    #[arg(
        long = "signature-store",
        value_name = "URL",
        env = "SPOKE_PRECACHE_SIGNATURE_STORE"
    )]
    #[arg(hide_env = true, hide_short_help = true, value_delimiter = ',')]
    pub signature_stores: Vec<StoreUrl>,

    /// Fail if the release's signature cannot be verified
    ///
    /// Without it, only a wrong signature is a failure. Missing keys and unreachable signature stores are a warning.
    #[arg(long, env = "SPOKE_PRECACHE_REQUIRE_RELEASE_SIGNATURE")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub require_release_signature: bool,
}
