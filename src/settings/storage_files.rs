//! Finds the store's settings in the host's storage.conf and CRI-O's configuration.

use std::fs;
use std::path::{Path, PathBuf};

use super::SettingsError;
use super::crio_conf::{self, CrioConf};
use super::host_files::{drop_ins, read};
use super::host_root::HostRoot;
use crate::cli::HostPaths;
use crate::registry::ConfText;
use crate::store::{HostState, StorageConf, StoreOptions};

/// The paths of storage.conf, the administrator's first. containers/storage reads the first that exists, and up to 1.62
/// nothing else (`options.go`: `loadDefaultStoreOptions`).
const STORAGE_CONF: [&str; 2] = ["etc/containers/storage.conf", "usr/share/containers/storage.conf"];

/// Directories of its drop-ins, which containers/storage reads from 1.63 on (`configfile`: `getDropInPaths`).
const STORAGE_CONF_DROP_INS: [&str; 4] = [
    "usr/share/containers/storage.conf.d",
    "usr/share/containers/storage.rootful.conf.d",
    "etc/containers/storage.conf.d",
    "etc/containers/storage.rootful.conf.d",
];

/// The run root, unless storage.conf sets it.
const RUN_ROOT: &str = "run/containers/storage";

/// The mounts of this process.
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

impl HostRoot {
    /// The settings of the store, and CRI-O's other settings.
    pub(super) fn storage(&self, paths: &HostPaths) -> Result<(StorageConf, CrioConf), SettingsError> {
        let mut options = StoreOptions::default();
        let main = self.named_or_first(paths.storage_conf.as_deref(), &STORAGE_CONF)?;
        if let Some(ConfText { path, text }) = main {
            let added = options.add_storage_conf(&text, &path);
            added.map_err(|source| SettingsError::StorageConf { path, source })?;
        }
        if paths.storage_conf.is_none() {
            self.refuse_drop_ins(&options)?;
        }
        let mut crio = CrioConf::default();
        let files = crio_conf::files(&self.0);
        for path in files.map_err(|(path, source)| SettingsError::CrioFile { path, source })? {
            let unreadable = |source| SettingsError::CrioFile {
                path: path.clone(),
                source,
            };
            let text = read(&path).map_err(unreadable)?;
            let added = crio.add(&text, &path, &mut options);
            added.map_err(|source| SettingsError::CrioConf { path, source })?;
        }
        if paths.graph_root.is_some() {
            options.forget_graph_root();
        }
        let mut conf = options.resolve();
        for store in &mut conf.additional_image_stores {
            *store = self.join(&*store);
        }
        Ok((conf, crio))
    }

    /// Refuses drop-ins that change the settings: whether CRI-O reads them depends on its version of containers/storage,
    /// which is unknown here.
    fn refuse_drop_ins(&self, main: &StoreOptions) -> Result<(), SettingsError> {
        for dir in STORAGE_CONF_DROP_INS {
            for ConfText { path, text } in drop_ins(&self.join(dir), ".conf")? {
                let mut options = main.clone();
                let added = options.add_storage_conf(&text, &path);
                added.map_err(|source| SettingsError::StorageConf {
                    path: path.clone(),
                    source,
                })?;
                if options.resolve() != main.resolve() {
                    return Err(SettingsError::StorageDropIn { path });
                }
            }
        }
        Ok(())
    }

    /// The files that list the layers in use.
    pub(super) fn state(&self, conf: &StorageConf) -> HostState {
        let run_root = conf.run_root.as_deref().unwrap_or(Path::new(RUN_ROOT));
        HostState {
            run_root: self.join(self.without_var_run(run_root)),
            mount_table: MOUNT_TABLE.into(),
            proc: self.join("proc"),
        }
    }

    /// Replaces `/var/run`, which nodes' storage.conf may contain, by `/run`: on the host it is a symlink, and the hub's Job
    /// mounts only the latter.
    fn without_var_run(&self, path: &Path) -> PathBuf {
        let is_dir = fs::symlink_metadata(self.join("var/run")).is_ok_and(|metadata| metadata.is_dir());
        match path.strip_prefix("/var/run") {
            Ok(rest) if !is_dir => Path::new("/run").join(rest),
            _ => path.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::RegistryPaths;

    /// The hub's Job mounts `/run` but not `/var/run`, where MCO's storage.conf has the run root up to 4.16.
    #[test]
    fn var_run_is_run_unless_it_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot(dir.path().to_owned());
        let run_root = |path: &str| {
            let conf = StorageConf {
                run_root: Some(path.into()),
                ..StorageConf::default()
            };
            let found = host.state(&conf).run_root;
            found.strip_prefix(dir.path()).unwrap().to_owned()
        };
        for (path, expected) in [
            ("/var/run/containers/storage", "run/containers/storage"),
            ("/run/x", "run/x"),
            ("/var/running", "var/running"),
        ] {
            assert_eq!(run_root(path), Path::new(expected));
        }
        fs::create_dir_all(dir.path().join("var/run")).unwrap();
        assert_eq!(run_root("/var/run/x"), Path::new("var/run/x"));
    }

    /// On the host such a link has a target, and a run without that file would use another store or other mirrors.
    #[test]
    fn a_link_with_a_target_outside_the_host_root_is_an_error() {
        for path in [
            "etc/containers/storage.conf",
            "etc/containers/storage.conf.d",
            "etc/crio/crio.conf",
            "etc/crio/crio.conf.d",
            "etc/containers/registries.conf",
            "etc/containers/registries.conf.d",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let host = HostRoot(dir.path().to_owned());
            let link = dir.path().join(path);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("/nowhere/on/this/machine", &link).unwrap();
            let read = host
                .storage(&HostPaths::default())
                .and_then(|(_, crio)| host.registries(&RegistryPaths::default(), None, None, &crio));
            let error = read.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(link.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn only_the_administrators_storage_conf_is_read_if_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot(dir.path().to_owned());
        let graph_root = || host.storage(&HostPaths::default()).unwrap().0.graph_root;
        assert_eq!(graph_root(), None);
        for (directory, graphroot) in [("usr/share", "/vendor"), ("etc", "/admin")] {
            let file = dir.path().join(directory).join("containers/storage.conf");
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("[storage]\ngraphroot = \"{graphroot}\"")).unwrap();
            assert_eq!(graph_root(), Some(graphroot.into()));
        }
        fs::write(dir.path().join("etc/containers/storage.conf"), "").unwrap();
        assert_eq!(graph_root(), None);
    }
}
