//! The host's files, found under the host root where CRI-O finds them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::SettingsError;
use crate::cli::HostPaths;
use crate::registry::{ConfText, Pem, RegistrySettings, SystemRoots};
use crate::store::{HostState, StorageConf};

/// Where TALM's Job mounts the host's directories.
const HOST_MOUNT: &str = "/host";

/// A directory that every host with CRI-O has; tells a mounted host root from an empty directory.
const HOST_MARK: &str = "var/lib/containers";

/// The node's pull secret, which CRI-O uses too.
const PULL_SECRET: &str = "var/lib/kubelet/config.json";

/// Bundles of certificate authorities as RHCOS and Debian have them.
const CA_BUNDLES: [&str; 2] = [
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/certs/ca-certificates.crt",
];

/// Directories with a directory of certificates for each registry.
const CERTS_DIRS: [&str; 2] = ["etc/containers/certs.d", "etc/docker/certs.d"];

/// No configuration file of a host comes near; a pull secret with a hundred registries has a few dozen KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The run root if storage.conf names none.
const RUN_ROOT: &str = "run/containers/storage";

/// Our own mounts.
const MOUNT_TABLE: &str = "/proc/self/mountinfo";

/// Where the host's file system is seen.
pub(super) struct HostRoot(PathBuf);

impl HostRoot {
    pub(super) fn find(paths: &HostPaths) -> Self {
        match &paths.host_root {
            Some(root) => Self(root.clone()),
            None if Path::new(HOST_MOUNT).join(HOST_MARK).is_dir() => Self(HOST_MOUNT.into()),
            None => Self("/".into()),
        }
    }

    /// A path of the host as we see it.
    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn storage_conf(&self, paths: &HostPaths) -> Result<StorageConf, SettingsError> {
        let Some((path, text)) = self.named_or_found(
            paths.storage_conf.as_deref(),
            &["etc/containers/storage.conf", "usr/share/containers/storage.conf"],
        )?
        else {
            return Ok(StorageConf::default());
        };
        StorageConf::parse(&text).map_err(|source| SettingsError::StorageConf { path, source })
    }

    /// Where it is seen which layers are in use.
    pub(super) fn state(&self, conf: &StorageConf) -> HostState {
        let run_root = conf.run_root.as_deref().unwrap_or(Path::new(RUN_ROOT));
        HostState {
            run_root: self.join(run_root),
            mount_table: MOUNT_TABLE.into(),
            proc: self.join("proc"),
        }
    }

    pub(super) fn registries(
        &self,
        paths: &HostPaths,
        named_authfile: Option<PathBuf>,
    ) -> Result<RegistrySettings, SettingsError> {
        let main = self.named_or_found(
            paths.registries_conf.as_deref(),
            &[
                "etc/containers/registries.conf",
                "usr/share/containers/registries.conf",
            ],
        )?;
        let dir = match &paths.registries_conf_dir {
            Some(dir) => dir.clone(),
            None => self.join("etc/containers/registries.conf.d"),
        };
        let certs_dirs = match &paths.certs_dir {
            Some(dir) => vec![dir.clone()],
            None => CERTS_DIRS.iter().map(|dir| self.join(dir)).collect(),
        };
        // One that was named has to be there: whoever reads it says so if it is not.
        let authfile = named_authfile.or_else(|| Some(self.join(PULL_SECRET)).filter(|path| path.exists()));
        let mut registries_conf: Vec<ConfText> = main
            .map(|(path, text)| ConfText { path, text })
            .into_iter()
            .collect();
        registries_conf.extend(drop_ins(&dir)?);
        Ok(RegistrySettings {
            registries_conf,
            auth_files: authfile.into_iter().collect(),
            system_roots: self.system_roots()?,
            certs_dirs,
            ..RegistrySettings::default()
        })
    }

    /// The host's bundle, if it has one where RHCOS or Debian does, else whatever this container trusts.
    fn system_roots(&self) -> Result<SystemRoots, SettingsError> {
        for path in CA_BUNDLES.iter().map(|bundle| self.join(bundle)) {
            if let Some(text) = read_if_there(&path)? {
                return Ok(SystemRoots::Pem(vec![Pem {
                    path,
                    bytes: text.into_bytes(),
                }]));
            }
        }
        Ok(SystemRoots::Native)
    }

    /// The file that was named, which must be there, or the first that is.
    fn named_or_found(
        &self,
        named: Option<&Path>,
        places: &[&str],
    ) -> Result<Option<(PathBuf, String)>, SettingsError> {
        if let Some(path) = named {
            let text = read(path).map_err(|source| SettingsError::Unreadable {
                path: path.to_owned(),
                source,
            })?;
            return Ok(Some((path.to_owned(), text)));
        }
        for path in places.iter().map(|place| self.join(place)) {
            if let Some(text) = read_if_there(&path)? {
                return Ok(Some((path, text)));
            }
        }
        Ok(None)
    }
}

/// `*.conf`, in the order of their names, as containers/image merges them.
fn drop_ins(dir: &Path) -> Result<Vec<ConfText>, SettingsError> {
    let unreadable = |source| SettingsError::HostFile {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let paths: Result<Vec<PathBuf>, io::Error> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(unreadable)?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
    paths.sort();
    let texts = paths.into_iter().map(|path| match read(&path) {
        Ok(text) => Ok(ConfText { path, text }),
        Err(source) => Err(SettingsError::HostFile { path, source }),
    });
    texts.collect()
}

fn read_if_there(path: &Path) -> Result<Option<String>, SettingsError> {
    match read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(SettingsError::HostFile {
            path: path.to_owned(),
            source,
        }),
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(FILE_LIMIT + 1).read_to_string(&mut text)?;
    if read as u64 > FILE_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {FILE_LIMIT} bytes"),
        ));
    }
    Ok(text)
}
