//! Parses the references that signatures and policies name, with a tag, a digest, both or neither.
//!
//! distribution/reference `ParseNormalizedNamed`: Docker Hub is added to a name without a registry. [`Reference`] always has
//! either a tag or a digest, so it cannot represent all of these.

use std::fmt;

use crate::oci::{self, DEFAULT_DOMAIN, Digest, OFFICIAL, Reference};

/// A normalised reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedReference {
    /// Registry and repository.
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl NamedReference {
    /// Parses a text. The error is why it is not a reference.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let parts = oci::parts(text)?;
        let path = parts.path;
        let name = match parts.domain {
            "" if path.contains('/') => format!("{DEFAULT_DOMAIN}/{path}"),
            "" => format!("{DEFAULT_DOMAIN}/{OFFICIAL}{path}"),
            domain => format!("{domain}/{path}"),
        };
        Ok(Self {
            name,
            tag: parts.tag.map(str::to_owned),
            digest: parts.digest,
        })
    }

    /// The reference of an image; a short name means Docker Hub.
    pub(super) fn of(image: &Reference) -> Self {
        Self::parse(&image.to_string()).unwrap_or_else(|_| Self {
            name: image.repository(),
            tag: image.tag().map(str::to_owned),
            digest: image.digest(),
        })
    }

    /// Parses a text that is already normalised (`reference.ParseNamed`).
    pub(super) fn parse_canonical(text: &str) -> Option<Self> {
        Self::parse(text).ok().filter(|parsed| parsed.to_string() == text)
    }

    /// Registry and repository.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn has_tag(&self) -> bool {
        self.tag.is_some()
    }

    /// Whether it has neither a tag nor a digest.
    pub(super) fn is_name_only(&self) -> bool {
        self.tag.is_none() && self.digest.is_none()
    }

    /// As people write it: without Docker Hub (`reference.FamiliarString`).
    pub(super) fn familiar(&self) -> String {
        let text = self.to_string();
        let Some(path) = text
            .strip_prefix(DEFAULT_DOMAIN)
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            return text;
        };
        match path.strip_prefix(OFFICIAL) {
            Some(official) if !official.contains('/') => official.to_owned(),
            _ => path.to_owned(),
        }
    }
}

impl fmt::Display for NamedReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}
