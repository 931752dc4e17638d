//! Image references, parsed and normalised as distribution/reference does.

use std::fmt;
use std::str::FromStr;

use super::Digest;

/// A normalised reference: domain and path are there, and a tag or a digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
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
    /// The registry as written: `quay.io`, `registry.example.com:5000`, `[::1]:5000`.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The repository inside the registry: `openshift-release-dev/ocp-release`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Domain and path, as names in the store begin.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// The tag, when there is no digest.
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

/// Why a text is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an image reference: {why}")]
pub struct ReferenceError {
    text: String,
    why: &'static str,
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        match &self.target {
            Target::Tag(tag) => write!(f, ":{tag}"),
            Target::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let bad = |why| ReferenceError {
            text: text.chars().take(300).collect(),
            why,
        };
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => (
                rest,
                Some(
                    digest
                        .parse::<Digest>()
                        .map_err(|_| bad("the digest is not `sha256:<64 hex>`"))?,
                ),
            ),
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        let (domain, path) = match name.split_once('/') {
            Some((domain, path)) if domain.contains(['.', ':']) || domain == "localhost" => {
                (domain.to_owned(), path.to_owned())
            }
            Some(_) => ("docker.io".to_owned(), name.to_owned()),
            None => ("docker.io".to_owned(), format!("library/{name}")),
        };
        let target = match (digest, tag) {
            (Some(digest), _) => Target::Digest(digest),
            (None, tag) => Target::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(Self { domain, path, target })
    }
}
