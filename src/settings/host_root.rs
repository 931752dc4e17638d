//! The host's files, found under the host root where CRI-O finds them.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::SettingsError;
use super::crio_conf::{self, CrioConf};
use crate::cli::HostPaths;
use crate::registry::{ConfText, DnsFiles, Pem, RegistrySettings, SystemRoots};
use crate::store::{HostState, StorageConf, StoreOptions};

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

/// Where containers/storage looks, the administrator's file first; the first that exists is read, and up to 1.62 nothing
/// else (`options.go`: `loadDefaultStoreOptions`).
const STORAGE_CONF: [&str; 2] = ["etc/containers/storage.conf", "usr/share/containers/storage.conf"];

/// Directories of drop-ins to it, which containers/storage reads from 1.63 (`configfile`: `getDropInPaths`).
const STORAGE_CONF_DROP_INS: [&str; 4] = [
    "usr/share/containers/storage.conf.d",
    "usr/share/containers/storage.rootful.conf.d",
    "etc/containers/storage.conf.d",
    "etc/containers/storage.rootful.conf.d",
];

/// No configuration file of a host comes near; a pull secret with a hundred registries has a few dozen KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// Where registries.conf lies, its drop-ins in a directory of that name with `.d`. CRI-O names no file to containers/image
/// and is root, so root's own stands in for the system's. The vendor's in usr/share, which podman 6 reads, CRI-O does not
/// (1.37 with containers/image 5.38).
const REGISTRIES_CONF: &str = "etc/containers/registries.conf";
const ROOTS_REGISTRIES_CONF: &str = "root/.config/containers/registries.conf";

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

    /// Whether it looks like a host's, and not like an empty directory. The root of a container has `etc` too, for the
    /// kubelet makes it.
    pub(super) fn is_host(&self) -> bool {
        let [etc, var_lib] = ["etc", "var/lib"].map(|dir| self.join(dir).is_dir());
        match self.0 == Path::new("/") {
            true => etc && var_lib,
            false => etc || var_lib,
        }
    }

    /// A path of the host as we see it.
    pub(super) fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// What the host's files say of the store, and what else CRI-O's say.
    pub(super) fn storage(&self, paths: &HostPaths) -> Result<(StorageConf, CrioConf), SettingsError> {
        let mut options = StoreOptions::default();
        let main = self.named_or_found(paths.storage_conf.as_deref(), &STORAGE_CONF)?;
        if let Some((path, text)) = main {
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

    /// Drop-ins that matter. Which version of containers/storage this node's CRI-O has is not seen from here, and so not
    /// whether it reads them.
    fn refuse_drop_ins(&self, main: &StoreOptions) -> Result<(), SettingsError> {
        for dir in STORAGE_CONF_DROP_INS {
            for ConfText { path, text } in drop_ins(&self.join(dir))? {
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

    /// Where it is seen which layers are in use.
    pub(super) fn state(&self, conf: &StorageConf) -> HostState {
        let run_root = conf.run_root.as_deref().unwrap_or(Path::new(RUN_ROOT));
        HostState {
            run_root: self.join(self.without_var_run(run_root)),
            mount_table: MOUNT_TABLE.into(),
            proc: self.join("proc"),
        }
    }

    /// `/var/run` is a symlink to `/run`, as nodes' storage.conf has it; the hub's Job mounts only the latter.
    fn without_var_run(&self, path: &Path) -> PathBuf {
        let is_dir = fs::symlink_metadata(self.join("var/run")).is_ok_and(|metadata| metadata.is_dir());
        match path.strip_prefix("/var/run") {
            Ok(rest) if !is_dir => Path::new("/run").join(rest),
            _ => path.to_owned(),
        }
    }

    pub(super) fn registries(
        &self,
        paths: &HostPaths,
        named_authfile: Option<PathBuf>,
        crio: &CrioConf,
    ) -> Result<RegistrySettings, SettingsError> {
        let certs_dirs = match &paths.certs_dir {
            Some(dir) => vec![dir.clone()],
            None => CERTS_DIRS.iter().map(|dir| self.join(dir)).collect(),
        };
        let auth_files = match named_authfile {
            // It has to be there: whoever reads it says so if it is not.
            Some(path) => vec![path],
            None => self.auth_files(crio),
        };
        Ok(RegistrySettings {
            registries_conf: self.registries_conf(paths)?,
            auth_files,
            system_roots: self.system_roots()?,
            certs_dirs,
            ..RegistrySettings::default()
        })
    }

    /// Those that are there, in the order in which a pull comes to them: the kubelet hands CRI-O what its own file has
    /// for an image; only where that has nothing, CRI-O looks into `global_auth_file` (`server.go`).
    fn auth_files(&self, crio: &CrioConf) -> Vec<PathBuf> {
        let mut files = vec![self.join(PULL_SECRET)];
        files.extend(crio.global_auth_file.as_ref().map(|path| self.join(path)));
        files.dedup();
        files.retain(|path| is_there(path));
        files
    }

    /// registries.conf, an empty one if there is none, and its drop-ins.
    fn registries_conf(&self, paths: &HostPaths) -> Result<Vec<ConfText>, SettingsError> {
        let named = paths.registries_conf.as_deref();
        let main = match self.named_or_found(named, &[ROOTS_REGISTRIES_CONF, REGISTRIES_CONF])? {
            Some((path, text)) => ConfText { path, text },
            None => ConfText {
                path: self.join(REGISTRIES_CONF),
                text: String::new(),
            },
        };
        let drop_ins_of = |place| self.join(format!("{place}.d"));
        let dirs = match &paths.registries_conf_dir {
            Some(dir) => vec![dir.clone()],
            None if named.is_none() && main.path == self.join(ROOTS_REGISTRIES_CONF) => {
                vec![drop_ins_of(ROOTS_REGISTRIES_CONF)]
            }
            None => vec![drop_ins_of(REGISTRIES_CONF), drop_ins_of(ROOTS_REGISTRIES_CONF)],
        };
        let mut files = vec![main];
        for dir in dirs {
            files.extend(drop_ins(&dir)?);
        }
        Ok(files)
    }

    /// A file of the host, if it is there.
    pub(super) fn text(&self, path: &str) -> Result<Option<ConfText>, SettingsError> {
        let path = self.join(path);
        Ok(read_if_there(&path)?.map(|text| ConfText { path, text }))
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

    /// Where the node looks names up, if that is not where we do.
    pub(super) fn dns_files(&self) -> Option<DnsFiles> {
        (self.0 != Path::new("/")).then(|| DnsFiles {
            hosts: self.join("etc/hosts"),
            resolv_conf: self.join("etc/resolv.conf"),
        })
    }

    /// A file of the host, if it is there, and where.
    pub(super) fn file(&self, place: &str) -> Result<Option<(PathBuf, String)>, SettingsError> {
        let path = self.join(place);
        Ok(read_if_there(&path)?.map(|text| (path, text)))
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

/// `*.conf`, in the order of their names, as containers/image merges them. Directories are passed over.
fn drop_ins(dir: &Path) -> Result<Vec<ConfText>, SettingsError> {
    let unreadable = |source| SettingsError::HostFile {
        path: dir.to_owned(),
        source,
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(_) if !is_there(dir) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let is_dir = entry.file_type().map_err(unreadable)?.is_dir();
        if !is_dir && entry.file_name().as_encoded_bytes().ends_with(b".conf") {
            paths.push(entry.path());
        }
    }
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
        Err(_) if !is_there(path) => Ok(None),
        Err(source) => Err(SettingsError::HostFile {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Whether something has this name, perhaps a symbolic link that leads nowhere as seen from here: whoever reads it has to
/// say so, for on the host it may lead somewhere.
pub(super) fn is_there(path: &Path) -> bool {
    let found = path.symlink_metadata();
    !found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The hub's Job mounts `/run` and not `/var/run`, where MCO's storage.conf up to 4.16 has the run root.
    #[test]
    fn var_run_is_run_unless_it_is_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot(dir.path().to_owned());
        let run_root = |path: &str| {
            let conf = StorageConf {
                run_root: Some(path.into()),
                ..StorageConf::default()
            };
            let seen = host.state(&conf).run_root;
            seen.strip_prefix(dir.path()).unwrap().to_owned()
        };
        for (path, seen) in [
            ("/var/run/containers/storage", "run/containers/storage"),
            ("/run/x", "run/x"),
            ("/var/running", "var/running"),
        ] {
            assert_eq!(run_root(path), Path::new(seen));
        }
        fs::create_dir_all(dir.path().join("var/run")).unwrap();
        assert_eq!(run_root("/var/run/x"), Path::new("var/run/x"));
    }

    /// On the host it leads to files that a run without them would contradict: another store, other mirrors.
    #[test]
    fn a_link_that_leads_out_of_the_host_root_is_not_passed_over() {
        for place in [
            "etc/containers/storage.conf",
            "etc/containers/storage.conf.d",
            "etc/crio/crio.conf",
            "etc/crio/crio.conf.d",
            "etc/containers/registries.conf",
            "etc/containers/registries.conf.d",
        ] {
            let dir = tempfile::tempdir().unwrap();
            let host = HostRoot(dir.path().to_owned());
            let link = dir.path().join(place);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink("/nowhere/on/this/machine", &link).unwrap();
            let read = host
                .storage(&HostPaths::default())
                .and_then(|(_, crio)| host.registries(&HostPaths::default(), None, &crio));
            let error = read.map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(link.to_str().unwrap()), "{error}");
        }
    }

    #[test]
    fn the_administrator_s_storage_conf_is_the_only_one_that_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let host = HostRoot(dir.path().to_owned());
        let graph_root = || host.storage(&HostPaths::default()).unwrap().0.graph_root;
        assert_eq!(graph_root(), None);
        for (place, graphroot) in [("usr/share", "/vendor"), ("etc", "/admin")] {
            let file = dir.path().join(place).join("containers/storage.conf");
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, format!("[storage]\ngraphroot = \"{graphroot}\"")).unwrap();
            assert_eq!(graph_root(), Some(graphroot.into()));
        }
        fs::write(dir.path().join("etc/containers/storage.conf"), "").unwrap();
        assert_eq!(graph_root(), None);
    }
}
