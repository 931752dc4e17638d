//! Finds the credentials for a repository in the pull secrets.
//!
//! Files are searched in order, each for the longest key that fits (`auth_file`); the rules are those of containers/image
//! (`pkg/docker/config`). Where containers/image goes on without credentials although some were meant (an `auth` without a
//! colon, an entry whose password is in `credsStore`, a file in the form of `.dockercfg`), that is an error here: a registry
//! would answer "not found", or send a public image of the same name.
//!
//! No program is executed, so a credential helper is an error as soon as it would be executed.

use std::path::{Path, PathBuf};

use crate::oci::Reference;

use super::auth_file::AuthFile;
use super::login::{Credential, CredentialsError};
use super::registries_conf::{AUTH_FILES, CredentialHelpers};

/// The largest pull secret that is read. Those of large sites have hundreds of kilobytes.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// All pull secrets, and the credential helpers of registries.conf.
#[derive(Debug, Default)]
pub struct Credentials {
    /// In the order in which they are searched.
    files: Vec<AuthFile>,
    helpers: Option<CredentialHelpers>,
}

impl Credentials {
    /// Reads the files, which must all exist.
    pub fn read(paths: &[PathBuf]) -> Result<Self, CredentialsError> {
        use std::io::{Error, ErrorKind, Read as _};
        let files = paths.iter().map(|path| {
            let failed = |source| CredentialsError::Read {
                path: path.clone(),
                source,
            };
            let file = std::fs::File::open(path).map_err(failed)?;
            let mut bytes = Vec::new();
            let read = file
                .take(MAX_FILE_SIZE + 1)
                .read_to_end(&mut bytes)
                .map_err(failed)?;
            if read as u64 > MAX_FILE_SIZE {
                return Err(failed(Error::from(ErrorKind::FileTooLarge)));
            }
            AuthFile::parse(path, &bytes)
        });
        Ok(Self {
            files: files.collect::<Result<_, _>>()?,
            helpers: None,
        })
    }

    /// The same, with `credential-helpers`, which names the order of helpers and pull secrets.
    pub(super) fn with_helpers(self, helpers: Option<CredentialHelpers>) -> Self {
        Self { helpers, ..self }
    }

    /// Parses the text of one file; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CredentialsError> {
        Ok(Self {
            files: vec![AuthFile::parse(path, text.as_bytes())?],
            helpers: None,
        })
    }

    /// The login for this repository; nothing if none is configured.
    pub fn find(&self, reference: &Reference) -> Result<Option<Credential>, CredentialsError> {
        let Some(helpers) = &self.helpers else {
            return self.in_files(reference);
        };
        for helper in &helpers.names {
            if helper != AUTH_FILES {
                return Err(CredentialsError::Program {
                    path: helpers.origin.clone(),
                    program: helper.clone(),
                    domain: reference.domain().to_owned(),
                });
            }
            if let Some(credential) = self.in_files(reference)? {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }

    fn in_files(&self, reference: &Reference) -> Result<Option<Credential>, CredentialsError> {
        for file in &self.files {
            if let Some(credential) = file.find(reference)? {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }
}
