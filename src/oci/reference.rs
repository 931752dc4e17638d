//! Parses image references as distribution/reference does, and normalises them as containers/image does.
//!
//! The normalised text is an image's name in the store, and CRI-O looks images up by it, so it has to be the same text that
//! CRI-O makes: with `library/` on Docker Hub, with `latest` if there is neither tag nor digest, and without the tag if there
//! is a digest.
//!
//! Where Docker adds `docker.io`, CRI-O reads the node's `registries.conf`: `busybox` may be an alias for any image. Such a
//! short name keeps its text and has no domain ([`Reference::is_short`]). It can be pulled or looked up only after
//! `registry::ShortNames` has resolved it.
//!
//! ```text
//! reference = [ domain "/" ] path [ ":" tag ] [ "@" digest ]
//! domain    = ( label *( "." label ) | "[" hex and colons "]" ) [ ":" digits ]
//! path      = component *( "/" component )            at most 255 bytes
//! component = alnum *( ( "." | "_" | "__" | *"-" ) alnum )    lowercase
//! tag       = word character, then up to 127 of word characters, "." and "-"
//! ```

use std::fmt;
use std::str::FromStr;

use super::Digest;

/// distribution/reference's `RepositoryNameTotalLengthMax`, in bytes, of the path without the domain.
const MAX_PATH: usize = 255;
/// The longest tag, in bytes.
const MAX_TAG: usize = 128;
/// How many characters of an invalid text an error shows.
const SHOWN: usize = 300;

pub(crate) const DEFAULT_DOMAIN: &str = "docker.io";
/// The former name of Docker Hub; means [`DEFAULT_DOMAIN`].
const LEGACY_DOMAIN: &str = "index.docker.io";
/// The only host without a dot or a port.
const LOCALHOST: &str = "localhost";
/// The namespace of Docker Hub's images with a name of one word.
pub(crate) const OFFICIAL: &str = "library/";

/// A normalised reference: a domain unless it is short, a path, and a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Empty for a short name.
    domain: String,
    path: String,
    target: Target,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Target {
    Tag(String),
    Digest(Digest),
}

impl Reference {
    /// The registry as written: `quay.io`, `registry.example.com:5000`, `[::1]:5000`. Empty for a short name.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Whether it names no registry: `busybox`, `ubi8/ubi:8.9`. To containers/image `Foo/bar` is one too, although
    /// Docker parses `Foo` as a host (`shortnames.IsShortName`).
    pub fn is_short(&self) -> bool {
        !self.domain.contains(['.', ':']) && self.domain != LOCALHOST
    }

    /// The tag or digest with its separator: `:4.16`, `@sha256:…`.
    pub fn suffix(&self) -> String {
        match &self.target {
            Target::Tag(tag) => format!(":{tag}"),
            Target::Digest(digest) => format!("@{digest}"),
        }
    }

    /// The repository inside the registry: `openshift-release-dev/ocp-release`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Domain and path, the beginning of a name in the store.
    pub fn repository(&self) -> String {
        match self.domain.as_str() {
            "" => self.path.clone(),
            domain => format!("{domain}/{}", self.path),
        }
    }

    /// The tag, if there is no digest.
    pub fn tag(&self) -> Option<&str> {
        match &self.target {
            Target::Tag(tag) => Some(tag),
            Target::Digest(_) => None,
        }
    }

    /// The digest of the manifest or list.
    pub fn digest(&self) -> Option<Digest> {
        match self.target {
            Target::Digest(digest) => Some(digest),
            Target::Tag(_) => None,
        }
    }

    /// The same repository, another manifest.
    pub fn with_digest(&self, digest: Digest) -> Self {
        Self {
            domain: self.domain.clone(),
            path: self.path.clone(),
            target: Target::Digest(digest),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.repository(), self.suffix())
    }
}

/// The text is no valid reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an image reference: {why}")]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

impl ReferenceError {
    fn new(text: &str, why: &'static str) -> Self {
        // Userinfo may contain a password, with or without a scheme before it, and errors are logged. No slash follows the
        // `@` of a digest.
        let (scheme, rest) = match text.find("://") {
            Some(end) => text.split_at(end + "://".len()),
            None => ("", text),
        };
        let named = match scheme {
            "" => &rest[..rest.rfind('/').unwrap_or(0)],
            _ => rest,
        };
        let shown = match named.rfind('@') {
            Some(userinfo) => format!("{scheme}…{}", &rest[userinfo..]),
            None => text.to_owned(),
        };
        let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
        Self {
            text: shown.chars().take(SHOWN).map(visible).collect(),
            why,
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        parse(text).map_err(|why| ReferenceError::new(text, why))
    }
}

fn parse(text: &str) -> Result<Reference, &'static str> {
    let Parts {
        domain,
        path,
        tag,
        digest,
    } = parts(text)?;
    let target = match (digest, tag) {
        (Some(digest), _) => Target::Digest(digest),
        (None, Some(tag)) => Target::Tag(tag.to_owned()),
        (None, None) => Target::Tag("latest".to_owned()),
    };
    Ok(Reference {
        domain: domain.to_owned(),
        path,
        target,
    })
}

/// What a reference consists of, before a tag is added or dropped.
pub(crate) struct Parts<'a> {
    /// Empty if the text names none.
    pub(crate) domain: &'a str,
    pub(crate) path: String,
    pub(crate) tag: Option<&'a str>,
    pub(crate) digest: Option<Digest>,
}

/// Parses a reference with an optional tag and an optional digest.
pub(crate) fn parts(text: &str) -> Result<Parts<'_>, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.contains("://") {
        return Err(
            "it begins with a scheme\nhint: begin with the registry's host, as in `quay.io/repository`",
        );
    }
    if text.chars().any(char::is_whitespace) {
        return Err("it contains white space");
    }
    // `podman pull <64 hex>` means an image id, so this is no name (distribution/reference `anchoredIdentifierRegexp`).
    if text.len() == 64 && text.bytes().all(is_lower_hex) {
        return Err("64 hexadecimal digits are an image's id, not a name");
    }

    let (domain, remainder) = split_domain(text);
    let (named, digest) = match remainder.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (remainder, None),
    };
    let (path, tag) = match named.split_once(':') {
        Some((path, tag)) => (path, Some(tag)),
        None => (named, None),
    };
    if !domain.is_empty() && !is_domain(domain) {
        return Err("the part before the first `/` is not a host, or its port is not a number");
    }
    let path = match domain == DEFAULT_DOMAIN && !remainder.contains('/') {
        true => format!("{OFFICIAL}{path}"),
        false => path.to_owned(),
    };
    check_path(&path)?;
    if let Some(tag) = tag {
        check_tag(tag)?;
    }
    Ok(Parts {
        domain,
        path,
        tag,
        digest: digest.map(parse_digest).transpose()?,
    })
}

/// `splitDockerDomain`: the first element is a domain if it looks like one, else all is a path and the domain is empty.
fn split_domain(text: &str) -> (&str, &str) {
    match text.split_once('/') {
        Some((LEGACY_DOMAIN, rest)) => (DEFAULT_DOMAIN, rest),
        Some((first, rest))
            if first == LOCALHOST || first.contains(['.', ':']) || first.chars().any(char::is_uppercase) =>
        {
            (first, rest)
        }
        _ => ("", text),
    }
}

/// Whether the text is a valid registry: a host, optionally with a port.
///
/// Stricter than distribution/reference in one case: there, `foo_bar.com/x` has no valid domain and becomes a name without a
/// domain, which no registry can serve and the store cannot look up. Here it is refused.
pub(crate) fn is_domain(text: &str) -> bool {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    if let Some(rest) = text.strip_prefix('[') {
        return rest.split_once(']').is_some_and(|(address, port)| {
            !address.is_empty()
                && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':')
                && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
        });
    }
    let (host, port) = text.split_once(':').unwrap_or((text, "0"));
    is_port(port)
        && host.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if path.is_empty() || path == OFFICIAL {
        return Err("it names no repository");
    }
    if path.chars().any(char::is_uppercase) {
        return Err("a repository's name must be lowercase");
    }
    if !path.split('/').all(is_component) {
        return Err(
            "a repository's name is made of `a-z`, `0-9` and, between them, `.`, `_`, `__`, `-` and `/`",
        );
    }
    if path.len() > MAX_PATH {
        return Err("its repository's name is longer than 255 bytes");
    }
    Ok(())
}

pub(crate) fn is_component(component: &str) -> bool {
    let is_alnum = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    component.starts_with(is_alnum)
        && component.ends_with(is_alnum)
        && component.split(is_alnum).all(|separator| {
            matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|b| b == b'-')
        })
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if tag.is_empty() {
        return Err("nothing follows the `:` of the tag");
    }
    if tag.len() > MAX_TAG {
        return Err("its tag is longer than 128 bytes");
    }
    if !tag.starts_with(is_word) || !tag.chars().all(|c| is_word(c) || matches!(c, '.' | '-')) {
        return Err(
            "a tag is made of letters, digits, `_`, `.` and `-`, and begins with neither `.` nor `-`",
        );
    }
    Ok(())
}

fn parse_digest(text: &str) -> Result<Digest, &'static str> {
    text.parse().map_err(|_| match text.split_once(':') {
        Some(("sha384" | "sha512", hex)) if hex.len() >= 32 && hex.bytes().all(is_lower_hex) => {
            "its digest's algorithm is not supported\nhint: only `sha256` is; ask the registry for that digest"
        }
        _ => "its digest is not `sha256:` and 64 lowercase hexadecimal digits",
    })
}

fn is_lower_hex(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const HEX: &str = "dbcc1c35ac38df41fd2f5e4130b32ffdb93ebae8b3dbe638c23575912276fc9c";

    fn normal(text: &str) -> String {
        text.parse::<Reference>().unwrap().to_string()
    }

    fn why(text: &str) -> String {
        text.parse::<Reference>().unwrap_err().to_string()
    }

    #[test]
    fn names_are_normalised_as_cri_o_looks_them_up() {
        for (text, expected) in [
            ("docker.io/busybox", "docker.io/library/busybox:latest"),
            ("index.docker.io/busybox:1", "docker.io/library/busybox:1"),
            ("registry-1.docker.io/a", "registry-1.docker.io/a:latest"),
            ("index.docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost/a", "localhost/a:latest"),
            ("Foo/bar", "Foo/bar:latest"),
            ("host:5000/a:b", "host:5000/a:b"),
            ("[2001:db8::1]:5000/a", "[2001:db8::1]:5000/a:latest"),
            ("quay.io/a/b/c/d/e/f/g:1", "quay.io/a/b/c/d/e/f/g:1"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
        assert_eq!(
            normal(&format!("quay.io/a/b:4.12@sha256:{HEX}")),
            format!("quay.io/a/b@sha256:{HEX}"),
            "the digest wins over the tag"
        );
    }

    #[test]
    fn a_name_without_a_registry_stays_as_it_is() {
        for (text, expected) in [
            ("busybox", "busybox:latest"),
            ("library/busybox:1", "library/busybox:1"),
            ("ubi8/ubi:8.9", "ubi8/ubi:8.9"),
            ("localhost", "localhost:latest"),
            ("localhost:5000", "localhost:5000"),
            ("docker.io", "docker.io:latest"),
            ("foo_bar.com:8080", "foo_bar.com:8080"),
            ("Foo/bar", "Foo/bar:latest"),
            (&format!("a/b:1@sha256:{HEX}"), &format!("a/b@sha256:{HEX}")),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert!(reference.is_short(), "{text}");
            assert_eq!(reference.to_string(), expected);
            assert_eq!(reference.repository() + &reference.suffix(), expected);
        }
        for text in ["localhost/a", "host:5000/a", "[::1]/a", "docker.io/a", "a.b/c"] {
            assert!(!text.parse::<Reference>().unwrap().is_short(), "{text}");
        }
    }

    #[test]
    fn an_error_names_the_reason() {
        let sha512 = format!("quay.io/a@sha512:{HEX}{HEX}");
        let upper_digest = format!("quay.io/a@sha256:{}", HEX.to_uppercase());
        let long_path = format!("quay.io/{}", "a".repeat(256));
        let long_tag = format!("quay.io/a:{}", "b".repeat(129));
        for (text, expected) in [
            ("", "it is empty"),
            ("quay.io/", "names no repository"),
            (":tag", "names no repository"),
            ("quay.io/Foo", "must be lowercase"),
            ("quay.io/a:", "nothing follows the `:`"),
            ("quay.io/a:b:c", "a tag is made of"),
            ("quay.io/a:.b", "a tag is made of"),
            ("quay.io/a b", "white space"),
            ("quay.io:port/a", "not a host"),
            ("foo_bar.com/a", "not a host"),
            ("quay.io/a..b", "is made of `a-z`"),
            ("quay.io/a@sha256:12", "64 lowercase hexadecimal digits"),
            ("quay.io/a@", "64 lowercase hexadecimal digits"),
            (HEX, "an image's id"),
            (&sha512, "algorithm is not supported"),
            (&upper_digest, "64 lowercase hexadecimal digits"),
            (&long_path, "255 bytes"),
            (&long_tag, "128 bytes"),
        ] {
            assert!(why(text).contains(expected), "{text}: {}", why(text));
        }
    }

    #[test]
    fn an_error_shows_no_password_and_no_control_character() {
        for (text, shown) in [
            ("https://user:secret@quay.io/a", "`https://…@quay.io/a`"),
            ("https://user:secret@quay.io", "`https://…@quay.io`"),
            ("user:secret@quay.io/a:1", "`…@quay.io/a:1`"),
            ("user:sec/re@t@quay.io:5000/a", "`…@quay.io:5000/a`"),
            ("busybox@sha256:12", "`busybox@sha256:12`"),
            ("quay.io/a@sha256:12", "`quay.io/a@sha256:12`"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.starts_with(shown), "{error}");
        }
        assert!(!why("quay.io/a\u{1b}[31m").contains('\u{1b}'));
        assert!(why(&"A/".repeat(10_000)).len() < 1_000);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}|[a-zA-Z0-9.:/@_\\[\\]-]{0,80}") {
            let _ = text.parse::<Reference>();
        }

        #[test]
        fn reads_what_it_writes(
            domain in "([a-z]{1,8}\\.[a-zA-Z0-9]{1,5}|localhost|\\[[0-9a-f:]{0,20}:\\]|docker\\.io|[A-Z]{1,3})(:[0-9]{1,5})?",
            path in "[a-z0-9]{1,5}((\\.|_|__|-{1,3}|/)[a-z0-9]{1,5}){0,4}",
            tag in "(:[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,20})?",
            digest in proptest::option::of("[0-9a-f]{64}"),
        ) {
            let digest = digest.map_or(String::new(), |hex| format!("@sha256:{hex}"));
            let reference: Reference = format!("{domain}/{path}{tag}{digest}").parse()?;
            prop_assert_eq!(reference.to_string().parse::<Reference>()?, reference);
        }

        #[test]
        fn keeps_a_short_name(
            path in "[a-z0-9]{1,5}((_|__|-{1,3}|/)[a-z0-9]{1,5}){0,4}",
            tag in "[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,20}",
        ) {
            let text = format!("{path}:{tag}");
            let reference: Reference = text.parse()?;
            prop_assert!(reference.is_short());
            prop_assert_eq!(reference.to_string(), text);
        }
    }
}
