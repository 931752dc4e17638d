//! Matches `excludePrecachePatterns`, which exclude images of a release.
//!
//! They have the meaning of `grep -vG -f patterns` over lines `"name$pullspec"`, including the two quotes, because the hub's
//! scripts work that way: `^"aws` is anchored at the name, `ocp` matches nearly every pullspec, and `fec` matches digests by
//! chance. So each match reports its position, and the caller can warn about accidental ones.

use fancy_regex::{BytesMode, Regex, RegexBuilder};

use super::bre;
use super::bre_error::BreError;
use super::shown;

/// More patterns than any release has images.
const MAX_PATTERNS: usize = 1_000;
/// Bytes of one pattern; a line that it is matched against has about 150.
const MAX_LENGTH: usize = 4_096;
/// Steps of all patterns together; see `bre::MAX_SIZE`.
const MAX_TOTAL_SIZE: usize = 200_000;
/// Bytes that one compiled pattern may take; the engine's default is 10 MiB.
const COMPILED_SIZE: usize = 4 << 20;
/// Bytes of one pattern's lazily built automaton; beyond it, the engine gets slower.
const AUTOMATON_SIZE: usize = 128 << 10;
/// Steps of backtracking for one pattern and image, about 3 ms; `\([a-z]*\)-\1` needs a fiftieth of them.
const BACKTRACK_LIMIT: usize = 50_000;
/// Steps that a backtracking pattern counts as: 20 such patterns, each at the limit for each of 250 images, take less than a
/// minute.
const BACKTRACKING_SIZE: usize = 10_000;
/// Replaces a character that must not match: a word character, so that `\b` and `\w` see no difference, but one that occurs
/// in no digest and in no repository name.
const MASK: char = 'Z';

/// Compiled patterns.
#[derive(Debug, Default)]
pub struct Excludes(Vec<Exclude>);

#[derive(Debug)]
struct Exclude {
    pattern: String,
    regex: Regex,
}

/// A pattern that matched an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Which pattern, counted from 0; see [`Excludes::pattern`].
    pub index: usize,
    /// What it matched.
    pub position: HitPosition,
}

/// How much of an image's line a pattern needs to match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HitPosition {
    /// Only the name.
    Name,
    /// The repository of the pullspec, with or without the name.
    Repository,
    /// The digest: most likely by chance.
    Digest,
}

/// Why the exclude patterns cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not a basic regular expression.
    #[error(
        "exclude pattern {number}, `{pattern}`: {why}\nhint: exclude patterns are basic regular expressions, as for `grep -G`"
    )]
    Syntax {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// What is wrong.
        why: BreError,
    },
    /// The engine refuses it.
    #[error("exclude pattern {number}, `{pattern}`, cannot be compiled: {why}")]
    Compile {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// The engine's message.
        why: String,
    },
    /// It takes too long because of its back-references.
    #[error("exclude pattern {number}, `{pattern}`, takes too long on image `{name}`")]
    Backtracks {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// The image.
        name: String,
    },
    /// Too many patterns.
    #[error("{count} exclude patterns are too many: at most {MAX_PATTERNS} are supported")]
    TooMany {
        /// Their number.
        count: usize,
    },
    /// All patterns together are too large.
    #[error("the exclude patterns are too large together: pattern {number}, `{pattern}`, exceeds the limit")]
    TooLarge {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
    },
}

impl Excludes {
    /// Compiles `patterns`. A bad pattern is an error: without it, images would be pulled that should be excluded.
    pub fn new(patterns: &[String]) -> Result<Self, PatternError> {
        if patterns.len() > MAX_PATTERNS {
            return Err(PatternError::TooMany {
                count: patterns.len(),
            });
        }
        let mut size = 0;
        let mut excludes = Vec::with_capacity(patterns.len());
        for (index, pattern) in patterns.iter().enumerate() {
            let number = index + 1;
            let syntax = |why| PatternError::Syntax {
                number,
                pattern: shown(pattern),
                why,
            };
            if pattern.len() > MAX_LENGTH {
                return Err(syntax(BreError::TooLarge));
            }
            let translated = bre::translate(pattern.as_bytes()).map_err(syntax)?;
            size += translated.size
                + if translated.backtracks {
                    BACKTRACKING_SIZE
                } else {
                    0
                };
            if size > MAX_TOTAL_SIZE {
                return Err(PatternError::TooLarge {
                    number,
                    pattern: shown(pattern),
                });
            }
            let regex = RegexBuilder::new(&translated.regex)
                .bytes_mode(BytesMode::Ascii)
                .delegate_size_limit(COMPILED_SIZE)
                .delegate_dfa_size_limit(AUTOMATON_SIZE)
                .backtrack_limit(BACKTRACK_LIMIT)
                .build()
                .map_err(|error| PatternError::Compile {
                    number,
                    pattern: shown(pattern),
                    why: error.to_string(),
                })?;
            excludes.push(Exclude {
                pattern: pattern.clone(),
                regex,
            });
        }
        Ok(Self(excludes))
    }

    /// The text of a pattern, by the index of a [`Hit`].
    pub fn pattern(&self, index: usize) -> &str {
        self.0.get(index).map_or("", |exclude| &exclude.pattern)
    }

    /// The patterns, in their order.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|exclude| exclude.pattern.as_str())
    }

    /// Every pattern that excludes the image `name` with this pullspec; none, if the image is not excluded.
    pub fn hits(&self, name: &str, pullspec: &str) -> Result<Vec<Hit>, PatternError> {
        let (repository, digest) = pullspec.split_at(pullspec.find('@').unwrap_or(pullspec.len()));
        let mask = |text: &str| MASK.to_string().repeat(text.len());
        let line = format!("\"{name}${pullspec}\"");
        let without_digest = format!("\"{name}${repository}{}\"", mask(digest));
        let name_only = format!("\"{name}{}\"", mask(pullspec) + &mask("$"));

        let mut hits = Vec::new();
        for (index, exclude) in self.0.iter().enumerate() {
            // While matching, the engine's only errors are its limits of backtracking.
            let matches = |text: &str| {
                let matched = exclude.regex.is_match(text.as_bytes());
                matched.map_err(|_| PatternError::Backtracks {
                    number: index + 1,
                    pattern: shown(&exclude.pattern),
                    name: name.to_owned(),
                })
            };
            if !matches(&line)? {
                continue;
            }
            let position = if matches(&name_only)? {
                HitPosition::Name
            } else if matches(&without_digest)? {
                HitPosition::Repository
            } else {
                HitPosition::Digest
            };
            hits.push(Hit { index, position });
        }
        Ok(hits)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::{Duration, Instant};

    use super::*;

    fn excludes(patterns: &[&str]) -> Result<Excludes, PatternError> {
        Excludes::new(
            &patterns
                .iter()
                .map(|&pattern| pattern.to_owned())
                .collect::<Vec<_>>(),
        )
    }

    #[test]
    fn a_hit_reports_its_position() {
        let pullspec = format!("quay.io/ocp/art-dev@sha256:fec{}0", "1".repeat(60));
        for (pattern, expected) in [
            ("aws", Some(HitPosition::Name)),
            ("^\"aws", Some(HitPosition::Name)),
            ("aws-cli$q", Some(HitPosition::Repository)),
            ("aws-cli$", None),
            ("cli.quay", Some(HitPosition::Repository)),
            ("ocp", Some(HitPosition::Repository)),
            ("@sha256", Some(HitPosition::Digest)),
            ("fec", Some(HitPosition::Digest)),
            (".*fec", Some(HitPosition::Digest)),
            ("aws.*fec", Some(HitPosition::Digest)),
            ("0\"$", Some(HitPosition::Digest)),
            ("", Some(HitPosition::Name)),
            ("x*", Some(HitPosition::Name)),
            ("azure", None),
        ] {
            let hits = excludes(&[pattern]).unwrap().hits("aws-cli", &pullspec).unwrap();
            assert_eq!(hits.first().map(|hit| hit.position), expected, "{pattern}");
        }
    }

    #[test]
    fn the_error_names_the_bad_pattern() {
        let error = excludes(&["aws", "[a", "gcp"]).unwrap_err().to_string();
        assert!(
            error.starts_with("exclude pattern 2, `[a`: unmatched `[`"),
            "{error}"
        );
    }

    /// Each one ends soon, with an error or a result.
    #[test]
    fn hostile_patterns_end_in_errors() {
        let deep = |n: usize| r"\(".repeat(n) + "a" + &r"\)*".repeat(n);
        let many: Vec<String> = (0..2_000).map(|n| n.to_string()).collect();
        assert!(matches!(
            Excludes::new(&many),
            Err(PatternError::TooMany { count: 2_000 })
        ));
        let large = vec![r"\(.\{100\}\)\{100\}".to_owned(); 100];
        assert!(matches!(
            Excludes::new(&large),
            Err(PatternError::TooLarge { .. })
        ));
        let backtracking: Vec<String> = (0..30).map(|n| format!(r"\(.*\)\1{n}")).collect();
        assert!(matches!(
            Excludes::new(&backtracking),
            Err(PatternError::TooLarge { number: 20, .. })
        ));
        for pattern in [
            deep(1_000),
            deep(25),
            r"a\{32767\}".to_owned(),
            r"\(\(\(a\{200\}\)\{200\}\)\{200\}\)\{200\}".to_owned(),
            "a".repeat(5_000),
            "[".repeat(4_000),
        ] {
            let error = excludes(&[&pattern]).unwrap_err();
            assert!(matches!(error, PatternError::Syntax { .. }), "{pattern}: {error}");
        }
        let pullspec = format!("quay.io/{}@sha256:{}", "a".repeat(255), "a".repeat(64));
        for pattern in [
            r"\(a*\)*\1b".to_owned(),
            r"\(.*\)\(.*\)\(.*\)\(.*\)\1\2\3\4x".to_owned(),
            r"\(\(.*\)*\)*\1\2!".to_owned(),
            r"\(.*\)*\1\(.*\)*\2\(.*\)*\3%".to_owned(),
            deep(10),
            r"\(.\{20\}\)\{200\}".to_owned(),
            r"\(.*a\)\{300\}b".to_owned(),
            r"\(a\?\)\{3000\}a\{3000\}".to_owned(),
        ] {
            let start = Instant::now();
            let _ = excludes(&[&pattern]).and_then(|excludes| excludes.hits("a", &pullspec));
            let took = start.elapsed();
            assert!(took < Duration::from_secs(5), "{pattern}: {took:?}");
        }
    }
}
