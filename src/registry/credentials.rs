//! Credentials: which pull secret has what is to be shown to a registry.
//!
//! Files are asked in order, each for the longest key that fits (`auth_file`); the rules are those of containers/image
//! (`pkg/docker/config`). Where containers/image would go on without credentials although somebody meant to give some (an
//! `auth` without a colon, an entry whose password lies in `credsStore`, a file in the form of `.dockercfg`), that is an
//! error here: a registry would answer "not found" or a public image of the same name.
//!
//! No program is executed, so a credential helper is an error as soon as it would be asked.

use std::path::{Path, PathBuf};

use secrecy::SecretString;

use crate::oci::Reference;

use super::auth_file::AuthFile;
use super::registries_conf::{AUTH_FILES, CredentialHelpers};

/// The pull secret of a large site has hundreds of kilobytes.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// All that may hold credentials.
#[derive(Debug, Default)]
pub struct Credentials {
    /// In the order in which they are asked.
    files: Vec<AuthFile>,
    helpers: Option<CredentialHelpers>,
}

/// How to log in, and where that is written.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Empty with a bare identity token.
    pub(super) username: SecretString,
    pub(super) password: SecretString,
    /// An OAuth2 refresh token; goes before the password where the registry hands out tokens.
    pub(super) identity_token: Option<SecretString>,
    /// For messages.
    pub(super) origin: Origin,
}

impl Credential {
    /// Whether it has more than an identity token. A password may do without a user.
    pub(super) fn has_password(&self) -> bool {
        use secrecy::ExposeSecret as _;
        !(self.username.expose_secret().is_empty() && self.password.expose_secret().is_empty())
    }
}

/// Where a credential is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The file.
    pub path: PathBuf,
    /// The key under `auths`.
    pub key: String,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of `{}`", self.key, self.path.display())
    }
}

/// Why a pull secret cannot be used. None repeats what is in it.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Missing, unreadable or too large.
    #[error("cannot read the pull secret `{}`: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// As the kernel says it.
        source: std::io::Error,
    },
    /// Not JSON, or of another shape.
    #[error("the pull secret `{}` is not as expected at line {line}, column {column}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The form of `.dockercfg`, which nobody reads in this place: to CRI-O and the kubelet it holds nothing.
    #[error(
        "the pull secret `{}` has the form of an old `.dockercfg`, without `auths`, and CRI-O finds nothing in it\n\
         hint: put what is in it under `auths`", path.display()
    )]
    Legacy {
        /// Which file.
        path: PathBuf,
    },
    /// `auth` is not the base64 of `user:password`.
    #[error("{0} has an `auth` that is not the base64 of `user:password`")]
    Auth(Origin),
    /// The credential lies with a program, and this agent executes none.
    #[error(
        "{0} refers to a credential helper, and no program is executed here\n\
         hint: write the credentials themselves under `auths`"
    )]
    Helper(Origin),
    /// registries.conf wants a program asked that may have a credential.
    #[error(
        "`credential-helpers` of `{}` wants the program `{program}` asked for `{domain}`, and no program is executed here\n\
         hint: name `containers-auth.json` before it, and write the credentials into the pull secret", path.display()
    )]
    Program {
        /// The file with `credential-helpers`.
        path: PathBuf,
        /// The program, without `docker-credential-`.
        program: String,
        /// The registry.
        domain: String,
    },
}

impl Credentials {
    /// Reads the files, which must all be there.
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

    /// The same, asked when and before whom `credential-helpers` says.
    pub(super) fn with_helpers(self, helpers: Option<CredentialHelpers>) -> Self {
        Self { helpers, ..self }
    }

    /// Understands the text of one file; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CredentialsError> {
        Ok(Self {
            files: vec![AuthFile::parse(path, text.as_bytes())?],
            helpers: None,
        })
    }

    /// What to log in with for this repository; nothing if nobody knows it.
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
