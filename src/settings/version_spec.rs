//! Reads the version spec from the keys of a mounted ConfigMap, from files with objects, and from flags.
//!
//! ```text
//! --config DIR   with keys of the hub          the keys, alone
//!                with .yaml, .yml, .json files its documents, in the order of their names ─┐
//! --config FILE                                ────────────────────────────────────────────┼→ SpecInput → VersionSpec
//! --from-cluster                objects of the cluster's API ──────────────────────────────┘
//! ```
//!
//! A file may be a pipe (`-`, `/dev/stdin`, the `/dev/fd/63` of `<(kubectl get …)`), so it is opened once, without checking
//! its length, and reading may block.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::SettingsError;
use crate::cli::VersionSpecFlags;
use crate::cluster::UpgradeObjects;
use crate::cluster_version::ClusterVersion;
use crate::report::Printable;
use crate::spec::{
    NamedByFlags, Overrides, SpecDocument, SpecError, SpecInput, VersionSpec, from_keys, is_key,
};

/// Where TALM's Job mounts the version spec's ConfigMap.
const CONFIG_DIR: &str = "/etc/config";

/// The largest key: Kubernetes allows 1 MiB for all keys of a ConfigMap.
const KEY_LIMIT: u64 = 1 << 20;

/// The largest file: more than all ConfigMaps of a large namespace in the output of `kubectl get`. Bounds the parsed tree.
const FILE_LIMIT: u64 = 4 << 20;

/// The most bytes of all files: 2,000 policies.
const FILES_LIMIT: u64 = 8 << 20;

/// The most documents of a directory.
const DOCUMENTS_LIMIT: usize = 1_000;

/// The version spec of the flags and of their files.
#[derive(Debug)]
pub struct ResolvedSpec {
    /// The spec.
    pub spec: VersionSpec,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// When the upgrade begins, if an UpgradeConfig says so and the time is not past.
    pub upgrade_at: Option<Timestamp>,
    /// The cluster's own ClusterVersion, if a file has it.
    pub cluster_version: Option<ClusterVersion>,
    /// Why there is nothing to do, if the cluster requests no release and nothing else is requested.
    pub nothing_requested: Option<String>,
}

/// Reads the version spec; `cluster` are the objects of the cluster's API, if they are part of it.
pub(super) fn version_spec(
    what: &VersionSpecFlags,
    cluster: Option<&UpgradeObjects>,
) -> Result<ResolvedSpec, SettingsError> {
    let images = &what.images;
    let flags = NamedByFlags {
        release: images.platform_image.is_some(),
        images: !images.operators_indexes.is_empty() || !images.images.is_empty(),
        // A release that is named needs no other.
        recommended: what.release.recommended && images.platform_image.is_none(),
    };
    let paths = match &images.config[..] {
        // The flags name everything; a ConfigMap that happens to be mounted is not used.
        [] if flags.release || flags.images => Vec::new(),
        // A Job that has no ConfigMap, or an optional one that does not exist.
        [] if cluster.is_some() && is_empty(Path::new(CONFIG_DIR)) => Vec::new(),
        [] => vec![PathBuf::from(CONFIG_DIR)],
        paths => paths.to_vec(),
    };
    let are_flags_all = paths.is_empty() && cluster.is_none() && !flags.recommended;
    let mut resolved = match are_flags_all {
        true => of_document(SpecDocument::default(), ""),
        false => read(&paths, flags, cluster)?,
    };
    resolved.spec = resolved.spec.merge(Overrides {
        platform_image: images.platform_image.clone(),
        operators_indexes: images.operators_indexes.clone(),
        packages_and_channels: images
            .packages
            .iter()
            .map(|package| with_colon(package))
            .collect(),
        images: images.images.clone(),
        excludes: images.excludes.clone(),
        space_required: what.space_required,
    });
    match (resolved.spec.validate(), &resolved.nothing_requested) {
        (Err(SpecError::NothingToDo), Some(_)) => {}
        (valid, why) => {
            valid?;
            if let Some(why) = why {
                tracing::info!("no release is pulled: {}", Printable(why));
            }
            resolved.nothing_requested = None;
        }
    }
    Ok(resolved)
}

/// Whether a directory does not exist or has no file that a user sees.
fn is_empty(dir: &Path) -> bool {
    let Ok(mut entries) = fs::read_dir(dir) else {
        return !dir.exists();
    };
    // A mounted ConfigMap without keys has `..data`.
    entries.all(|entry| entry.is_ok_and(|entry| entry.file_name().as_encoded_bytes().starts_with(b"..")))
}

/// Adds the colon that the spec's format requires. In a file a missing colon is an error; in a flag it is optional.
fn with_colon(package: &str) -> String {
    match package.contains(':') {
        true => package.to_owned(),
        false => format!("{package}:"),
    }
}

fn read(
    paths: &[PathBuf],
    flags: NamedByFlags,
    cluster: Option<&UpgradeObjects>,
) -> Result<ResolvedSpec, SettingsError> {
    let mut input = SpecInput::default();
    let mut files = Vec::new();
    for path in paths {
        match Source::of(path)? {
            Source::File => files.push(path.clone()),
            Source::Documents(documents) => files.extend(documents),
            Source::Keys if paths.len() == 1 => {
                let (spec, warnings) = from_keys(&read_keys(path)?)?;
                input.add_keys(&format!("the keys in `{}`", path.display()), spec, warnings);
            }
            Source::Keys => return Err(SettingsError::KeysAndMore { path: path.clone() }),
        }
    }
    let mut left = FILES_LIMIT;
    for path in &files {
        let bytes = read_file(path, left)?;
        left -= bytes.len() as u64;
        let added = input.add(&path.display().to_string(), &bytes);
        added.map_err(|source| SettingsError::Document {
            path: path.clone(),
            source,
        })?;
    }
    for object in cluster.into_iter().flat_map(UpgradeObjects::bytes) {
        let added = input.add_of_cluster(object);
        added.map_err(SettingsError::Documents)?;
    }
    let document = input.read(flags).map_err(|source| match (&files[..], cluster) {
        ([path], None) => SettingsError::Document {
            path: path.clone(),
            source,
        },
        _ => SettingsError::Documents(source),
    })?;
    let place = match (&files[..], cluster) {
        ([path], None) => format!(" in `{}`", path.display()),
        _ => String::new(),
    };
    // A mounted ConfigMap alone is no choice that needs a line.
    if !files.is_empty() || cluster.is_some() {
        let line = format!("the version spec is {}{place}", document.title);
        tracing::info!("{}", Printable(&line));
    }
    Ok(of_document(document, &place))
}

/// `place` is where the document's objects are, if they are in one file.
fn of_document(document: SpecDocument, place: &str) -> ResolvedSpec {
    let SpecDocument {
        spec,
        mut warnings,
        upgrade_at,
        cluster_version,
        notes,
        nothing_requested,
        title: _,
        ignored,
    } = document;
    for note in notes {
        tracing::info!("{}", Printable(&note));
    }
    for other in ignored {
        let line = format!("ignored{place}: {other}");
        tracing::debug!("{}", Printable(&line));
    }
    let upgrade_at = upgrade_at.filter(|at| {
        let is_past = *at <= Timestamp::now();
        match is_past {
            true => warnings.push(format!("the upgrade was to begin at {at}, which is past")),
            false => tracing::info!("the upgrade begins at {at}"),
        }
        !is_past
    });
    ResolvedSpec {
        spec,
        warnings,
        upgrade_at,
        cluster_version,
        nothing_requested,
    }
}

/// What a path of `--config` is.
enum Source {
    File,
    /// A directory of keys, or an empty one.
    Keys,
    /// The documents of a directory, in the order of their names.
    Documents(Vec<PathBuf>),
}

impl Source {
    fn of(path: &Path) -> Result<Self, SettingsError> {
        let no_spec = |error: io::Error| SettingsError::NoSpec {
            path: path.to_owned(),
            why: error.to_string(),
        };
        if path.as_os_str() == "-" || !fs::metadata(path).map_err(no_spec)?.is_dir() {
            return Ok(Self::File);
        }
        let mut key = None;
        let mut documents = Vec::new();
        for entry in fs::read_dir(path).map_err(no_spec)? {
            let entry = entry.map_err(no_spec)?.path();
            let Some(name) = entry.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let extension = entry.extension().and_then(|extension| extension.to_str());
            let target = fs::metadata(&entry);
            let is_file = target.as_ref().is_ok_and(fs::Metadata::is_file);
            if target.is_ok_and(|target| target.is_dir()) {
                let shown = entry.display().to_string();
                tracing::warn!("`{}` is a directory, and is not read", Printable(&shown));
                continue;
            }
            match extension {
                Some("yaml" | "yml" | "json") if is_file => documents.push(entry),
                _ if is_key(name) => key = Some(name.to_owned()),
                _ => tracing::debug!("not read: `{}`", Printable(&entry.display().to_string())),
            }
            if documents.len() > DOCUMENTS_LIMIT {
                let why = format!("the directory has more than {DOCUMENTS_LIMIT} documents");
                return Err(no_spec(io::Error::other(why)));
            }
        }
        documents.sort();
        match (key, documents.first()) {
            (_, None) => Ok(Self::Keys),
            (None, Some(_)) => Ok(Self::Documents(documents)),
            (Some(key), Some(document)) => Err(SettingsError::KeysAndDocuments {
                path: path.to_owned(),
                key,
                document: document
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            }),
        }
    }
}

/// Reads a file or standard input; `left` are the bytes that all files may still have.
fn read_file(path: &Path, left: u64) -> Result<Vec<u8>, SettingsError> {
    let limit = FILE_LIMIT.min(left);
    let bytes = match path.as_os_str() == "-" {
        true => read_bounded(io::stdin().lock(), limit),
        false => File::open(path).and_then(|file| read_bounded(file, limit)),
    };
    bytes.map_err(|source| SettingsError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

/// Reads everything, or fails if it is longer than `limit` bytes.
fn read_bounded(source: impl io::Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match source.take(limit + 1).read_to_end(&mut bytes)? {
        length if length as u64 <= limit => Ok(bytes),
        _ => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {limit} bytes"),
        )),
    }
}

/// Reads the regular files of the directory, also through the symbolic links of a mounted ConfigMap (`platform.image ->
/// ..data/platform.image`, `..data -> ..2026_11_20_…`), but not the names that begin with `..`.
fn read_keys(dir: &Path) -> Result<BTreeMap<String, Vec<u8>>, SettingsError> {
    let no_spec = |why: String| SettingsError::NoSpec {
        path: dir.to_owned(),
        why,
    };
    let entries = fs::read_dir(dir).map_err(|error| no_spec(error.to_string()))?;
    let mut keys = BTreeMap::new();
    for entry in entries {
        let path = entry.map_err(|error| no_spec(error.to_string()))?.path();
        let Some(key) = path.file_name().and_then(|name| name.to_str()) else {
            continue;
        };
        // Reading a pipe might block forever.
        if key.starts_with("..") || fs::metadata(&path).is_ok_and(|target| !target.is_file()) {
            continue;
        }
        match File::open(&path).and_then(|file| read_bounded(file, KEY_LIMIT)) {
            Ok(bytes) => keys.insert(key.to_owned(), bytes),
            Err(source) => return Err(SettingsError::Unreadable { path, source }),
        };
    }
    if keys.is_empty() {
        return Err(no_spec("the directory contains no keys".to_owned()));
    }
    Ok(keys)
}
