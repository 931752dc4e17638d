//! One image that is wanted, and who wants it.

use std::collections::HashMap;
use std::fmt;

use crate::oci::Reference;
use crate::report::ImageSource;

/// An image that is to be in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageRequest {
    /// The name that it will have there.
    pub reference: Reference,
    /// Who wants it; at least one.
    pub sources: Vec<Source>,
}

impl ImageRequest {
    /// A request from one source.
    pub fn new(reference: Reference, source: Source) -> Self {
        Self {
            reference,
            sources: vec![source],
        }
    }
}

/// Who wants an image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// It is the release image.
    ReleaseImage,
    /// The release's payload lists it.
    Release {
        /// Its name there: `etcd`.
        tag: String,
    },
    /// It is an index image, which holds an operator catalog.
    OperatorIndex,
    /// An operator's bundle, or an image that it runs.
    Operator {
        /// The operator's package: `ptp-operator`.
        package: String,
    },
    /// The version spec lists it.
    Additional,
}

impl Source {
    /// The report's word for it.
    pub fn kind(&self) -> ImageSource {
        match self {
            Self::ReleaseImage | Self::Release { .. } => ImageSource::Release,
            Self::OperatorIndex | Self::Operator { .. } => ImageSource::Operator,
            Self::Additional => ImageSource::Additional,
        }
    }

    /// Smaller goes first: without the release image there is no upgrade, without operators and additional images there
    /// is one.
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

impl fmt::Display for Source {
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

/// One request for each reference, with the sources of all that asked for it, in the order of the first.
pub fn dedupe(requests: impl IntoIterator<Item = ImageRequest>) -> Vec<ImageRequest> {
    let mut unique: Vec<ImageRequest> = Vec::new();
    let mut positions = HashMap::new();
    for request in requests {
        let position = *positions.entry(request.reference.clone()).or_insert(unique.len());
        match unique.get_mut(position) {
            None => unique.push(request),
            Some(first) => {
                for source in request.sources {
                    if !first.sources.contains(&source) {
                        first.sources.push(source);
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
    fn requests_for_one_image_collapse_and_keep_their_sources() {
        let request = |text: &str, source| ImageRequest::new(text.parse().unwrap(), source);
        let tag = |tag: &str| Source::Release { tag: tag.to_owned() };
        let unique = dedupe([
            request("quay.io/a:1", tag("a")),
            request("quay.io/b:1", Source::Additional),
            request("quay.io/a:1", Source::Additional),
            request("quay.io/a:1", Source::Additional),
        ]);
        assert_eq!(unique.len(), 2);
        assert_eq!(unique[0].sources, [tag("a"), Source::Additional]);
        assert_eq!(unique[1].sources, [Source::Additional]);
    }
}
