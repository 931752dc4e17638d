//! Parses one pull secret (`auth.json` of containers, `config.json` of Docker and the kubelet) and finds a login in it.
//!
//! ```text
//! {"auths": {"quay.io":             {"auth": base64 of "user:password"},
//!            "quay.io/team":        {"auth": …},                            the longest key wins
//!            "https://host/v1/":    {"auth": …},                            as older `docker login` writes it
//!            "token.example.com":   {"auth": …, "identitytoken": …},        OAuth2
//!            "kept.example.com":    {}},                                    the password is in `credsStore`
//!  "credHelpers": {"gcr.io": "gcloud"}, "credsStore": "desktop"}
//! ```
//!
//! Docker Hub has three names in keys. Go's decoder ignores the case of keys, takes `null` as absent and accepts wrapped base64;
//! the parser here does too, because a file that works on the node has to work. The kubelet reads `username` and `password`,
//! which containers/image does not.
//!
//! No message repeats the content of a file. The messages of the JSON parser would, so they are dropped.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use secrecy::SecretString;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::oci::Reference;

use super::login::{Credential, CredentialOrigin, CredentialsError};

/// As Go's `base64.StdEncoding`: padded, and unused bits are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A parsed pull secret.
#[derive(Debug)]
pub(super) struct AuthFile {
    path: PathBuf,
    auths: HashMap<String, AuthEntry>,
    helpers: HashMap<String, String>,
    has_store: bool,
}

#[derive(Default)]
struct AuthJson {
    auths: HashMap<String, Option<AuthEntry>>,
    helpers: HashMap<String, String>,
    store: Option<String>,
    /// It has at least one of the known keys.
    is_known: bool,
    /// A value outside of `auths` has the form of an entry.
    is_legacy: bool,
}

#[derive(Debug, Default)]
struct AuthEntry {
    auth: Option<SecretString>,
    username: Option<SecretString>,
    password: Option<SecretString>,
    identity_token: Option<SecretString>,
}

impl<'de> Deserialize<'de> for AuthJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = AuthJson;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with `auths`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AuthJson, A::Error> {
                let mut document = AuthJson::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.to_ascii_lowercase().as_str() {
                        "auths" => document
                            .auths
                            .extend(map.next_value::<Option<HashMap<_, _>>>()?.unwrap_or_default()),
                        "credhelpers" => {
                            let helpers = map.next_value::<Option<HashMap<_, _>>>()?;
                            document.helpers.extend(helpers.unwrap_or_default());
                        }
                        "credsstore" => document.store = map.next_value()?,
                        _ => {
                            document.is_legacy |= map.next_value::<OtherValue>()?.has_credentials;
                            continue;
                        }
                    }
                    document.is_known = true;
                }
                Ok(document)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

impl<'de> Deserialize<'de> for AuthEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = AuthEntry;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object with `auth`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<AuthEntry, A::Error> {
                let mut entry = AuthEntry::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.to_ascii_lowercase().as_str() {
                        "auth" => entry.auth = map.next_value()?,
                        "username" => entry.username = map.next_value()?,
                        "password" => entry.password = map.next_value()?,
                        "identitytoken" => entry.identity_token = map.next_value()?,
                        _ => _ = map.next_value::<IgnoredAny>()?,
                    }
                }
                Ok(entry)
            }
        }
        deserializer.deserialize_map(Keys)
    }
}

/// A value beside `auths`: Docker's other settings, or, in an old `.dockercfg`, the entries themselves.
struct OtherValue {
    has_credentials: bool,
}

impl<'de> Deserialize<'de> for OtherValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Form {
            Object(HashMap<String, IgnoredAny>),
            Else(IgnoredAny),
        }
        let form = Form::deserialize(deserializer)?;
        let has_credentials = match form {
            Form::Object(object) => object.keys().any(|key| {
                ["auth", "username", "identitytoken"].contains(&key.to_ascii_lowercase().as_str())
            }),
            Form::Else(_) => false,
        };
        Ok(Self { has_credentials })
    }
}

impl AuthFile {
    /// Parses a file's bytes; `path` is for messages.
    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, CredentialsError> {
        let document: AuthJson = serde_json::from_slice(bytes).map_err(|error| CredentialsError::Parse {
            path: path.into(),
            line: error.line(),
            column: error.column(),
        })?;
        if document.is_legacy && !document.is_known {
            return Err(CredentialsError::Legacy { path: path.into() });
        }
        let entries = document.auths.into_iter();
        Ok(Self {
            path: path.into(),
            auths: entries
                .map(|(key, entry)| (key, entry.unwrap_or_default()))
                .collect(),
            helpers: document.helpers,
            has_store: document.store.is_some_and(|store| !store.is_empty()),
        })
    }

    /// The login for this repository.
    pub(super) fn find(&self, reference: &Reference) -> Result<Option<Credential>, CredentialsError> {
        let host = reference.domain();
        if self.helpers.contains_key(host) {
            return Err(CredentialsError::Helper(self.origin(host)));
        }
        let Some((key, entry)) = self.entry(reference) else {
            return Ok(None);
        };
        let credential = entry.credential(self.origin(key))?;
        // `docker login` with a store leaves an empty entry behind.
        if credential.is_none() && self.has_store {
            return Err(CredentialsError::Helper(self.origin(key)));
        }
        Ok(credential)
    }

    fn entry(&self, reference: &Reference) -> Option<(&str, &AuthEntry)> {
        let repository = reference.repository();
        let mut key = repository.as_str();
        loop {
            if let Some((key, entry)) = self.auths.get_key_value(key) {
                return Some((key, entry));
            }
            match key.rsplit_once('/') {
                Some((parent, _)) => key = parent,
                None => break,
            }
        }
        // The key may be a URL or another name of Docker Hub. Several may fit, and a hash map has no order, so the least is
        // taken.
        let wanted = canonical_host(reference.domain());
        let same = self.auths.iter().filter(|(key, _)| canonical_key(key) == wanted);
        same.min_by_key(|(key, _)| *key)
            .map(|(key, entry)| (key.as_str(), entry))
    }

    fn origin(&self, key: &str) -> CredentialOrigin {
        CredentialOrigin {
            path: self.path.clone(),
            key: key.into(),
        }
    }
}

impl AuthEntry {
    /// Nothing for an entry without content, which means anonymous access.
    fn credential(&self, origin: CredentialOrigin) -> Result<Option<Credential>, CredentialsError> {
        use secrecy::ExposeSecret as _;
        let given =
            |field: &Option<SecretString>| field.clone().filter(|text| !text.expose_secret().is_empty());
        let mut username = given(&self.username).unwrap_or_default();
        let mut password = given(&self.password).unwrap_or_default();
        let identity_token = given(&self.identity_token);
        if let Some(auth) = given(&self.auth) {
            let decoded = decode(auth.expose_secret()).and_then(|bytes| String::from_utf8(bytes).ok());
            let Some((user, secret)) = decoded.as_deref().and_then(|text| text.split_once(':')) else {
                return Err(CredentialsError::Auth(origin));
            };
            // Docker once padded passwords with NUL.
            (username, password) = (user.into(), secret.trim_matches('\0').into());
        }
        let is_empty = username.expose_secret().is_empty() && password.expose_secret().is_empty();
        if is_empty && identity_token.is_none() {
            return Ok(None);
        }
        Ok(Some(Credential {
            username,
            password,
            identity_token,
            origin,
        }))
    }
}

/// The decoded bytes. Line breaks are ignored, as in Go.
fn decode(base64: &str) -> Option<Vec<u8>> {
    let unbroken: String = base64.trim().split(['\r', '\n']).collect();
    BASE64.decode(unbroken).ok()
}

/// The host of a key that is a URL, as older `docker login` writes it.
fn canonical_key(key: &str) -> &str {
    let without_scheme = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"));
    match without_scheme {
        Some(rest) => canonical_host(rest.split('/').next().unwrap_or_default()),
        None => canonical_host(key),
    }
}

fn canonical_host(host: &str) -> &str {
    match host {
        "docker.io" | "registry-1.docker.io" => "index.docker.io",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    // A test prints what it skipped and how much it compared.
    #![allow(clippy::print_stderr)]

    use base64::prelude::*;
    use secrecy::ExposeSecret as _;

    use super::*;
    use crate::registry::{Credentials, registries_conf};

    fn find(text: &str, reference: &str) -> Result<Option<String>, CredentialsError> {
        let file = AuthFile::parse(Path::new("auth.json"), text.as_bytes())?;
        let found = file.find(&reference.parse().expect("a reference"))?;
        Ok(found.map(|found| describe(&found)))
    }

    fn describe(found: &Credential) -> String {
        let (user, password) = (found.username.expose_secret(), found.password.expose_secret());
        let token = found.identity_token.as_ref().map_or("", |_| " and a token");
        format!("{user}:{password}{token}")
    }

    /// After containers/image's own tests (`pkg/docker/config`), over their files; some rows are ours. Every file is there.
    #[test]
    fn finds_what_containers_image_finds() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/auth-json/containers-image");
        if !corpus.exists() {
            crate::notice::print("SKIPPED", &format!("no corpus at {}", corpus.display()));
            return;
        }
        let rows = [
            ("full.json", "example.org/x", "example:org"),
            ("full.json", "docker.io/x", "docker:io"),
            ("full.json", "localhost/x", "local:host"),
            ("full.json", "localhost:5000/x", "local:host-5000"),
            ("full.json", "10.10.30.45:5000/x", "10.10:30.45-5000"),
            ("full.json", "normalize.example.org/x", "normalize:example"),
            ("full.json", "nowhere.example.org/x", "nothing"),
            ("abnormal.json", "docker.io/x", "index:docker.io"),
            ("abnormal.json", "localhost/x", "local:host"),
            ("abnormal.json", "localhost:5001/x", "local:host-5001"),
            ("abnormal.json", "127.0.0.1:5000/x", "127.0:0.1-5000"),
            ("refpath.json", "example.org/repo", "example:org"),
            ("refpath.json", "example.org/repo/image", "example:org"),
            ("refpath.json", "example.org/repository", "local:host"),
            ("refpath.json", "docker.io/vendor/x", "first:level"),
            ("refpath.json", "docker.io/busybox", "library:busybox"),
            ("refpath.json", "docker.io/alpine", "library:other"),
            ("refpath.json", "docker.io/other/x", "top:level"),
            ("empty.json", "example.org/x", "nothing"),
            ("example.json", "example.org/x", "example:org"),
            ("example.json", "registry.example.org/x", "nothing"),
            (
                "example_identitytoken.json",
                "example.org/x",
                "00000000-0000-0000-0000-000000000000: and a token",
            ),
            (
                "config.json",
                "registry-no-creds.com/x",
                "`registry-no-creds.com` of `config.json` refers to",
            ),
            ("config.json", "registry-a.com/x", "nothing"),
            ("legacy.json", "localhost/x", "the form of an old `.dockercfg`"),
            (
                "cred-helper.conf",
                "registry-a.com/x",
                "names the program `helper-registry`",
            ),
            ("cred-helper-with-auth-files.conf", "example.org/x", "example:org"),
            (
                "cred-helper-with-auth-files.conf",
                "registry-a.com/x",
                "names the program `helper-registry`",
            ),
        ];
        for (name, reference, expected) in rows {
            let text = std::fs::read_to_string(corpus.join(name)).expect("a file");
            let found = match name.strip_suffix(".conf") {
                None => Credentials::parse(Path::new(name), &text),
                Some(_) => {
                    let conf = registries_conf::parse_text(&text).expect("valid");
                    let example = corpus.join("example.json");
                    let credentials = Credentials::read(&[example]).expect("valid");
                    Ok(credentials.with_helpers(conf.credential_helpers))
                }
            };
            let found = found.and_then(|all| all.find(&reference.parse().expect("a reference")));
            let found = match found {
                Ok(found) => found.map_or_else(|| "nothing".to_owned(), |found| describe(&found)),
                Err(why) => why.to_string(),
            };
            assert!(found.contains(expected), "{reference} in {name}: {found}");
        }
        let mut files: Vec<_> = std::fs::read_dir(&corpus)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name())
            .collect();
        // The program that must not be executed.
        files.retain(|file| file != "docker-credential-helper-registry");
        for file in &files {
            assert!(rows.iter().any(|(name, ..)| file == name), "{file:?} is new");
        }
        eprintln!(
            "auth.json: {} look-ups in {} files agree",
            rows.len(),
            files.len()
        );
    }

    /// Files that work on a node because Go reads them, and what goes beyond it.
    #[test]
    fn odd_forms_are_read_as_the_node_reads_them() {
        let auth = BASE64_STANDARD.encode("user:a password of fifty characters, for it to be wrapped");
        let (first, second) = auth.split_at(60);
        let long = "user:a password of fifty characters, for it to be wrapped";
        for (text, expected) in [
            (
                format!(r#"{{"auths":{{"a.io":{{"auth":"{first}\n{second}\n"}}}}}}"#),
                Some(long),
            ),
            (
                format!(r#"{{"Auths":{{"a.io":{{"Auth":"{auth}"}}}}}}"#),
                Some(long),
            ),
            (
                r#"{"auths":{"a.io":{"auth":"dTpw"}},"auths":null}"#.to_owned(),
                Some("u:p"),
            ),
            // The unused bits of the last digit are set.
            (
                r#"{"auths":{"a.io":{"auth":"dTpwcR=="}}}"#.to_owned(),
                Some("u:pq"),
            ),
            (
                r#"{"auths":{"a.io":{"auth":"dTpwAAA="}}}"#.to_owned(),
                Some("u:p"),
            ),
            (
                r#"{"auths":{"a.io":{"auth":"dTpwOnE=","x":1}}}"#.to_owned(),
                Some("u:p:q"),
            ),
            (r#"{"auths":{"a.io":null}}"#.to_owned(), None),
            (
                r#"{"auths":null,"credHelpers":null,"credsStore":null}"#.to_owned(),
                None,
            ),
            (
                r#"{"HttpHeaders":{"User-Agent":"x"},"detachKeys":"ctrl-e"}"#.to_owned(),
                None,
            ),
            ("{}".to_owned(), None),
        ] {
            assert_eq!(find(&text, "a.io/x").expect(&text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_place() {
        for (text, expected) in [
            ("", "at line 1, column 0"),
            ("[]", "at line 1, column 0"),
            ("{\"auths\":\n {\"a.io\": 5}}", "at line 2, column"),
            ("{\"auths\":{}}\n}", "at line 2, column 1"),
            ("{\"auths\":\n\n{\"a.io\":{\"auth\":7}}}", "at line 3, column"),
            (r#"{"a.io":{"auth":"dTpw"}}"#, "the form of an old `.dockercfg`"),
            (
                r#"{"auths":{"a.io":{"auth":"dTpw=="}}}"#,
                "`a.io` of `auth.json` has an `auth` that is not",
            ),
            (
                r#"{"auths":{"a.io":{"auth":"dXA="}}}"#,
                "`a.io` of `auth.json` has an `auth` that is not",
            ),
        ] {
            let error = find(text, "a.io/x").expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let not_utf8 = AuthFile::parse(Path::new("auth.json"), b"{\"auths\":\n{\"\xff\":{}}}");
        let error = not_utf8.expect_err("not UTF-8").to_string();
        assert!(error.contains("line 2, column"), "{error}");
    }

    #[test]
    fn user_and_password_may_stand_alone_and_a_store_is_refused() {
        let text = r#"{"auths":{"a.io":{"username":"u","password":"p"},"b.io":{}},"credsStore":"desktop"}"#;
        assert_eq!(find(text, "a.io/x").expect("valid").as_deref(), Some("u:p"));
        assert_eq!(find(text, "c.io/x").expect("valid"), None);
        assert!(matches!(find(text, "b.io/x"), Err(CredentialsError::Helper(_))));
    }

    #[test]
    fn nothing_secret_is_said() {
        let auth = BASE64_STANDARD.encode("hunter2");
        for text in [
            r#"{"auths":{"a.io":"hunter2"}}"#.to_owned(),
            r#"{"auths":{"a.io":{"password":["hunter2"]}}}"#.to_owned(),
            r#"{"auths":{"a.io":{"auth":"hunter2!"}}}"#.to_owned(),
            format!(r#"{{"auths":{{"a.io":{{"auth":"{auth}"}}}}}}"#),
        ] {
            let error = find(&text, "a.io/x").expect_err("broken");
            let said = format!("{error} {error:?}");
            assert!(!said.contains("hunter2") && !said.contains(&auth), "{said}");
        }
        let text = r#"{"auths":{"a.io":{"username":"me","password":"hunter2"}}}"#;
        let file = AuthFile::parse(Path::new("auth.json"), text.as_bytes()).expect("valid");
        let found = file.find(&"a.io/x".parse().expect("a reference")).expect("valid");
        assert!(!format!("{file:?}{found:?}").contains("hunter2"));
    }
}
