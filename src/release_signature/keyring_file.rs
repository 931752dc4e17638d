//! Reads the keyrings of `--release-keys`: OpenPGP keys in a file, armored or binary.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::openpgp::{Keyring, KeyringError, Rules};

/// The largest file; the keyrings of releases have a few KiB.
const FILE_LIMIT: u64 = 1 << 20;

/// A keyring, and its name in messages. One of its keys has to have signed a release.
#[derive(Clone, Debug)]
pub struct NamedKeyring {
    /// A file, or the key of a ConfigMap.
    pub name: String,
    /// The keys.
    pub keyring: Keyring,
}

/// Why a file has no keyring. The flag is wrong: continuing without it would trust other keys than the user wants.
#[derive(Debug, thiserror::Error)]
pub enum KeyringFileError {
    /// The file cannot be read.
    #[error("cannot read the release keys `{}`: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It has no usable key.
    #[error(
        "cannot use the release keys `{}`: {source}\nhint: `gpg --export --armor KEY` writes such a file", path.display()
    )]
    Keys {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KeyringError,
    },
}

/// Reads each file as one keyring.
pub fn read_keyring_files(paths: &[impl AsRef<Path>]) -> Result<Vec<NamedKeyring>, KeyringFileError> {
    paths
        .iter()
        .map(|path| read_keyring_file(path.as_ref()))
        .collect()
}

fn read_keyring_file(path: &Path) -> Result<NamedKeyring, KeyringFileError> {
    let unreadable = |source| KeyringFileError::Read {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(FILE_LIMIT + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_LIMIT {
        let why = format!("it has more than {FILE_LIMIT} bytes");
        return Err(unreadable(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    let keyring = Keyring::parse(&bytes, Rules::Cvo).map_err(|source| KeyringFileError::Keys {
        path: path.to_owned(),
        source,
    })?;
    Ok(NamedKeyring {
        name: path.display().to_string(),
        keyring,
    })
}
