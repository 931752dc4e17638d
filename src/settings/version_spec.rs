//! The version spec, from the keys of a mounted ConfigMap and from flags.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use super::SettingsError;
use crate::cli::What;
use crate::spec::{Overrides, VersionSpec, from_keys};

/// Where TALM's Job mounts the version spec.
const CONFIG_DIR: &str = "/etc/config";

/// Kubernetes allows 1 MiB for all keys of a ConfigMap.
const KEY_LIMIT: u64 = 1 << 20;

/// The spec, and what is odd about it and stops nothing.
pub(super) fn version_spec(what: &What) -> Result<(VersionSpec, Vec<String>), SettingsError> {
    let by_flags_alone =
        what.platform_image.is_some() || !what.operators_indexes.is_empty() || !what.images.is_empty();
    let (spec, warnings) = match &what.config {
        Some(dir) => from_keys(&read_keys(dir)?)?,
        // A person's flags name everything; a ConfigMap that lies there by chance is not theirs.
        None if by_flags_alone => (VersionSpec::default(), Vec::new()),
        None => from_keys(&read_keys(Path::new(CONFIG_DIR))?)?,
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

/// As the spec has it. In a file a missing colon is a slip, where a person types it there is nothing to slip in.
fn with_colon(package: &str) -> String {
    match package.contains(':') {
        true => package.to_owned(),
        false => format!("{package}:"),
    }
}

/// The regular files of the directory, through the symbolic links by which Kubernetes mounts a ConfigMap
/// (`platform.image -> ..data/platform.image`, `..data -> ..2026_11_20_…`), without the `..` names themselves.
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
        // Of a pipe nobody may ever write the other end.
        if key.starts_with("..") || fs::metadata(&path).is_ok_and(|target| !target.is_file()) {
            continue;
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(KEY_LIMIT + 1).read_to_end(&mut bytes));
        let too_long = || {
            io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("longer than {KEY_LIMIT} bytes"),
            )
        };
        match read {
            Ok(length) if length as u64 <= KEY_LIMIT => keys.insert(key.to_owned(), bytes),
            Ok(_) => {
                return Err(SettingsError::Unreadable {
                    path,
                    source: too_long(),
                });
            }
            Err(source) => return Err(SettingsError::Unreadable { path, source }),
        };
    }
    if keys.is_empty() {
        return Err(no_spec("the directory holds no keys".to_owned()));
    }
    Ok(keys)
}
