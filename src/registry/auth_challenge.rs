//! Parses `WWW-Authenticate`: how a registry requires its clients to log in (RFC 9110, 11.6.1).

use http_auth::ChallengeRef;
use reqwest::Url;
use reqwest::header::{HeaderMap, WWW_AUTHENTICATE};

use crate::http::excerpt;

/// One way to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password with every request.
    Basic,
    /// A token from a token server.
    Bearer(TokenServer),
}

/// Where the registry's tokens are requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenServer {
    pub(super) realm: Url,
    pub(super) service: Option<String>,
}

impl Challenge {
    /// The first challenge that can be answered, as in containers/image; without a password that is a token, which may be
    /// anonymous. The error states what is wrong with the last one.
    pub(super) fn first(headers: &HeaderMap, has_password: bool) -> Result<Self, String> {
        let mut basic = None;
        let mut why = "the registry answers 401 without `WWW-Authenticate`".to_owned();
        for value in headers.get_all(WWW_AUTHENTICATE) {
            let Ok(text) = value.to_str() else {
                why = "`WWW-Authenticate` is not text".into();
                continue;
            };
            let challenges = match http_auth::parse_challenges(text) {
                Ok(challenges) => challenges,
                Err(_) => {
                    why = format!("`WWW-Authenticate` cannot be parsed: `{}`", excerpt(text));
                    continue;
                }
            };
            for challenge in challenges {
                match Self::read(&challenge) {
                    Ok(Self::Basic) if !has_password => basic = Some(Self::Basic),
                    Ok(challenge) => return Ok(challenge),
                    Err(reason) => why = reason,
                }
            }
        }
        basic.ok_or(why)
    }

    fn read(challenge: &ChallengeRef<'_>) -> Result<Self, String> {
        let parameter = |name: &str| {
            let found = challenge
                .params
                .iter()
                .find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.to_unescaped())
        };
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            return Ok(Self::Basic);
        }
        if !challenge.scheme.eq_ignore_ascii_case("bearer") {
            return Err(format!(
                "the authentication scheme `{}` is not supported",
                excerpt(challenge.scheme)
            ));
        }
        let realm = parameter("realm").unwrap_or_default();
        match Url::parse(&realm) {
            Ok(realm) if matches!(realm.scheme(), "http" | "https") && realm.has_host() => {
                Ok(Self::Bearer(TokenServer {
                    realm,
                    service: parameter("service").filter(|service| !service.is_empty()),
                }))
            }
            _ => Err(format!("the realm `{}` is not an HTTP URL", excerpt(&realm))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(values: &[&str]) -> Result<Challenge, String> {
        first_for(values, true)
    }

    fn first_for(values: &[&str], has_password: bool) -> Result<Challenge, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(WWW_AUTHENTICATE, value.parse().expect("a header"));
        }
        Challenge::first(&headers, has_password)
    }

    #[test]
    fn takes_the_first_that_can_be_answered() {
        let quay = r#"Bearer realm="https://quay.io/v2/auth",service="quay.io",scope="repository:a/b:pull""#;
        let bearer = Challenge::Bearer(TokenServer {
            realm: Url::parse("https://quay.io/v2/auth").expect("a URL"),
            service: Some("quay.io".into()),
        });
        assert_eq!(first(&[quay]), Ok(bearer.clone()));
        assert_eq!(first(&["Negotiate", quay]), Ok(bearer.clone()));
        assert_eq!(
            first(&[&format!("Digest realm=\"x\", {quay}, Basic realm=\"y\"")]),
            Ok(bearer)
        );
        assert_eq!(first(&["basic realm=\"Registry Realm\""]), Ok(Challenge::Basic));
        let both = format!("Basic realm=\"x\", {quay}");
        assert_eq!(first(&[&both]), Ok(Challenge::Basic));
        assert_eq!(first(&["Basic realm=\"x\"", quay]), Ok(Challenge::Basic));
        for values in [
            &[both.as_str()][..],
            &["Basic realm=\"x\"", quay],
            &[quay, "Basic"],
        ] {
            let bearer = first(&[quay]);
            assert_eq!(first_for(values, false), bearer, "{values:?}");
        }
        assert_eq!(first_for(&["Negotiate", "Basic"], false), Ok(Challenge::Basic));
    }

    #[test]
    fn the_error_states_what_is_wrong() {
        for (values, why) in [
            (&[][..], "without `WWW-Authenticate`"),
            (&["Negotiate"], "scheme `Negotiate`"),
            (&["Bearer service=\"x\""], "realm ``"),
            (
                &["Bearer realm=\"file:///etc/shadow\""],
                "realm `file:///etc/shadow`",
            ),
            (&["Bearer realm="], "cannot be parsed"),
        ] {
            let error = first(values).expect_err("no answer");
            assert!(error.contains(why), "{error}");
        }
    }
}
