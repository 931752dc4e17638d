//! Lists the reasons why a delta artifact or an index of deltas cannot be used.

use crate::oci::Digest;

/// How many characters of an untrusted text an error repeats.
const EXCERPT_CHARS: usize = 120;

/// Why a delta artifact or an index of deltas cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArtifactError {
    /// It is larger than any real one.
    #[error("it has {found} bytes, more than {limit}")]
    TooLarge {
        /// Its length.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// It is not JSON of the expected form.
    #[error("it cannot be read: {0}")]
    NotJson(String),
    /// It is another kind of document.
    #[error("its artifact type is `{0}`")]
    ArtifactType(String),
    /// An annotation is missing.
    #[error("it has no annotation `{0}`")]
    Missing(&'static str),
    /// An annotation has a value of another form.
    #[error("its annotation `{name}` cannot be read: {why}")]
    Annotation {
        /// Its name.
        name: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// It has two deltas for one layer.
    #[error("it has two deltas for layer {0}")]
    Duplicate(Digest),
}

impl ArtifactError {
    pub(super) fn not_json(error: &serde_json::Error) -> Self {
        Self::NotJson(excerpt(&error.to_string()))
    }

    pub(super) fn annotation(name: &'static str, why: impl ToString) -> Self {
        Self::Annotation {
            name,
            why: excerpt(&why.to_string()),
        }
    }

    pub(super) fn artifact_type(found: Option<&str>) -> Self {
        Self::ArtifactType(excerpt(found.unwrap_or_default()))
    }
}

/// An untrusted text in a form that is safe to log: bounded, on one line, without terminal escapes.
fn excerpt(text: &str) -> String {
    let visible = text.chars().filter(|c| !c.is_control());
    visible.take(EXCERPT_CHARS).collect()
}
