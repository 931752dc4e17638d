//! Decides which images CRI-O pins: those of which one name matches a pattern of crio.conf.
//!
//! | pattern | matches, in any case | (cri-o `internal/storage/image.go`: `CompileRegexpsForPinnedImages`) |
//! |---|---|---|
//! | `quay.io/a/b:1` | this name | |
//! | `quay.io/a/*` | names that contain `quay.io/a/`, anywhere | the expression has no anchor |
//! | `*keyword*` | names that contain `keyword` | |
//! | `*` | nothing | CRI-O panics and does not start |
//!
//! The names are those of the image's record and no others: an image that is stored by tag only is not pinned by its digest.

/// The patterns of `pinned_images` and the name in `pause_image`, which CRI-O pins too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinPatterns(Vec<Pattern>);

/// A pattern in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pattern {
    /// The whole name.
    Exact(String),
    /// A part of the name.
    Part(String),
}

impl PinPatterns {
    /// Of the settings as CRI-O reads them.
    pub fn new<'p>(patterns: impl IntoIterator<Item = &'p str>) -> Self {
        Self(patterns.into_iter().filter_map(Pattern::of).collect())
    }

    /// Whether CRI-O pins an image with these names.
    pub fn matches(&self, names: &[String]) -> bool {
        let is_pinned = |name: &String| {
            let name = name.to_ascii_lowercase();
            self.0.iter().any(|pattern| match pattern {
                Pattern::Exact(whole) => *whole == name,
                Pattern::Part(part) => name.contains(part),
            })
        };
        names.iter().any(is_pinned)
    }
}

impl Pattern {
    fn of(pattern: &str) -> Option<Self> {
        let pattern = pattern.to_ascii_lowercase();
        match pattern.strip_suffix('*') {
            None => Some(Self::Exact(pattern)),
            Some("") => None,
            Some(start) => Some(Self::Part(start.strip_prefix('*').unwrap_or(start).to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first cases are those of CRI-O's own test (`image_test.go`: `CompileRegexpsForPinnedImages`).
    #[test]
    fn a_name_is_pinned_as_by_cri_o() {
        for (pattern, name, is_pinned) in [
            ("quay.io/crio/pause:latest", "quay.io/crio/pause:latest", true),
            (
                "docker.io/crio/sandbox:latest",
                "docker.io/crio/sandbox:latest",
                true,
            ),
            (
                "registry.k8s.io/pause:3.10.1",
                "registry.k8s.io/pause:3.10.1",
                true,
            ),
            ("*Fedora*", "quay.io/crio/Fedora34:latest", true),
            ("quay.io/*", "quay.io/test/image", true),
            ("*Fedora*", "gcr.io/CRIO-Fedora34", true),
            ("docker.io/*", "docker.io/test/image", true),
            ("quay.io/a:1", "quay.io/a:12", false),
            ("quay.io/a:1", "registry.test/quay.io/a:1", false),
            ("QUAY.io/a:1", "quay.io/A:1", true),
            ("quay.io/a@sha256:00", "quay.io/a:1", false),
            ("quay.io/*", "mirror.test/quay.io/test", true),
            ("quay.io/a.b*", "quay.io/axb", false),
            ("*fedora", "quay.io/fedora", false),
            ("**", "quay.io/any", true),
            ("*", "quay.io/any", false),
            ("", "quay.io/any", false),
        ] {
            let patterns = PinPatterns::new([pattern]);
            assert_eq!(
                patterns.matches(&[name.to_owned()]),
                is_pinned,
                "`{pattern}` `{name}`"
            );
        }
    }

    #[test]
    fn one_name_of_an_image_suffices_and_without_a_name_nothing_matches() {
        let patterns = PinPatterns::new(["quay.io/none:1", "*digest*"]);
        let names = ["quay.io/a:1", "quay.io/digest:1"].map(str::to_owned);
        assert!(patterns.matches(&names));
        assert!(!patterns.matches(&names[..1]));
        assert!(!PinPatterns::new(["**"]).matches(&[]));
    }
}
