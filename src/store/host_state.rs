//! States where the host keeps its state of running containers.

use std::path::PathBuf;

/// Paths to the host's state of running containers, as this process sees them.
#[derive(Clone, Debug, Default)]
pub struct HostState {
    /// The run root.
    pub run_root: PathBuf,
    /// The mount table of this process.
    pub mount_table: PathBuf,
    /// The host's `/proc`: a mount table for each process, without which only this process's mounts count, and `uptime`.
    pub proc: PathBuf,
}
