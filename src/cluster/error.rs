//! Lists the errors of requests to the cluster's API; no message contains a secret.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a request to the API failed. None of these ends a run, except what `--from-cluster` needs.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file of the service account.
    #[error("cannot read the service account's `{}`: {source}", path.display())]
    ServiceAccount {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The certificate authority of the API server.
    #[error("cannot use the service account's `{}`: {why}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// No connection, no response, or an incomplete response.
    #[error("the API at `{server}` does not respond: {why}")]
    Unreachable {
        /// Host and port.
        server: String,
        /// The error of the last attempt.
        why: String,
    },
    /// The server's certificate is not trusted.
    #[error(
        "the certificate of the API at `{server}` is not signed by the service account's `ca.crt`: {why}"
    )]
    Untrusted {
        /// Host and port.
        server: String,
        /// Why.
        why: String,
    },
    /// 401: the token is refused, and there is no newer one.
    #[error("the API does not accept the service account's token: {message}")]
    Unauthorized {
        /// The server's message.
        message: String,
    },
    /// 403: an RBAC rule is missing.
    #[error(
        "the service account is not allowed `{request}`: {message}\nhint: check it with `oc auth can-i {request}`; the roles in `manifests/` allow it"
    )]
    Forbidden {
        /// Verb and resource.
        request: String,
        /// The server's message.
        message: String,
    },
    /// 404: the object or its kind does not exist.
    #[error("there is no `{path}`")]
    NotFound {
        /// The URL's path.
        path: String,
    },
    /// The cluster has no ClusterVersion.
    #[error(
        "there is no ClusterVersion `version`, so this is not OpenShift\nhint: name the release with `--platform-image` or `--config`"
    )]
    NoClusterVersion,
    /// This pod is not found by its assumed name.
    #[error(
        "there is no pod `{name}`\nhint: in an Indexed Job or with `hostNetwork`, a pod's host name is not its name; set `POD_NAME` with the downward API"
    )]
    NoPod {
        /// The name.
        name: String,
    },
    /// This Job was deleted, and another one was created.
    #[error("the Job `{name}` was replaced by another Job of this name")]
    Replaced {
        /// The name.
        name: String,
    },
    /// Any other response that is not a success.
    #[error("the API responds {status} to `{request}`: {message}")]
    Status {
        /// HTTP status.
        status: u16,
        /// Verb and resource.
        request: String,
        /// The server's message.
        message: String,
        /// The server's Retry-After.
        retry_after: Option<Duration>,
    },
    /// A successful response that cannot be parsed.
    #[error("the API's response to `{request}` is not as expected: {why}")]
    Unexpected {
        /// Verb and resource.
        request: String,
        /// Why.
        why: String,
    },
    /// A name that Kubernetes does not allow.
    #[error("`{0}` is not a valid name of an object")]
    Name(String),
}

impl ClusterError {
    /// Whether the object does not exist.
    pub(super) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether another client wrote the same object at the same moment.
    pub(super) fn is_conflict(&self) -> bool {
        matches!(self, Self::Status { status: 409, .. })
    }

    /// Whether a retry soon may succeed: the server is overloaded, restarting or unreachable.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 409 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// Whether the request itself is refused: a retry would fail again, while other requests may succeed.
    pub fn is_refusal(&self) -> bool {
        match self {
            // The next token or the next certificate may be accepted.
            Self::ServiceAccount { .. }
            | Self::Authority { .. }
            | Self::Untrusted { .. }
            | Self::Unauthorized { .. } => false,
            other => !other.is_transient(),
        }
    }

    /// The server's Retry-After.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}
