//! Defines the flags for deltas.

use clap::Args;

use crate::job::DeltaLocation;

/// Whether layers are made from deltas, and where deltas are.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Deltas")]
pub struct DeltaFlags {
    /// Download whole layers, and do not look for deltas
    ///
    /// A delta makes a layer from files of old images that the node still has. Layers in the format `zstd:chunked`, of which
    /// only some ranges would be needed, are downloaded whole too.
    #[arg(long, env = "SPOKE_PRECACHE_NO_DELTAS")]
    #[arg(hide_env = true, hide_short_help = true)]
    pub no_deltas: bool,

    /// Also look for deltas here: a repository, or one index (repeatable)
    ///
    /// With a tag or a digest it is the index of a pair of releases. Otherwise it is a repository, in which indexes refer to
    /// the images. [default: only the repositories of the images]
    #[arg(long, value_name = "REF", env = "SPOKE_PRECACHE_DELTAS")]
    #[arg(hide_env = true, value_delimiter = ',')]
    pub deltas: Vec<DeltaLocation>,
}
