//! What can go wrong between us and a registry, whether trying again can help, and what a registry may say in it.

use std::path::PathBuf;
use std::time::Duration;

use oci_distribution::errors::OciEnvelope;

use crate::cancel::Stopped;
use crate::oci::{Digest, ManifestError};

use super::credentials::{CredentialsError, Origin};
use super::registries_conf::RegistriesConfError;

/// What an error means for the run; exit codes are chosen from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The run is to end; nothing is wrong.
    Stopped,
    /// The link or a registry did not work; later it may.
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
    /// What came is not what its digest says.
    DigestMismatch,
    /// The registry does not let us in.
    Unauthorized,
    /// The file system is full.
    NoSpace,
}

/// Why a registry could not be asked, or did not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// `registries.conf` cannot be read or forbids the pull.
    #[error(transparent)]
    Conf(#[from] RegistriesConfError),
    /// Nobody completed it, and nobody is to guess.
    #[error("`{0}` names no registry")]
    NoRegistry(String),
    /// A pull secret cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// Its sockets cannot be had.
    #[error("cannot hold `--limit-rate`: {0}")]
    Limit(#[source] std::io::Error),
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
        /// Where it came from.
        reference: String,
        /// What is wrong with it.
        source: ManifestError,
    },
    /// 401 with fresh credentials, or 403.
    #[error("{what}: the registry answers {status} to {}{message}{}", login(.credential), doubt(.credential))]
    Unauthorized {
        /// What was asked for, and of whom.
        what: String,
        /// 401 or 403.
        status: u16,
        /// Which credential was presented, if any was.
        credential: Option<Origin>,
        /// What the registry says, if it says anything.
        message: Message,
    },
    /// 407, or 401 by the proxy itself.
    #[error("{what}: proxy `{proxy}` {} ({status}){}", proxy_login(.has_credentials), proxy_hint(.has_credentials))]
    ProxyUnauthorized {
        /// What was asked for, and of whom.
        what: String,
        /// Its URL, without user and password.
        proxy: String,
        /// The status.
        status: u16,
        /// Whether its URL has a user and a password.
        has_credentials: bool,
    },
    /// The proxy does not connect us, for another reason.
    #[error("{what}: proxy `{proxy}` does not connect us{}", answered(.status))]
    ProxyRefusal {
        /// What was asked for, and of whom.
        what: String,
        /// Its URL, without user and password.
        proxy: String,
        /// What it answers, if that is known.
        status: Option<u16>,
    },
    /// `WWW-Authenticate` asks for something that cannot or must not be done.
    #[error("{what}: cannot log in: {why}")]
    Challenge {
        /// What was asked for, and of whom.
        what: String,
        /// What is wrong with the challenge.
        why: String,
    },
    /// Any other status that is no success.
    #[error("{what}: the registry answers {status}{message}{}", missing(.status))]
    Status {
        /// What was asked for, and of whom.
        what: String,
        /// The status.
        status: u16,
        /// What the registry says, if it says anything.
        message: Message,
        /// How long it wants to be left alone.
        retry_after: Option<Duration>,
        /// The answer came from where the registry redirected us, through a URL that may have expired.
        redirected: bool,
    },
    /// No connection, no trust, no answer, or an answer that broke off.
    #[error("{what}: {why}")]
    Transport {
        /// What was asked for, and of whom.
        what: String,
        /// The chain of causes, without URLs: a redirect's URL is a secret.
        why: String,
        /// The same will happen again: the certificate is not trusted, or it is not TLS at all.
        lasting: bool,
    },
    /// A manifest, config or token is larger than can be true.
    #[error("{what}: the answer is larger than {limit} bytes")]
    TooLarge {
        /// What was asked for, and of whom.
        what: String,
        /// The limit.
        limit: u64,
    },
    /// The content is not what was asked for.
    #[error("{what}: the content has the digest {found}")]
    WrongDigest {
        /// What was asked for, and of whom.
        what: String,
        /// The digest of what came.
        found: Digest,
        /// Part of it came from another source or an earlier run, and either may be to blame.
        mixed: bool,
    },
    /// The blob's length is not the manifest's.
    #[error("{what}: it has {found} bytes where the manifest says {expected}")]
    WrongLength {
        /// What was asked for, and of whom.
        what: String,
        /// As the manifest says.
        expected: u64,
        /// As the registry announces, or as there are.
        found: u64,
    },
    /// The manifest gives a blob another length than it has; its digest matches.
    #[error("blob {blob} has {found} bytes and matches its digest, but the manifest says {expected} bytes")]
    WrongSize {
        /// Its digest.
        blob: Digest,
        /// As the manifest says.
        expected: u64,
        /// As there are.
        found: u64,
    },
    /// The body ended before its time.
    #[error("{what}: the answer ended {missing} bytes early")]
    Short {
        /// What was asked for, and of whom.
        what: String,
        /// How many bytes did not come.
        missing: u64,
    },
    /// 206 with another range than was asked for.
    #[error("{what}: asked for the bytes from {asked} on, the registry answers with `{given}`")]
    WrongRange {
        /// What was asked for, and of whom.
        what: String,
        /// The offset.
        asked: u64,
        /// `Content-Range` as it came.
        given: String,
    },
    /// 416: to the registry, the blob is not as long as what we have of it.
    #[error("{what}: the registry has no bytes from {asked} on")]
    RangeNotSatisfiable {
        /// What was asked for, and of whom.
        what: String,
        /// The offset.
        asked: u64,
    },
    /// Another source is worth leaving this one.
    #[error("{what}: {came} bytes came in {} s, going on with `{other}`", took.as_secs())]
    Slow {
        /// What was asked for, and of whom.
        what: String,
        /// How many bytes.
        came: u64,
        /// In which time.
        took: Duration,
        /// The registry of the other source.
        other: String,
    },
    /// Next to nothing came for as long as was allowed.
    #[error("gave up after {} seconds without progress: {last}", after.as_secs())]
    GaveUp {
        /// How long.
        after: Duration,
        /// What happened last.
        last: Box<RegistryError>,
    },
    /// Each source failed in its own way, for good.
    #[error("no source has {what}:{}", listed(.failures))]
    Sources {
        /// What was looked for.
        what: String,
        /// One for each source, in order.
        failures: Vec<RegistryError>,
    },
    /// The run is to end.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

fn login(credential: &Option<Origin>) -> String {
    match credential {
        Some(origin) => format!("the credentials under {origin}"),
        None => "a request without credentials, for no pull secret has any for it".into(),
    }
}

/// Who may not know which repositories there are is not told by most registries, quay.io and Docker Hub among them.
fn doubt(credential: &Option<Origin>) -> &'static str {
    match credential {
        Some(_) => "",
        None => "\nhint: many registries answer so for a repository that does not exist, too",
    }
}

/// What to do about what is not there.
fn missing(status: &u16) -> &'static str {
    match status {
        404 => "\nhint: correct the reference, or bring the image to that registry: a mirror may lack it",
        _ => "",
    }
}

fn proxy_login(has_credentials: &bool) -> &'static str {
    match has_credentials {
        true => "refuses the user and password of its URL",
        false => "wants a user and password",
    }
}

fn proxy_hint(has_credentials: &bool) -> &'static str {
    match has_credentials {
        true => "",
        false => "\nhint: write them into its URL: `http://USER:PASSWORD@HOST:PORT`",
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
            Self::Conf(_) | Self::Certificates { .. } | Self::Limit(_) => Kind::Local,
            Self::Credentials(_)
            | Self::Unauthorized { .. }
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
            Self::NoRegistry(_) | Self::Manifest { .. } | Self::TooLarge { .. } | Self::WrongSize { .. } => {
                Kind::Malformed
            }
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
            // The gravest says most about what is to be done.
            Self::Sources { failures, .. } => failures.iter().map(Self::kind).max().unwrap_or(Kind::NotFound),
            Self::Stopped(_) => Kind::Stopped,
        }
    }

    /// Whether the same request to the same place may succeed later.
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
            // Its rules forbid the host or the port.
            Self::ProxyRefusal { status, .. } => !matches!(status, Some(403 | 405)),
            Self::WrongDigest { mixed, .. } => *mixed,
            Self::Short { .. }
            | Self::WrongRange { .. }
            | Self::RangeNotSatisfiable { .. }
            | Self::Slow { .. } => true,
            _ => false,
        }
    }

    /// Whether there was no answer, which says something of the registry and not only of what it was asked for.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Transport { .. } | Self::ProxyRefusal { .. })
    }

    /// Whether it may have been an accident that one more request shows to be over: a bit that flipped, a page that a
    /// proxy put in the place of the content.
    pub(super) fn may_be_an_accident(&self) -> bool {
        matches!(
            self,
            Self::WrongDigest { .. } | Self::WrongLength { .. } | Self::TooLarge { .. }
        )
    }

    /// The length that the manifest says and the one that every source has, where that is all that is wrong.
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

    /// How long the registry wants to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

/// What a registry says about an error: one bounded line without control characters, or nothing.
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
    /// Reads the body of an error: the envelope of the distribution spec, or nothing of use. HTML pages of
    /// proxies are left out.
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
        Self(printable(&errors.collect::<Vec<_>>().join("; ")))
    }
}

/// How much of a server's text is repeated.
const PRINTABLE_CHARS: usize = 300;

/// A server's text made fit for a log: bounded, on one line, without terminal escapes.
pub(super) fn printable(text: &str) -> String {
    let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    clean.take(PRINTABLE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_says_is_bounded_and_cannot_steer_a_terminal() {
        let body = r#"{"errors":[{"code":"DENIED","message":"no\u001b[31m\nentry"},{"code":"ODD"}]}"#;
        let message = Message::of_body(body.as_bytes());
        assert_eq!(message.to_string(), ": DENIED: no [31m entry; ODD");
        assert_eq!(Message::of_body(b"<html>").to_string(), "");
        assert_eq!(printable(&"x".repeat(5000)).len(), PRINTABLE_CHARS);
    }
}
