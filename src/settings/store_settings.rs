//! Finds the store and the spool, for commands that need nothing else of the host.

use std::path::{Path, PathBuf};

use super::SettingsError;
use super::host_root::HostRoot;
use super::missing_paths;
use crate::cli::{Flags, HostPaths};
use crate::oci::Platform;
use crate::store::{StorageConf, require_root};

/// The graph root, unless storage.conf sets it.
const GRAPH_ROOT: &str = "var/lib/containers/storage";

/// The spool's directory beside the graph root; the runtime might delete it inside.
const SPOOL: &str = "spoke-precache";

/// Where the store and the spool are.
#[derive(Debug)]
pub struct StoreSettings {
    /// The graph root.
    pub graph_root: PathBuf,
    /// The store's options from the host's storage.conf and crio.conf.
    pub storage_conf: StorageConf,
    /// The spool's directory.
    pub spool: PathBuf,
    /// Which image of a multi-architecture image is used.
    pub platform: Platform,
}

impl StoreSettings {
    /// From the flags and the files of the host.
    pub fn resolve(flags: &Flags) -> Result<Self, SettingsError> {
        require_root()?;
        let host = HostRoot::find(&flags.host.registries);
        let (storage_conf, _) = host.storage(&flags.host)?;
        let graph_root = graph_root(&flags.host, &storage_conf, &host);
        missing_paths::check(&flags.host, &host, &graph_root)?;
        Ok(Self {
            spool: spool(&flags.host, &graph_root),
            graph_root,
            storage_conf,
            platform: platform(flags),
        })
    }
}

pub(super) fn graph_root(paths: &HostPaths, conf: &StorageConf, host: &HostRoot) -> PathBuf {
    match (&paths.graph_root, &conf.graph_root) {
        (Some(path), _) => path.clone(),
        (None, Some(path)) => host.join(path),
        (None, None) => host.join(GRAPH_ROOT),
    }
}

pub(super) fn spool(paths: &HostPaths, graph_root: &Path) -> PathBuf {
    let beside = || graph_root.parent().unwrap_or(Path::new("/")).join(SPOOL);
    paths.spool.clone().unwrap_or_else(beside)
}

pub(super) fn platform(flags: &Flags) -> Platform {
    flags
        .what
        .images
        .platform
        .clone()
        .unwrap_or_else(Platform::of_this_node)
}
