//! Checks credentials of the fake registry: basic, or bearer tokens from `/token`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// What a registry asks for.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    bearer: bool,
    /// `user:password`; none: tokens for every client, like public registries.
    credentials: Option<String>,
    issued: u64,
    /// Tokens up to this number are worth nothing.
    revoked: u64,
}

impl Auth {
    /// `Authorization: Basic` with every request.
    pub(crate) fn basic(user: &str, password: &str) -> Self {
        Self {
            bearer: false,
            credentials: Some(format!("{user}:{password}")),
            issued: 0,
            revoked: 0,
        }
    }

    /// Tokens for those who have these credentials.
    pub(crate) fn bearer(user: &str, password: &str) -> Self {
        Self {
            bearer: true,
            ..Self::basic(user, password)
        }
    }

    /// Tokens for every client.
    pub(crate) fn anonymous_bearer() -> Self {
        Self {
            bearer: true,
            credentials: None,
            issued: 0,
            revoked: 0,
        }
    }

    pub(super) fn revoke(&mut self) {
        self.revoked = self.issued;
    }

    /// The value of `WWW-Authenticate` for a request to `path` that may not pass; none if it may.
    pub(super) fn challenge(&self, authorization: Option<&str>, path: &str, host: &str) -> Option<String> {
        let passes = match authorization.and_then(|value| value.split_once(' ')) {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && self.bearer => {
                let number = token
                    .strip_prefix("token-")
                    .and_then(|number| number.parse::<u64>().ok());
                number.is_some_and(|number| number > self.revoked && number <= self.issued)
            }
            Some((scheme, value)) if scheme.eq_ignore_ascii_case("basic") && !self.bearer => {
                self.knows(value)
            }
            _ => false,
        };
        if passes {
            return None;
        }
        if !self.bearer {
            return Some(r#"Basic realm="fake""#.to_owned());
        }
        let repository = path.strip_prefix("/v2/").and_then(|rest| {
            rest.split_once("/manifests/")
                .or_else(|| rest.split_once("/blobs/"))
                .map(|(repository, _)| repository)
        });
        let scope = repository.map_or_else(String::new, |name| format!(r#",scope="repository:{name}:pull""#));
        Some(format!(
            r#"Bearer realm="http://{host}/token",service="fake"{scope}"#
        ))
    }

    /// A new token, if the request may have one.
    pub(super) fn token(&mut self, authorization: Option<&str>) -> Option<String> {
        let basic = authorization
            .and_then(|value| value.split_once(' '))
            .map(|(_, value)| value);
        if self.credentials.is_some() && !basic.is_some_and(|value| self.knows(value)) {
            return None;
        }
        self.issued += 1;
        Some(format!("token-{}", self.issued))
    }

    fn knows(&self, basic: &str) -> bool {
        self.credentials
            .as_ref()
            .is_some_and(|known| STANDARD.encode(known) == basic)
    }
}
