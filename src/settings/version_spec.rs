//! Reads the version spec from the keys of a mounted ConfigMap, from a file, and from flags.
//!
//! A file may be a pipe (`-`, `/dev/stdin`, the `/dev/fd/63` of `<(kubectl get …)`), so it is opened once, without checking
//! its length, and reading may block.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::SettingsError;
use crate::cli::VersionSpecFlags;
use crate::report::Printable;
use crate::spec::{Overrides, SpecDocument, VersionSpec, from_document, from_keys};

/// Where TALM's Job mounts the version spec's ConfigMap.
const CONFIG_DIR: &str = "/etc/config";

/// The largest key: Kubernetes allows 1 MiB for all keys of a ConfigMap.
const KEY_LIMIT: u64 = 1 << 20;

/// The largest file: more than all ConfigMaps of a large namespace in the output of `kubectl get`. Bounds the parsed tree.
const FILE_LIMIT: u64 = 4 << 20;

/// The spec and its warnings.
pub(super) fn version_spec(what: &VersionSpecFlags) -> Result<(VersionSpec, Vec<String>), SettingsError> {
    let by_flags_alone =
        what.platform_image.is_some() || !what.operators_indexes.is_empty() || !what.images.is_empty();
    let (spec, warnings) = match &what.config {
        Some(path) => read(path)?,
        // The flags name everything; a ConfigMap that happens to be mounted is not used.
        None if by_flags_alone => (VersionSpec::default(), Vec::new()),
        None => read(Path::new(CONFIG_DIR))?,
    };
    let spec = spec.merge(Overrides {
        platform_image: what.platform_image.clone(),
        operators_indexes: what.operators_indexes.clone(),
        packages_and_channels: what.packages.iter().map(|package| with_colon(package)).collect(),
        images: what.images.clone(),
        excludes: what.excludes.clone(),
        space_required: what.space_required,
    });
    spec.validate()?;
    Ok((spec, warnings))
}

/// Adds the colon that the spec's format requires. In a file a missing colon is an error; in a flag it is optional.
fn with_colon(package: &str) -> String {
    match package.contains(':') {
        true => package.to_owned(),
        false => format!("{package}:"),
    }
}

fn read(path: &Path) -> Result<(VersionSpec, Vec<String>), SettingsError> {
    let is_stdin = path.as_os_str() == "-";
    let no_spec = |error: io::Error| SettingsError::NoSpec {
        path: path.to_owned(),
        why: error.to_string(),
    };
    if !is_stdin && fs::metadata(path).map_err(no_spec)?.is_dir() {
        return Ok(from_keys(&read_keys(path)?)?);
    }
    let bytes = match is_stdin {
        true => read_bounded(io::stdin().lock(), FILE_LIMIT),
        false => File::open(path).and_then(|file| read_bounded(file, FILE_LIMIT)),
    };
    let bytes = bytes.map_err(|source| SettingsError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let SpecDocument {
        spec,
        warnings,
        title,
        ignored,
    } = from_document(&bytes).map_err(|source| SettingsError::Document {
        path: path.to_owned(),
        source,
    })?;
    let shown_path = path.display().to_string();
    tracing::info!(
        "the version spec is {} in `{}`",
        Printable(&title),
        Printable(&shown_path)
    );
    for other in ignored {
        tracing::debug!("ignored in `{}`: {}", Printable(&shown_path), Printable(&other));
    }
    Ok((spec, warnings))
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
