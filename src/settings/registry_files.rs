//! Finds the registry settings in the host's files: registries.conf, registries.d, logins, certificate authorities and DNS.

use std::path::{Path, PathBuf};

use super::SettingsError;
use super::crio_conf::CrioConf;
use super::host_files::{drop_ins, is_present, read_if_present};
use super::host_root::HostRoot;
use crate::cli::RegistryPaths;
use crate::registry::{ConfText, DnsFiles, Pem, RegistrySettings, SystemRoots};

/// The node's pull secret; CRI-O uses it too.
const PULL_SECRET: &str = "var/lib/kubelet/config.json";

/// Bundles of certificate authorities of RHCOS and Debian.
const CA_BUNDLES: [&str; 2] = [
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/certs/ca-certificates.crt",
];

/// Directories with a directory of certificates for each registry.
const CERTS_DIRS: [&str; 2] = ["etc/containers/certs.d", "etc/docker/certs.d"];

/// registries.conf; the directory with the suffix `.d` contains its drop-ins. CRI-O passes no path to containers/image and
/// runs as root, so root's own file replaces the system's. CRI-O does not read the vendor's file in usr/share, which podman 6
/// reads (1.37 with containers/image 5.38).
const REGISTRIES_CONF: &str = "registries.conf";

/// The directory of registries.d. Root's own replaces the system's, even if it is empty (`docker/registries_d.go`).
const REGISTRIES_D: &str = "registries.d";

impl HostRoot {
    /// The settings for requests to registries.
    pub(super) fn registries(
        &self,
        paths: &RegistryPaths,
        registries_d: Option<&Path>,
        named_authfile: Option<PathBuf>,
        crio: &CrioConf,
    ) -> Result<RegistrySettings, SettingsError> {
        let certs_dirs = match &paths.certs_dir {
            Some(dir) => vec![dir.clone()],
            None => CERTS_DIRS.iter().map(|dir| self.join(dir)).collect(),
        };
        let auth_files = match named_authfile {
            // It must exist; reading it fails otherwise.
            Some(path) => vec![path],
            None => self.auth_files(crio),
        };
        Ok(RegistrySettings {
            registries_conf: self.registries_conf(paths)?,
            registries_d: self.registries_d(registries_d)?,
            user_home: self.user_home(),
            host_root: self.0.clone(),
            auth_files,
            system_roots: self.system_roots()?,
            certs_dirs,
            ..RegistrySettings::default()
        })
    }

    /// The existing files, in the order in which a pull uses them: the kubelet passes CRI-O the login of its own file for an
    /// image; only without one, CRI-O reads `global_auth_file` (`server.go`).
    fn auth_files(&self, crio: &CrioConf) -> Vec<PathBuf> {
        let mut files = vec![self.join(PULL_SECRET)];
        files.extend(crio.global_auth_file.as_ref().map(|path| self.join(path)));
        files.dedup();
        files.retain(|path| is_present(path));
        files
    }

    /// registries.conf, or an empty text if it does not exist, and its drop-ins.
    fn registries_conf(&self, paths: &RegistryPaths) -> Result<Vec<ConfText>, SettingsError> {
        let named = paths.registries_conf.as_deref();
        let [users, systems] = self.containers_dirs();
        let files = [&users, &systems].map(|dir| dir.join(REGISTRIES_CONF));
        let main = match self.named_or_first(named, &files)? {
            Some(file) => file,
            None => ConfText {
                path: self.join(systems.join(REGISTRIES_CONF)),
                text: String::new(),
            },
        };
        let drop_ins_below = |dir: &Path| self.join(dir).join(format!("{REGISTRIES_CONF}.d"));
        let dirs = match &paths.registries_conf_dir {
            Some(dir) => vec![dir.clone()],
            None if named.is_none() && main.path.starts_with(self.join(&users)) => {
                vec![drop_ins_below(&users)]
            }
            None => vec![drop_ins_below(&systems), drop_ins_below(&users)],
        };
        let mut files = vec![main];
        for dir in dirs {
            files.extend(drop_ins(&dir, ".conf")?);
        }
        Ok(files)
    }

    /// The files of registries.d; none if there is no such directory.
    fn registries_d(&self, named: Option<&Path>) -> Result<Vec<ConfText>, SettingsError> {
        let [users, systems] = self
            .containers_dirs()
            .map(|dir| self.join(dir.join(REGISTRIES_D)));
        let dir = match named {
            Some(dir) => dir.to_owned(),
            None if is_present(&users) => users,
            None => systems,
        };
        drop_ins(&dir, ".yaml")
    }

    /// The host's bundle of authorities where RHCOS or Debian have it, or else the one of this container.
    fn system_roots(&self) -> Result<SystemRoots, SettingsError> {
        for path in CA_BUNDLES.iter().map(|bundle| self.join(bundle)) {
            if let Some(text) = read_if_present(&path)? {
                return Ok(SystemRoots::Pem(vec![Pem {
                    path,
                    bytes: text.into_bytes(),
                }]));
            }
        }
        Ok(SystemRoots::Native)
    }

    /// The node's files for resolving names, if they differ from this process's.
    pub(super) fn dns_files(&self) -> Option<DnsFiles> {
        (self.0 != Path::new("/")).then(|| DnsFiles {
            hosts: self.join("etc/hosts"),
            resolv_conf: self.join("etc/resolv.conf"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn registries_d_is_read_from_one_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let host = HostRoot(dir.path().to_owned());
        let read = |named: Option<&Path>| {
            let files = host.registries_d(named).expect("readable");
            let shown = files.iter().map(|file| {
                let path = file.path.strip_prefix(dir.path()).unwrap_or(&file.path);
                format!("{}: {}", path.display(), file.text)
            });
            shown.collect::<Vec<_>>().join(", ")
        };
        let write = |path: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, "{}").expect("a file");
        };
        assert_eq!(read(None), "");

        write("etc/containers/registries.d/b.yaml");
        write("etc/containers/registries.d/a.yaml");
        write("etc/containers/registries.d/a.yml");
        let both = "etc/containers/registries.d/a.yaml: {}, etc/containers/registries.d/b.yaml: {}";
        assert_eq!(read(None), both);

        let roots = "root/.config/containers/registries.d";
        fs::create_dir_all(dir.path().join(roots)).expect("a directory");
        assert_eq!(read(None), "", "root's own directory counts even if it is empty");
        write("root/.config/containers/registries.d/c.yaml");
        assert_eq!(read(None), "root/.config/containers/registries.d/c.yaml: {}");

        let systems = dir.path().join("etc/containers/registries.d");
        assert_eq!(read(Some(&systems)), both);
    }
}
