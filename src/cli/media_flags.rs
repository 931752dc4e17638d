//! Defines the flag for local media.

use std::path::PathBuf;

use clap::Args;

/// Where blobs are copied from before they are downloaded.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Media")]
pub struct MediaFlags {
    /// Take images from this directory or archive first (repeatable)
    ///
    /// An OCI layout, oc-mirror's archives or cache, a registry's storage, a directory of `oc image mirror` or `podman save`,
    /// or another node's spool. Only what it lacks is downloaded. An image by tag needs one request.
    /// [default: /var/lib/spoke-precache/media, and removable disks with an export]
    #[arg(long, value_name = "PATH", env = "SPOKE_PRECACHE_BLOBS_FROM")]
    #[arg(hide_env = true, hide_short_help = true, value_delimiter = ',')]
    pub blobs_from: Vec<PathBuf>,
}
