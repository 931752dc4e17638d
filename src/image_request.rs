//! Names one image to pull and its requesters: the release, an operator, or the version spec's list of additional images.

use std::collections::HashMap;
use std::fmt;

use crate::oci::Reference;
use crate::report::{ImageLabel, RequesterKind};

/// An image that the store must have at the end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// Its name in the store.
    pub reference: Reference,
    /// At least one.
    pub requesters: Vec<Requester>,
}

impl ImageRequest {
    /// An image that one requester wants.
    pub fn new(reference: Reference, requester: Requester) -> Self {
        Self {
            reference,
            requesters: vec![requester],
        }
    }
}

/// Who requests an image. Not to be confused with a *source*: a registry or mirror that serves it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// The version spec names it as the release image.
    ReleaseImage,
    /// The release's payload lists it.
    Release {
        /// Its name in the payload: `etcd`.
        tag: String,
    },
    /// The version spec names it as an index image, which contains an operator catalog.
    OperatorIndex,
    /// A catalog lists it as an operator's bundle or as an image that the operator runs.
    Operator {
        /// The operator's package: `ptp-operator`.
        package: String,
    },
    /// The version spec lists it as an additional image.
    Additional,
}

impl Requester {
    /// The report's name for it.
    pub fn kind(&self) -> RequesterKind {
        match self {
            Self::ReleaseImage | Self::Release { .. } => RequesterKind::Release,
            Self::OperatorIndex | Self::Operator { .. } => RequesterKind::Operator,
            Self::Additional => RequesterKind::Additional,
        }
    }

    /// The image's name for people: its name in the release payload, or else a short form of its reference.
    pub fn label(&self, reference: &Reference) -> ImageLabel {
        let tag = match self {
            Self::Release { tag } => Some(tag.as_str()),
            Self::ReleaseImage | Self::OperatorIndex | Self::Operator { .. } | Self::Additional => None,
        };
        ImageLabel::new(tag, &reference.to_string())
    }

    /// Smaller goes first: an upgrade is impossible without the release image, and possible without operators and
    /// additional images.
    pub fn priority(&self) -> u8 {
        match self {
            Self::ReleaseImage => 0,
            Self::Release { .. } => 1,
            Self::OperatorIndex => 2,
            Self::Operator { .. } => 3,
            Self::Additional => 4,
        }
    }
}

impl fmt::Display for Requester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReleaseImage => f.write_str("release image"),
            Self::Release { tag } => f.write_str(tag),
            Self::OperatorIndex => f.write_str("operator index"),
            Self::Operator { package } => f.write_str(package),
            Self::Additional => f.write_str("additional"),
        }
    }
}

/// Merges requests for the same reference: one for each, with all its requesters, in the order of the first.
pub fn dedupe(requests: impl IntoIterator<Item = ImageRequest>) -> Vec<ImageRequest> {
    let mut unique: Vec<ImageRequest> = Vec::new();
    let mut positions = HashMap::new();
    for request in requests {
        let position = *positions.entry(request.reference.clone()).or_insert(unique.len());
        match unique.get_mut(position) {
            None => unique.push(request),
            Some(first) => {
                for requester in request.requesters {
                    if !first.requesters.contains(&requester) {
                        first.requesters.push(requester);
                    }
                }
            }
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn requests_for_one_image_collapse_and_keep_their_requesters() {
        let request = |text: &str, requester| ImageRequest::new(text.parse().unwrap(), requester);
        let tag = |tag: &str| Requester::Release { tag: tag.to_owned() };
        let unique = dedupe([
            request("quay.io/a:1", tag("a")),
            request("quay.io/b:1", Requester::Additional),
            request("quay.io/a:1", Requester::Additional),
            request("quay.io/a:1", Requester::Additional),
        ]);
        assert_eq!(unique.len(), 2);
        assert_eq!(unique[0].requesters, [tag("a"), Requester::Additional]);
        assert_eq!(unique[1].requesters, [Requester::Additional]);
    }
}
