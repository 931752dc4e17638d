//! The errors of the registry client: what each means for the run, and whether a retry can help.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use oci_distribution::errors::OciEnvelope;

use crate::cancel::Stopped;
use crate::http::excerpt;
use crate::oci::{Digest, ManifestError};
use crate::signature::BlobError;

use super::login::{CredentialOrigin, CredentialsError};
use super::registries_conf::RegistriesConfError;
use super::registries_d::RegistriesDError;

/// What an error means for the run; the exit code is chosen from it. Later kinds are graver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The run stops; nothing is wrong.
    Stopped,
    /// The link or a registry failed; later it may work.
    Network,
    /// The spool or the files of the configuration cannot be used.
    Local,
    /// The configuration forbids it, or the registry's certificate is not trusted.
    Refused,
    /// The registry does not have it.
    NotFound,
    /// The list has no image for the platform.
    NoSuchPlatform,
    /// The image is not one that can be stored.
    Malformed,
    /// The content does not match its digest.
    DigestMismatch,
    /// The registry refuses the login.
    Unauthorized,
    /// The file system is full.
    NoSpace,
}

/// Why a request to a registry failed, or could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// `registries.conf` cannot be read or forbids the pull.
    #[error(transparent)]
    Conf(#[from] RegistriesConfError),
    /// `registries.d` cannot be read, or the image's lookaside store has no usable URL.
    #[error(transparent)]
    RegistriesD(#[from] RegistriesDError),
    /// A short name that was not completed; guessing is not safe.
    #[error("`{0}` names no registry")]
    NoRegistry(String),
    /// A pull secret cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// The sockets that enforce it cannot be opened.
    #[error("cannot enforce `--limit-rate`: {0}")]
    Limit(#[source] io::Error),
    /// A certificate or key of the configuration cannot be used.
    #[error("cannot use the certificates of `{}`: {why}", path.display())]
    Certificates {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The image is not one that can be stored.
    #[error("`{reference}`: {source}")]
    Manifest {
        /// The image.
        reference: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// Bytes of a lookaside store that are not a signature.
    #[error("{what}: {source}")]
    Signature {
        /// The signature.
        what: String,
        /// What is wrong with it.
        source: BlobError,
    },
    /// A lookaside store answers for every number.
    #[error("{what}: it has {limit} or more signatures of one image, as if it never ended")]
    TooManySignatures {
        /// The store.
        what: String,
        /// The limit.
        limit: usize,
    },
    /// A signature on the host cannot be read.
    #[error("cannot read the signature `{}`: {source}", path.display())]
    SignatureFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The URL of a signature cannot be requested.
    #[error("{what}: {why}")]
    SignatureUrl {
        /// The signature.
        what: String,
        /// What is wrong with the URL.
        why: String,
    },
    /// 401 with fresh credentials, or 403.
    #[error("{what}: the registry answers {status} to {}{message}{}", login(.credential), missing_login_hint(.credential))]
    Unauthorized {
        /// The content and its source.
        what: String,
        /// 401 or 403.
        status: u16,
        /// Which credential was presented, if any was.
        credential: Option<CredentialOrigin>,
        /// The registry's message, if there is one.
        message: Message,
    },
    /// The registry refuses credentials for an upload. They may be good for pulls.
    #[error(
        "{0}\nhint: these credentials may only be allowed to pull: use credentials that may push to this repository"
    )]
    PushRefused(Box<RegistryError>),
    /// The registry does not name a usable URL for an upload.
    #[error("{what}: {why}")]
    Location {
        /// The content and its target.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// The index of referrers under a tag cannot be extended.
    #[error("{what}: {why}")]
    ReferrersIndex {
        /// The repository or the manifest.
        what: String,
        /// Why.
        why: String,
    },
    /// A file that is to be uploaded cannot be read.
    #[error("{what}: cannot read the file: {source}")]
    File {
        /// The content.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// 407, or 401 by the proxy itself.
    #[error("{what}: proxy `{proxy}` {} ({status}){}", proxy_login(.has_credentials), proxy_hint(.has_credentials))]
    ProxyUnauthorized {
        /// The content and its source.
        what: String,
        /// Its URL, without user and password.
        proxy: String,
        /// The status.
        status: u16,
        /// Whether its URL has a user and a password.
        has_credentials: bool,
    },
    /// The proxy does not open the connection, for another reason.
    #[error("{what}: proxy `{proxy}` refuses the connection{}", answered(.status))]
    ProxyRefusal {
        /// The content and its source.
        what: String,
        /// Its URL, without user and password.
        proxy: String,
        /// The status of its answer, if that is known.
        status: Option<u16>,
    },
    /// `WWW-Authenticate` requires something that is not supported or not safe.
    #[error("{what}: cannot log in: {why}")]
    Challenge {
        /// The content and its source.
        what: String,
        /// What is wrong with the challenge.
        why: String,
    },
    /// Any other status that is no success.
    #[error("{what}: the registry answers {status}{message}{}", status_hint(.status))]
    Status {
        /// The content and its source.
        what: String,
        /// The status.
        status: u16,
        /// The registry's message, if there is one.
        message: Message,
        /// How long the registry asks to wait.
        retry_after: Option<Duration>,
        /// The host that answered is the target of a redirect, whose URL may have expired.
        redirected: bool,
    },
    /// No connection, an untrusted certificate, no answer, or an answer that broke off.
    #[error("{what}: {why}")]
    Transport {
        /// The content and its source.
        what: String,
        /// The chain of causes, without URLs: a redirect's URL is a secret.
        why: String,
        /// A retry fails in the same way: the certificate is not trusted, or the server does not speak TLS.
        lasting: bool,
    },
    /// A manifest, config or token is larger than any valid one.
    #[error("{what}: the answer is larger than {limit} bytes")]
    TooLarge {
        /// The content and its source.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The content does not match its digest.
    #[error("{what}: the content has the digest {found}")]
    WrongDigest {
        /// The content and its source.
        what: String,
        /// The digest of the content.
        found: Digest,
        /// Some of it was received from another source or by an earlier run, so this source need not be the one at fault.
        mixed: bool,
    },
    /// The blob's length is not the manifest's.
    #[error("{what}: it has {found} bytes where the manifest states {expected}")]
    WrongLength {
        /// The content and its source.
        what: String,
        /// By the manifest.
        expected: u64,
        /// As announced or sent.
        found: u64,
    },
    /// The manifest states another length than the blob has, whose digest matches.
    #[error("blob {blob} has {found} bytes and matches its digest, but the manifest states {expected} bytes")]
    WrongSize {
        /// Its digest.
        blob: Digest,
        /// By the manifest.
        expected: u64,
        /// Its real length.
        found: u64,
    },
    /// The body ended before the end of what was requested.
    #[error("{what}: the answer ended {missing} bytes early")]
    Short {
        /// The content and its source.
        what: String,
        /// How many bytes are missing.
        missing: u64,
    },
    /// 206 with another range than was requested.
    #[error("{what}: requested the bytes from {requested} on, the registry answers with `{sent}`")]
    WrongRange {
        /// The content and its source.
        what: String,
        /// The first offset.
        requested: u64,
        /// `Content-Range` as received.
        sent: String,
    },
    /// 416: the registry's blob is shorter than what is already received.
    #[error("{what}: the registry has no bytes from {requested} on")]
    RangeNotSatisfiable {
        /// The content and its source.
        what: String,
        /// The first offset.
        requested: u64,
    },
    /// Another source is faster.
    #[error("{what}: received {received} bytes in {} s, going on with `{other}`", took.as_secs())]
    Slow {
        /// The content and its source.
        what: String,
        /// Bytes from this source.
        received: u64,
        /// The time they took.
        took: Duration,
        /// The registry of the other source.
        other: String,
    },
    /// Next to nothing was received for the configured time.
    #[error("gave up after {} seconds without progress: {last}", after.as_secs())]
    GaveUp {
        /// The configured time.
        after: Duration,
        /// The last error.
        last: Box<RegistryError>,
    },
    /// Each source failed in its own way, for good.
    #[error("no source has {what}:{}", listed(.failures))]
    Sources {
        /// The content.
        what: String,
        /// One for each source, in order.
        failures: Vec<RegistryError>,
    },
    /// The run stops.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn login(credential: &Option<CredentialOrigin>) -> String {
    match credential {
        Some(origin) => format!("the credentials under {origin}"),
        None => "a request without credentials, because no pull secret has any for this repository".into(),
    }
}

/// Most registries, quay.io and Docker Hub among them, do not disclose to a client without credentials whether a repository
/// exists.
fn missing_login_hint(credential: &Option<CredentialOrigin>) -> &'static str {
    match credential {
        Some(_) => "",
        None => {
            "\nhint: add credentials for this repository to a pull secret, or correct the reference: many registries answer so for a \
             repository that does not exist, too"
        }
    }
}

/// What to do about the status.
fn status_hint(status: &u16) -> &'static str {
    match status {
        404 => "\nhint: correct the reference, or push the image to that registry: a mirror may lack it",
        _ => "",
    }
}

fn proxy_login(has_credentials: &bool) -> &'static str {
    match has_credentials {
        true => "refuses the user and password of its URL",
        false => "requires a user and password",
    }
}

fn proxy_hint(has_credentials: &bool) -> &'static str {
    match has_credentials {
        true => "",
        false => "\nhint: put them into its URL: `http://USER:PASSWORD@HOST:PORT`",
    }
}

fn answered(status: &Option<u16>) -> String {
    status
        .map(|status| format!(": it answers {status}"))
        .unwrap_or_default()
}

/// Each failure on its line, then the hints, each once.
fn listed(failures: &[RegistryError]) -> String {
    let (mut lines, mut hints) = (String::new(), Vec::new());
    for failure in failures {
        let text = failure.to_string();
        let mut parts = text.split("\nhint: ");
        lines.extend(parts.next().map(|line| format!("\n  {line}")));
        for hint in parts {
            if !hints.iter().any(|known| known == hint) {
                hints.push(hint.to_owned());
            }
        }
    }
    let hints = hints.iter().map(|hint| format!("\nhint: {hint}"));
    hints.fold(lines, |text, hint| text + &hint)
}

impl RegistryError {
    /// What it means for the run.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Conf(RegistriesConfError::Blocked { .. }) => Kind::Refused,
            Self::Conf(_)
            | Self::RegistriesD(_)
            | Self::Certificates { .. }
            | Self::Limit(_)
            | Self::File { .. }
            | Self::SignatureFile { .. }
            | Self::SignatureUrl { .. } => Kind::Local,
            Self::Credentials(_)
            | Self::Unauthorized { .. }
            | Self::PushRefused(_)
            | Self::ProxyUnauthorized { .. }
            | Self::Challenge { .. } => Kind::Unauthorized,
            Self::Manifest {
                source: ManifestError::NoSuchPlatform { .. },
                ..
            } => Kind::NoSuchPlatform,
            Self::Manifest {
                source: ManifestError::ConfigDigest { .. },
                ..
            }
            | Self::WrongDigest { .. }
            | Self::WrongLength { .. } => Kind::DigestMismatch,
            Self::NoRegistry(_)
            | Self::Manifest { .. }
            | Self::Signature { .. }
            | Self::TooManySignatures { .. }
            | Self::Location { .. }
            | Self::ReferrersIndex { .. }
            | Self::TooLarge { .. }
            | Self::WrongSize { .. } => Kind::Malformed,
            Self::Status { status: 404, .. } => Kind::NotFound,
            Self::Transport { lasting: true, .. } => Kind::Refused,
            Self::ProxyRefusal { .. } if !self.may_pass() => Kind::Refused,
            Self::Status { .. }
            | Self::Transport { .. }
            | Self::ProxyRefusal { .. }
            | Self::Short { .. }
            | Self::WrongRange { .. }
            | Self::RangeNotSatisfiable { .. }
            | Self::Slow { .. }
            | Self::GaveUp { .. } => Kind::Network,
            // The gravest says most about the remedy.
            Self::Sources { failures, .. } => failures.iter().map(Self::kind).max().unwrap_or(Kind::NotFound),
            Self::Stopped(_) => Kind::Stopped,
        }
    }

    /// Whether the same request to the same source may succeed later.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Status {
                status, redirected, ..
            } => match status {
                408 | 425 | 429 => true,
                400 | 401 | 403 => *redirected,
                status => *status >= 500,
            },
            Self::Transport { lasting, .. } => !lasting,
            // The rules of the proxy forbid the host or the port.
            Self::ProxyRefusal { status, .. } => !matches!(status, Some(403 | 405)),
            Self::WrongDigest { mixed, .. } => *mixed,
            Self::Short { .. }
            | Self::WrongRange { .. }
            | Self::RangeNotSatisfiable { .. }
            | Self::Slow { .. } => true,
            _ => false,
        }
    }

    /// Whether the registry did not answer, whatever it is asked for.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::ProxyRefusal { .. })
    }

    /// Whether one more request may get the right content: a bit flipped, or a proxy sent a page instead of the content.
    pub(super) fn may_be_an_accident(&self) -> bool {
        matches!(
            self,
            Self::WrongDigest { .. } | Self::WrongLength { .. } | Self::TooLarge { .. }
        )
    }

    /// The length that the manifest states and the one that every source has, where that is the only error.
    pub(crate) fn lengths(&self) -> Option<(u64, u64)> {
        match self {
            Self::WrongLength { expected, found, .. } => Some((*expected, *found)),
            Self::Sources { failures, .. } => {
                let mut lengths = failures.iter().map(Self::lengths);
                let first = lengths.next()??;
                lengths.all(|other| other == Some(first)).then_some(first)
            }
            _ => None,
        }
    }

    /// How long the registry asks to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// The message of a registry's error: one bounded line without control characters, or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(String);

impl std::fmt::Display for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() {
            return Ok(());
        }
        write!(f, ": {}", self.0)
    }
}

impl Message {
    /// Parses the body of an error: the JSON of the distribution spec ("Error Codes"). Anything else, such as the HTML page
    /// of a proxy, is left out.
    pub(super) fn of_body(body: &[u8]) -> Self {
        let Ok(envelope) = serde_json::from_slice::<OciEnvelope>(body) else {
            return Self::default();
        };
        let errors = envelope.errors.iter().map(|error| {
            let code = serde_json::to_value(&error.code);
            let code = code.ok().and_then(|code| code.as_str().map(str::to_owned));
            let code = code.unwrap_or_default();
            match error.message.as_str() {
                "" => code,
                message => format!("{code}: {message}"),
            }
        });
        Self(excerpt(&errors.collect::<Vec<_>>().join("; ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registrys_message_is_bounded_and_cannot_steer_a_terminal() {
        let body = r#"{"errors":[{"code":"DENIED","message":"no\u001b[31m\nentry"},{"code":"ODD"}]}"#;
        let message = Message::of_body(body.as_bytes());
        assert_eq!(message.to_string(), ": DENIED: no?[31m entry; ODD");
        assert_eq!(Message::of_body(b"<html>").to_string(), "");
    }
}
