//! Lists the reasons why settings cannot be resolved, each with its exit code and step.

use std::io;
use std::path::PathBuf;

use crate::exit_code::Failure;
use crate::registry::{ProxyError, RegistriesConfError, ShortNameError};
use crate::release_signature::KeyringFileError;
use crate::report::{Step, WriteError};
use crate::signature::PolicyError;
use crate::spec::{DocumentError, SpecError};
use crate::store::{StorageConfError, StoreError};

/// Why settings cannot be resolved: arguments, the version spec or a file of the host.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The user cannot write a store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The version spec.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// `--from-cluster` without an API.
    #[error(
        "`--from-cluster` needs the API of the cluster, and no service account is mounted\n\
         hint: run it in a pod that has one, as in `manifests/overlays/standalone`; elsewhere, give the output of `oc get \
         clusterversion version -o yaml` with `--config`"
    )]
    NoServiceAccount,
    /// `--from-cluster` and an API that does not say which release is requested.
    #[error("cannot read from the cluster's API which release is requested: {why}")]
    Cluster {
        /// Why.
        why: String,
        /// Whether the API refuses the request, so that another run does not help.
        is_refusal: bool,
    },
    /// The files request no release, and nothing else is requested.
    #[error("there is nothing to export: {why}")]
    NothingToExport {
        /// Why.
        why: String,
    },
    /// The version spec is missing.
    #[error("there is no version spec in `{}`: {why}\nhint: mount the ConfigMap there, set another directory or a file with `--config`, or name images with `--platform-image` and `--image`", path.display())]
    NoSpec {
        /// The directory or file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A file without a usable version spec.
    #[error("cannot use `{}`: {source}", path.display())]
    Document {
        /// The file, `-` for standard input.
        path: PathBuf,
        /// Why.
        source: DocumentError,
    },
    /// Files without a usable version spec, together.
    #[error("cannot use the version spec: {0}")]
    Documents(DocumentError),
    /// A directory with keys and with documents.
    #[error(
        "`{}` has the key `{key}` of a mounted ConfigMap and the document `{document}`\n\
         hint: put them into different directories, and give one of them",
        path.display()
    )]
    KeysAndDocuments {
        /// The directory.
        path: PathBuf,
        /// The first key.
        key: String,
        /// The first document.
        document: String,
    },
    /// A directory of keys is not the only source.
    #[error(
        "`{}` has the keys of a mounted ConfigMap, a complete version spec, which cannot be combined with another `--config`",
        path.display()
    )]
    KeysAndMore {
        /// The directory.
        path: PathBuf,
    },
    /// A file of a flag cannot be read.
    #[error("cannot read `{}`: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file that CRI-O would read cannot be read.
    #[error("cannot read the host's `{}`: {source}", path.display())]
    HostFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A name without a registry, which the node's configuration does not resolve to one registry.
    #[error(transparent)]
    ShortName(#[from] ShortNameError),
    /// registries.conf is invalid.
    #[error(transparent)]
    RegistriesConf(#[from] RegistriesConfError),
    /// The report or the pins cannot be written.
    #[error(transparent)]
    Report(#[from] WriteError),
    /// A directory of a flag, or one derived from it, does not exist.
    #[error("there is no {what} `{}`\nhint: check the path, or create it with `--create`", path.display())]
    Missing {
        /// Its purpose.
        what: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// storage.conf is invalid.
    #[error("cannot use `{}`: {source}", path.display())]
    StorageConf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: StorageConfError,
    },
    /// A drop-in to storage.conf changes where or how images are stored.
    #[error("`{}` changes where or how images are stored, and older versions of containers/storage do not read it\nhint: pass all settings in one file with `--storage-conf`", path.display())]
    StorageDropIn {
        /// The file.
        path: PathBuf,
    },
    /// A file of CRI-O's configuration cannot be read.
    #[error("cannot read CRI-O's `{}`: {source}", path.display())]
    CrioFile {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file of CRI-O's configuration is invalid, so CRI-O itself would not start.
    #[error("cannot use CRI-O's `{}`: {source}", path.display())]
    CrioConf {
        /// The file.
        path: PathBuf,
        /// Why.
        source: toml::de::Error,
    },
    /// A file of `--release-keys`.
    #[error(transparent)]
    ReleaseKeys(#[from] KeyringFileError),
    /// A signature policy is invalid.
    #[error("cannot use the signature policy `{}`: {source}", path.display())]
    SignaturePolicy {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PolicyError,
        /// Whether a flag names it.
        is_flag: bool,
    },
    /// A proxy's URL cannot be used.
    #[error("cannot use the proxy of `{name}`{}: {source}", of_file(.file))]
    Proxy {
        /// The variable. Its value may contain a password.
        name: &'static str,
        /// The node's file that sets it; `None` for the environment.
        file: Option<PathBuf>,
        /// Why.
        source: ProxyError,
    },
    /// A variable has an invalid value.
    #[error("the environment variable `{name}` must be {expected}: `{value}`")]
    Environment {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: &'static str,
    },
}

fn of_file(file: &Option<PathBuf>) -> String {
    file.as_ref()
        .map(|path| format!(" in `{}`", path.display()))
        .unwrap_or_default()
}

impl SettingsError {
    /// The failure that determines the exit code.
    pub fn failure(&self) -> Failure {
        match self {
            Self::Store(_)
            | Self::StorageConf { .. }
            | Self::StorageDropIn { .. }
            | Self::CrioFile { .. }
            | Self::CrioConf { .. }
            | Self::HostFile { .. }
            | Self::SignaturePolicy { is_flag: false, .. }
            | Self::RegistriesConf(_) => Failure::Store,
            Self::Spec(_)
            | Self::NoServiceAccount
            | Self::NothingToExport { .. }
            | Self::Cluster { is_refusal: true, .. }
            | Self::NoSpec { .. }
            | Self::Document { .. }
            | Self::Documents(_)
            | Self::KeysAndDocuments { .. }
            | Self::KeysAndMore { .. }
            | Self::Unreadable { .. }
            | Self::SignaturePolicy { is_flag: true, .. }
            | Self::ReleaseKeys(_)
            | Self::ShortName(_)
            | Self::Proxy { .. }
            | Self::Missing { .. }
            | Self::Environment { .. } => Failure::Usage,
            Self::Cluster {
                is_refusal: false, ..
            } => Failure::Incomplete,
            Self::Report(error) => Failure::of_report(error).unwrap_or(Failure::Usage),
        }
    }

    /// The reason of the step's condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Cluster { .. } => "ClusterUnavailable",
            error => error.failure().reason(),
        }
    }

    /// The step that fails.
    pub fn step(&self) -> Step {
        match self {
            Self::Store(_)
            | Self::StorageConf { .. }
            | Self::StorageDropIn { .. }
            | Self::Missing { .. }
            | Self::CrioFile { .. }
            | Self::CrioConf { .. } => Step::Store,
            // registries.conf, its drop-ins, certificate authorities, proxies and signature policies: how images are requested.
            Self::HostFile { .. }
            | Self::SignaturePolicy { .. }
            | Self::RegistriesConf(_)
            | Self::Proxy { .. } => Step::Resolve,
            Self::ReleaseKeys(_) => Step::ReleaseVerified,
            Self::Spec(_)
            | Self::NoServiceAccount
            | Self::NothingToExport { .. }
            | Self::Cluster { .. }
            | Self::NoSpec { .. }
            | Self::Document { .. }
            | Self::Documents(_)
            | Self::KeysAndDocuments { .. }
            | Self::KeysAndMore { .. }
            | Self::Unreadable { .. }
            | Self::ShortName(_)
            | Self::Report(_)
            | Self::Environment { .. } => Step::Spec,
        }
    }
}
