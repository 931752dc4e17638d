//! Defines the flags that take the release from a cluster.

use clap::Args;

/// How the release is found, if nothing names it.
#[derive(Clone, Debug, Default, Args)]
pub struct ReleaseFlags {
    /// Take the release that this cluster is asked to install
    ///
    /// From the ClusterVersion and the UpgradeConfig in the API of the cluster in which this pod runs. If there is nothing
    /// to install, nothing is pulled, and the exit code is 0. Unlike for other uses of the API, a run without it fails.
    #[arg(
        long,
        env = "SPOKE_PRECACHE_FROM_CLUSTER",
        hide_env = true,
        hide_short_help = true,
        conflicts_with = "no_cluster"
    )]
    pub from_cluster: bool,

    /// If no update is requested, take the newest recommended one
    ///
    /// Of the minor version that the channel of the ClusterVersion names. Needs `--from-cluster`, or a ClusterVersion in
    /// `--config`.
    #[arg(
        long,
        env = "SPOKE_PRECACHE_RECOMMENDED",
        hide_env = true,
        hide_short_help = true
    )]
    pub recommended: bool,
}
