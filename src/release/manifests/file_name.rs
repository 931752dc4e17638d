//! Parses the names of manifest files: which files are manifests, and their run level and component.

use std::sync::Arc;

/// The directories of a release image with manifests, in the order in which the CVO reads them.
pub const MANIFEST_DIRECTORIES: [&str; 2] = ["manifests", "release-manifests"];

/// Whether the CVO reads a file of this name as a manifest.
pub fn is_manifest(name: &str) -> bool {
    [".yaml", ".yml", ".json"]
        .iter()
        .any(|extension| name.ends_with(extension))
}

/// A file of [`MANIFEST_DIRECTORIES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileName {
    /// Whether the file is a Go template.
    pub(super) is_template: bool,
    /// `None` for both if the name does not have the pattern; the CVO reads such files too.
    pub(super) level: Option<u32>,
    pub(super) component: Option<Arc<str>>,
}

impl FileName {
    pub(super) fn parse(path: &str) -> Self {
        let path = path.trim_start_matches('/');
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let (level, component) = level_and_component(name).unzip();
        Self {
            is_template: directory == MANIFEST_DIRECTORIES[0],
            level,
            component: component.map(Arc::from),
        }
    }
}

/// The groups of the CVO's pattern `^0000_(\d+)_([a-zA-Z0-9]+(-[a-zA-Z0-9]+)*?)_` (`pkg/payload/task_graph.go`).
fn level_and_component(name: &str) -> Option<(u32, &str)> {
    let (level, rest) = name.strip_prefix("0000_")?.split_once('_')?;
    let (component, _) = rest.split_once('_')?;
    let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric());
    let is_level = !level.is_empty() && level.bytes().all(|b| b.is_ascii_digit());
    (is_level && component.split('-').all(is_word)).then_some((level.parse().ok()?, component))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_pattern_of_the_operator() {
        for (name, expected) in [
            (
                "0000_50_console-operator_07-operator.yaml",
                Some((50, "console-operator")),
            ),
            ("0000_07_a_b.yaml", Some((7, "a"))),
            ("0000_10-helm-chart-repository.crd.yaml", None),
            ("0000_10_consolelink.crd.yaml", None),
            ("0000_70_console-operator.crd.yaml", None),
            ("0000_50_a--b_c.yaml", None),
            ("0000_50_-a_c.yaml", None),
            ("0000_50_a.b_c.yaml", None),
            ("0000__a_c.yaml", None),
            ("0000_+5_a_c.yaml", None),
            ("0000_99999999999_a_c.yaml", None),
            ("0001_50_a_c.yaml", None),
            ("image-references", None),
        ] {
            assert_eq!(level_and_component(name), expected, "{name}");
        }
    }
}
