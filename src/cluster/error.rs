//! What goes wrong between us and the API, without secrets.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the API did not do what it was asked. Nothing of it ends a run.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file of the service account.
    #[error("cannot read the service account's `{}`: {source}", path.display())]
    ServiceAccount {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The authority that signed the API server's certificate.
    #[error("cannot use the service account's `{}`: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No connection, no answer, half an answer.
    #[error("the API at `{server}` does not answer: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The last attempt's reason.
        why: String,
    },
    /// Somebody else than the API server, as far as its certificate says.
    #[error("the service account's `ca.crt` does not vouch for the API at `{server}`: {why}")]
    Untrusted {
        /// Host and port.
        server: String,
        /// What is wrong with the certificate.
        why: String,
    },
    /// 401: the token is not accepted, and there is no newer one.
    #[error("the API does not accept the service account's token: {said}")]
    Unauthorized {
        /// The server's words.
        said: String,
    },
    /// 403: a rule is missing.
    #[error(
        "the service account is not allowed `{question}`: {said}\nhint: see whether it is with `oc auth can-i {question}`; the roles in `manifests/` allow it"
    )]
    Forbidden {
        /// Verb and resource.
        question: String,
        /// The server's words.
        said: String,
    },
    /// 404: no such object, or no such kind of object.
    #[error("there is no `{path}`")]
    Missing {
        /// Path of the URL.
        path: String,
    },
    /// Our own pod is not found by what we take for its name.
    #[error(
        "there is no pod `{name}`\nhint: where a pod's host name is not its name, as in an Indexed Job or with `hostNetwork`, set `POD_NAME` by the downward API"
    )]
    NoPod {
        /// The name.
        name: String,
    },
    /// Our own Job is gone, and there is another one.
    #[error("another Job has the name `{name}` now")]
    Replaced {
        /// The name.
        name: String,
    },
    /// Any other answer that is not a success.
    #[error("the API answers {status} to `{question}`: {said}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Verb and resource.
        question: String,
        /// The server's words.
        said: String,
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// A success that is not understood.
    #[error("the API's answer to `{question}` is not as expected: {why}")]
    Unexpected {
        /// Verb and resource.
        question: String,
        /// What is wrong with it.
        why: String,
    },
    /// A name that cannot be one of Kubernetes'.
    #[error("`{0}` is no name of an object")]
    Name(String),
}

impl ClusterError {
    /// Whether there is no such thing.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Whether somebody else wrote the same object at the same moment.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: 409, .. })
    }

    /// Whether it is worth while to ask again soon: the server is overloaded, restarts, or is out of reach.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 409 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether this question itself is what is wrong: it would be answered so again, and others may not be.
    pub(super) fn is_refusal(&self) -> bool {
        match self {
            // The next token may be accepted, and the next certificate.
            Self::ServiceAccount { .. }
            | Self::Authority { .. }
            | Self::Untrusted { .. }
            | Self::Unauthorized { .. } => false,
            other => !other.may_pass(),
        }
    }

    /// When the server wants to be asked again.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
