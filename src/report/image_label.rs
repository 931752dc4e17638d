//! Names an image as people know it: the release component (`etcd`) or the last part of the repository, with a short digest.

use std::fmt;

use super::Printable;

/// Hex digits of a digest that people see, as in podman's output.
pub(super) const SHORT_DIGEST: usize = 12;

/// `etcd (8d1f2a3b4c5d)`, `redhat-operator-index:v4.18`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageLabel {
    component: String,
    short_digest: Option<String>,
}

impl ImageLabel {
    /// The label of the image with this reference; `tag` is its name in the release payload, if it has one.
    pub fn new(tag: Option<&str>, reference: &str) -> Self {
        let (name, digest) = match reference.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (reference, None),
        };
        let hex = digest
            .and_then(|digest| digest.split_once(':'))
            .map(|(_, hex)| hex);
        let component = tag.unwrap_or_else(|| name.rsplit('/').next().unwrap_or(name));
        Self {
            component: Printable(component).to_string(),
            short_digest: hex.map(|hex| hex.chars().take(SHORT_DIGEST).collect()),
        }
    }

    /// The component's name alone: `etcd`.
    pub(super) fn component(&self) -> &str {
        &self.component
    }
}

impl fmt::Display for ImageLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.component)?;
        match &self.short_digest {
            Some(digest) => write!(f, " ({digest})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_short() {
        let digest = format!("sha256:8d1f2a3b4c5d{}", "0".repeat(52));
        for (tag, reference, label) in [
            (
                Some("etcd"),
                format!("quay.io/o/ocp-v4.0-art-dev@{digest}"),
                "etcd (8d1f2a3b4c5d)",
            ),
            (
                None,
                format!("quay.io/o/ptp-operator@{digest}"),
                "ptp-operator (8d1f2a3b4c5d)",
            ),
            (
                None,
                format!("quay.io/o/tool:v1@{digest}"),
                "tool:v1 (8d1f2a3b4c5d)",
            ),
            (None, "localhost:5000/a/index:v4.18".to_owned(), "index:v4.18"),
            (None, "tool".to_owned(), "tool"),
        ] {
            assert_eq!(ImageLabel::new(tag, &reference).to_string(), label);
        }
    }
}
