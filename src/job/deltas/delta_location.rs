//! Parses `--deltas`: where deltas are besides the repositories of the images.

use std::str::FromStr;

use crate::oci::{Reference, ReferenceError};

/// A place with deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeltaLocation {
    /// The index with this tag or digest.
    Index(Reference),
    /// A repository in which indexes refer to the images. The tag means nothing.
    Repository(Reference),
}

/// The text does not name a place with deltas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaLocationError {
    /// It is not a reference.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// It names no registry.
    #[error("`{0}` names no registry\nhint: write `registry.example.com/{0}`")]
    Short(String),
}

impl FromStr for DeltaLocation {
    type Err = DeltaLocationError;

    /// A reference without tag and digest is a repository.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let reference: Reference = text.parse()?;
        if reference.is_short() {
            return Err(DeltaLocationError::Short(text.to_owned()));
        }
        let name = text.rsplit('/').next().unwrap_or(text);
        Ok(match name.contains([':', '@']) {
            true => Self::Index(reference),
            false => Self::Repository(reference),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_reference_without_tag_and_digest_is_a_repository() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for (text, is_index) in [
            ("hub.example.com:5000/deltas", false),
            ("hub.example.com:5000/deltas:4.18.9", true),
            ("hub.example.com:5000/deltas:latest", true),
            (&format!("hub.example.com/a/deltas@{digest}"), true),
            ("hub.example.com/a/deltas", false),
        ] {
            let location: DeltaLocation = text.parse().unwrap();
            assert_eq!(matches!(location, DeltaLocation::Index(_)), is_index, "{text}");
        }
        assert!("hub.example.com/Deltas".parse::<DeltaLocation>().is_err());
        let short = "deltas:1".parse::<DeltaLocation>().unwrap_err();
        assert!(short.to_string().contains("names no registry"), "{short}");
    }
}
