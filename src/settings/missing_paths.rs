//! Refuses a host root, graph root or spool that does not exist and was probably mistyped.
//!
//! A new node has `/var/lib/containers` but no graph root in it yet. Anywhere else a missing graph root is probably a
//! mistake, and images that are stored there are useless.

use std::path::{Path, PathBuf};

use super::SettingsError;
use super::host_root::HostRoot;
use crate::cli::HostPaths;

/// The directory in which a store may be created.
const CONTAINERS: &str = "containers";

/// Returns an error for the first directory that is missing and must not be created.
pub(super) fn check(paths: &HostPaths, host: &HostRoot, graph_root: &Path) -> Result<(), SettingsError> {
    if paths.create {
        return Ok(());
    }
    let missing = |what, path: &Path| {
        let path: PathBuf = path.to_owned();
        Err(SettingsError::Missing { what, path })
    };
    if let Some(root) = paths
        .registries
        .host_root
        .as_deref()
        .filter(|root| is_missing(root))
    {
        return missing("host root", root);
    }
    let is_named = paths.graph_root.is_some();
    if is_missing(graph_root) && !is_in_containers(graph_root) && (is_named || !host.is_host()) {
        return missing("graph root", graph_root);
    }
    match paths.spool.as_deref() {
        Some(spool) if is_missing(spool) && spool.parent().is_some_and(is_missing) => missing("spool", spool),
        _ => Ok(()),
    }
}

fn is_in_containers(path: &Path) -> bool {
    let parent = path.parent().filter(|parent| parent.ends_with(CONTAINERS));
    parent.is_some_and(Path::is_dir)
}

/// False if the path cannot be checked; using it later reports why.
fn is_missing(path: &Path) -> bool {
    // The parent of a relative path may be empty.
    !path.as_os_str().is_empty() && matches!(path.try_exists(), Ok(false))
}
