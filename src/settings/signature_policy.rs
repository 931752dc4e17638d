//! Finds the node's signature policies, as CRI-O and containers/image do: policy.json and the policies of namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SettingsError;
use super::crio_conf::CrioConf;
use super::host_files::{is_present, read_bytes};
use super::host_root::HostRoot;
use crate::job::{PolicyFile, SignaturePolicy};
use crate::signature::{KeyFiles, Policy};

/// The paths of policy.json. CRI-O runs as root, so root's own file replaces the system's (containers/image
/// `policy_config.go`: `defaultPolicyPathWithHomeDir`).
const POLICY_JSON: [&str; 2] = [
    "root/.config/containers/policy.json",
    "etc/containers/policy.json",
];

/// CRI-O's directory, which TALM's Job does not mount.
const CRIO_DIR: &str = "etc/crio";

/// The directory of the policies of namespaces, unless crio.conf sets it (`pkg/config/config.go`).
const NAMESPACE_POLICIES: &str = "etc/crio/policies";

/// Reads keys below the host's root, where a policy names them.
#[derive(Debug)]
struct HostKeyFiles(HostRoot);

impl KeyFiles for HostKeyFiles {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let found = self.0.join(path);
        read_bytes(&found).map_err(|error| match error.kind() {
            // The message has the path as the policy has it, and a Job mounts few of the host's directories.
            io::ErrorKind::NotFound if found != path => io::Error::new(
                error.kind(),
                format!("there is no `{}`; in a Job, mount it", found.display()),
            ),
            _ => error,
        })
    }
}

impl HostRoot {
    /// The policies, and warnings about them. `named` is the path of the flag. With an invalid policy for all images, CRI-O
    /// pulls nothing either; an invalid one of a namespace only concerns its pods.
    pub(super) fn signature_policy(
        &self,
        named: Option<&Path>,
        crio: &CrioConf,
    ) -> Result<(SignaturePolicy, Vec<String>), SettingsError> {
        let node = match (named, &crio.signature_policy) {
            (Some(path), _) => Some(path.to_owned()),
            (None, Some(path)) => Some(self.join(path)),
            (None, None) => {
                let paths = POLICY_JSON.iter().map(|path| self.join(path));
                paths.into_iter().find(|path| is_present(path))
            }
        };
        let node = node.map(|path| policy_file(path, named.is_some())).transpose()?;
        let mut warnings = Vec::new();
        if node.is_none() {
            warnings.push(format!(
                "the node has no signature policy, so no signatures are required: there is no `{}`\nhint: without it CRI-O pulls \
                 nothing; set another file with `--policy`",
                self.join(POLICY_JSON[1]).display()
            ));
        }
        let directory = crio.signature_policy_dir.as_deref();
        let directory = self.join(directory.unwrap_or(Path::new(NAMESPACE_POLICIES)));
        let mut namespaces = BTreeMap::new();
        for (namespace, path) in files_of_namespaces(&directory)? {
            match policy_file(path, false) {
                Ok(file) => _ = namespaces.insert(namespace, file),
                Err(error) => warnings.push(format!(
                    "pods in namespace `{namespace}` cannot pull images: {error}"
                )),
            }
        }
        let policy = SignaturePolicy {
            node,
            namespaces,
            key_files: Arc::new(HostKeyFiles(self.clone())),
            unknown: self.unknown_policies(),
        };
        Ok((policy, warnings))
    }

    /// A node with CRI-O has the directory. On `/` itself, a missing directory means that there is no CRI-O.
    fn unknown_policies(&self) -> Option<String> {
        let directory = self.join(CRIO_DIR);
        (self.0 != Path::new("/") && !is_present(&directory)).then(|| {
            format!(
                "`{}` is not visible: another `signature_policy` in crio.conf and policies of single namespaces are unknown",
                directory.display()
            )
        })
    }
}

fn policy_file(path: PathBuf, is_flag: bool) -> Result<PolicyFile, SettingsError> {
    let bytes = read_bytes(&path).map_err(|source| match is_flag {
        true => SettingsError::Unreadable {
            path: path.clone(),
            source,
        },
        false => SettingsError::HostFile {
            path: path.clone(),
            source,
        },
    })?;
    match Policy::parse(&bytes) {
        Ok(policy) => Ok(PolicyFile { path, policy }),
        Err(source) => Err(SettingsError::SignaturePolicy {
            path,
            source,
            is_flag,
        }),
    }
}

/// The files `<namespace>.json` of the directory, in the order of their names.
fn files_of_namespaces(directory: &Path) -> Result<BTreeMap<String, PathBuf>, SettingsError> {
    let unreadable = |source| SettingsError::HostFile {
        path: directory.to_owned(),
        source,
    };
    let mut files = BTreeMap::new();
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(_) if !is_present(directory) => return Ok(files),
        Err(error) => return Err(unreadable(error)),
    };
    for entry in entries {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Some(namespace) = name.strip_suffix(".json") {
            files.insert(namespace.to_owned(), entry.path());
        }
    }
    Ok(files)
}
