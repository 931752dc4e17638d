//! Pull secrets: `auth.json` of containers, `config.json` of Docker and the kubelet.
//!
//! A key is a host or a host and the beginning of a path; the longest that fits a repository wins, and files are
//! asked in order. Old tools wrote URLs (`https://host/v1/`), and Docker Hub has three names. The rules are those of
//! containers/image (`pkg/docker/config`).
//!
//! No message says what a file holds, also not by way of the parser's own messages, which quote what they found.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use secrecy::SecretString;
use serde::Deserialize;

use crate::oci::Reference;

/// The pull secret of a large site has hundreds of kilobytes.
const MAX_FILE_SIZE: u64 = 4 << 20;

/// All files, in the order in which they are asked.
#[derive(Debug, Default)]
pub struct Credentials(Vec<AuthFile>);

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
    /// Whether it has more than an identity token.
    pub(super) fn has_password(&self) -> bool {
        use secrecy::ExposeSecret as _;
        !self.username.expose_secret().is_empty()
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
    /// `auth` is not the base64 of `user:password`.
    #[error("{0} has an `auth` that is not the base64 of `user:password`")]
    Auth(Origin),
    /// The credential lies with a program, and this agent executes none.
    #[error(
        "{0} refers to a credential helper, and no program is executed here\n\
         hint: write the credentials themselves under `auths`"
    )]
    Helper(Origin),
}

#[derive(Debug)]
struct AuthFile {
    path: PathBuf,
    auths: HashMap<String, Entry>,
    helpers: HashMap<String, String>,
    has_store: bool,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Document {
    auths: Option<HashMap<String, Entry>>,
    cred_helpers: Option<HashMap<String, String>>,
    creds_store: Option<String>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: Option<SecretString>,
    username: Option<SecretString>,
    password: Option<SecretString>,
    identitytoken: Option<SecretString>,
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
            let mut text = String::new();
            let read = file
                .take(MAX_FILE_SIZE + 1)
                .read_to_string(&mut text)
                .map_err(failed)?;
            if read as u64 > MAX_FILE_SIZE {
                return Err(failed(Error::from(ErrorKind::FileTooLarge)));
            }
            AuthFile::parse(path, &text)
        });
        files.collect::<Result<_, _>>().map(Self)
    }

    /// Understands the text of one file; `path` is for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Self, CredentialsError> {
        Ok(Self(vec![AuthFile::parse(path, text)?]))
    }

    /// What to log in with for this repository; nothing if no file knows it.
    pub fn find(&self, reference: &Reference) -> Result<Option<Credential>, CredentialsError> {
        for file in &self.0 {
            if let Some(credential) = file.find(reference)? {
                return Ok(Some(credential));
            }
        }
        Ok(None)
    }
}

impl AuthFile {
    fn parse(path: &Path, text: &str) -> Result<Self, CredentialsError> {
        let document: Document = serde_json::from_str(text).map_err(|error| CredentialsError::Parse {
            path: path.into(),
            line: error.line(),
            column: error.column(),
        })?;
        Ok(Self {
            path: path.into(),
            auths: document.auths.unwrap_or_default(),
            helpers: document.cred_helpers.unwrap_or_default(),
            has_store: document.creds_store.is_some_and(|store| !store.is_empty()),
        })
    }

    fn find(&self, reference: &Reference) -> Result<Option<Credential>, CredentialsError> {
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

    fn entry(&self, reference: &Reference) -> Option<(&str, &Entry)> {
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
        // Nobody wrote the plain name; perhaps a URL or another name of Docker Hub. The least key, for there may
        // be several and a hash map has no order.
        let wanted = canonical_host(reference.domain());
        let same = self.auths.iter().filter(|(key, _)| canonical_key(key) == wanted);
        same.min_by_key(|(key, _)| *key)
            .map(|(key, entry)| (key.as_str(), entry))
    }

    fn origin(&self, key: &str) -> Origin {
        Origin {
            path: self.path.clone(),
            key: key.into(),
        }
    }
}

impl Entry {
    /// Nothing for an entry without content, which stands for anonymous access.
    fn credential(&self, origin: Origin) -> Result<Option<Credential>, CredentialsError> {
        use secrecy::ExposeSecret as _;
        let given =
            |field: &Option<SecretString>| field.clone().filter(|text| !text.expose_secret().is_empty());
        let mut username = given(&self.username).unwrap_or_default();
        let mut password = given(&self.password).unwrap_or_default();
        let identity_token = given(&self.identitytoken);
        if let Some(auth) = given(&self.auth) {
            let decoded = BASE64_STANDARD
                .decode(auth.expose_secret().trim())
                .ok()
                .and_then(|bytes| String::from_utf8(bytes).ok());
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

/// The host that a key means when it is a URL, as `docker login` once wrote it.
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
    use base64::prelude::*;
    use secrecy::ExposeSecret as _;

    use super::*;

    fn find(text: &str, reference: &str) -> Result<Option<String>, CredentialsError> {
        let file = AuthFile::parse(Path::new("auth.json"), text)?;
        let found = file.find(&reference.parse().expect("a reference"))?;
        Ok(found.map(|found| {
            format!(
                "{}:{}",
                found.username.expose_secret(),
                found.password.expose_secret()
            )
        }))
    }

    /// After containers/image's own tests (`pkg/docker/config`), over their files; some rows are ours.
    #[test]
    fn finds_what_containers_image_finds() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus/auth-json/containers-image");
        if !corpus.exists() {
            #[allow(clippy::print_stderr)]
            {
                eprintln!("SKIPPED: no corpus at {}", corpus.display());
            }
            return;
        }
        for (file, reference, expected) in [
            ("full.json", "example.org/x", Some("example:org")),
            ("full.json", "docker.io/x", Some("docker:io")),
            ("full.json", "localhost/x", Some("local:host")),
            ("full.json", "localhost:5000/x", Some("local:host-5000")),
            ("full.json", "10.10.30.45:5000/x", Some("10.10:30.45-5000")),
            ("full.json", "normalize.example.org/x", Some("normalize:example")),
            ("full.json", "nowhere.example.org/x", None),
            ("abnormal.json", "docker.io/x", Some("index:docker.io")),
            ("abnormal.json", "localhost/x", Some("local:host")),
            ("abnormal.json", "localhost:5001/x", Some("local:host-5001")),
            ("abnormal.json", "127.0.0.1:5000/x", Some("127.0:0.1-5000")),
            ("refpath.json", "example.org/repo", Some("example:org")),
            ("refpath.json", "example.org/repo/image", Some("example:org")),
            ("refpath.json", "example.org/repository", Some("local:host")),
            ("refpath.json", "docker.io/vendor/x", Some("first:level")),
            ("refpath.json", "docker.io/busybox", Some("library:busybox")),
            ("refpath.json", "docker.io/alpine", Some("library:other")),
            ("refpath.json", "docker.io/other/x", Some("top:level")),
            ("empty.json", "example.org/x", None),
        ] {
            let text = std::fs::read_to_string(corpus.join(file)).expect("a file");
            let found = find(&text, reference).expect("valid");
            assert_eq!(found.as_deref(), expected, "{reference} in {file}");
        }
        let text = std::fs::read_to_string(corpus.join("example_identitytoken.json")).expect("a file");
        let file = AuthFile::parse(Path::new("auth.json"), &text).expect("valid");
        let found = file.find(&"example.org/x".parse().expect("a reference"));
        let token = found
            .expect("valid")
            .expect("an entry")
            .identity_token
            .expect("a token");
        assert_eq!(token.expose_secret(), "some very long identity token");
        let text = std::fs::read_to_string(corpus.join("config.json")).expect("a file");
        let error = find(&text, "registry-no-creds.com/x");
        assert!(matches!(error, Err(CredentialsError::Helper(_))), "{error:?}");
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
        let file = AuthFile::parse(Path::new("auth.json"), text).expect("valid");
        let found = file.find(&"a.io/x".parse().expect("a reference")).expect("valid");
        assert!(!format!("{file:?}{found:?}").contains("hunter2"));
    }
}
