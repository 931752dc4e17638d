//! Finds the directory where the host's root file system is mounted, and files below it.

use std::env;
use std::path::{Path, PathBuf};

use super::SettingsError;
use super::host_files::{read, read_if_present};
use crate::cli::RegistryPaths;
use crate::registry::ConfText;

/// Where TALM's Job mounts the host's directories.
const HOST_MOUNT: &str = "/host";

/// A directory of every host with CRI-O; an empty directory at [`HOST_MOUNT`] does not have it.
const HOST_MARK: &str = "var/lib/containers";

/// The path of the host's root file system: `/host` in TALM's Job, `/` on the node itself.
#[derive(Clone, Debug)]
pub(super) struct HostRoot(pub(super) PathBuf);

impl HostRoot {
    pub(super) fn find(paths: &RegistryPaths) -> Self {
        match &paths.host_root {
            Some(root) => Self(root.clone()),
            None if Path::new(HOST_MOUNT).join(HOST_MARK).is_dir() => Self(HOST_MOUNT.into()),
            None => Self("/".into()),
        }
    }

    /// Whether this is a host's root and not an empty directory. A container's root has `etc` too, because the kubelet
    /// creates it.
    pub(super) fn is_host(&self) -> bool {
        let [etc, var_lib] = ["etc", "var/lib"].map(|dir| self.join(dir).is_dir());
        match self.0 == Path::new("/") {
            true => etc && var_lib,
            false => etc || var_lib,
        }
    }

    /// The path at which this program finds a path of the host.
    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The home of a user other than root, for `export` and `delta create` on a machine that is no node. As skopeo does, they
    /// look for the user's settings there: root's may be unreadable.
    pub(super) fn user_home(&self) -> Option<PathBuf> {
        let is_user = self.0 == Path::new("/") && !rustix::process::geteuid().is_root();
        env::var_os("HOME").filter(|_| is_user).map(PathBuf::from)
    }

    /// The directories of the settings of containers/image on the host: the user's, then the system's. CRI-O's user is root.
    pub(super) fn containers_dirs(&self) -> [PathBuf; 2] {
        let home = self.user_home().unwrap_or_else(|| "root".into());
        [home.join(".config/containers"), "etc/containers".into()]
    }

    /// A file of the host, if it exists.
    pub(super) fn file(&self, path: impl AsRef<Path>) -> Result<Option<ConfText>, SettingsError> {
        let path = self.join(path);
        Ok(read_if_present(&path)?.map(|text| ConfText { path, text }))
    }

    /// The file of a flag, which must exist, or else the first of `paths` that exists on the host.
    pub(super) fn named_or_first(
        &self,
        named: Option<&Path>,
        paths: &[impl AsRef<Path>],
    ) -> Result<Option<ConfText>, SettingsError> {
        if let Some(path) = named {
            let text = read(path).map_err(|source| SettingsError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
            let path = path.to_owned();
            return Ok(Some(ConfText { path, text }));
        }
        for path in paths {
            if let Some(file) = self.file(path)? {
                return Ok(Some(file));
            }
        }
        Ok(None)
    }
}
