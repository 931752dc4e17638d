//! Defines a login for a registry, the file that it comes from, and the errors of logins.

use std::path::PathBuf;

use secrecy::SecretString;

/// A login for a registry.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Empty with a bare identity token.
    pub(super) username: SecretString,
    pub(super) password: SecretString,
    /// An OAuth2 refresh token; used instead of the password where the registry has a token server.
    pub(super) identity_token: Option<SecretString>,
    /// For messages.
    pub(super) origin: CredentialOrigin,
}

impl Credential {
    /// Whether it has more than an identity token. A password without a user counts.
    pub(super) fn has_password(&self) -> bool {
        use secrecy::ExposeSecret as _;
        !(self.username.expose_secret().is_empty() && self.password.expose_secret().is_empty())
    }
}

/// Where a credential is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialOrigin {
    /// The file.
    pub path: PathBuf,
    /// The key under `auths`.
    pub key: String,
}

impl std::fmt::Display for CredentialOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of `{}`", self.key, self.path.display())
    }
}

/// Why a pull secret cannot be used. No error repeats its content.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// Missing, unreadable or too large.
    #[error("cannot read the pull secret `{}`: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Not JSON, or of another form.
    #[error("the pull secret `{}` is not valid at line {line}, column {column}", path.display())]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// The form of `.dockercfg`, in which CRI-O and the kubelet find no credentials.
    #[error(
        "the pull secret `{}` has the form of an old `.dockercfg`, without `auths`, and CRI-O finds no credentials in it\n\
         hint: put its entries under `auths`", path.display()
    )]
    Legacy {
        /// Which file.
        path: PathBuf,
    },
    /// `auth` is not the base64 of `user:password`.
    #[error("{0} has an `auth` that is not the base64 of `user:password`")]
    Auth(CredentialOrigin),
    /// A credential helper has the credential, and spoke-precache executes no program.
    #[error(
        "{0} refers to a credential helper, and spoke-precache executes no program\n\
         hint: put the credentials themselves under `auths`"
    )]
    Helper(CredentialOrigin),
    /// registries.conf names a credential helper for the registry.
    #[error(
        "`credential-helpers` of `{}` names the program `{program}` for `{domain}`, and spoke-precache executes no program\n\
         hint: list `containers-auth.json` before it, and put the credentials into the pull secret", path.display()
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
