//! `excludePrecachePatterns`: which images of a release are not wanted.
//!
//! Means what `grep -vG -f patterns` means over lines `"name$pullspec"`, the two quotes included, for that is how
//! the hub's users have learnt to write them: `^"aws` is anchored at the name, `ocp` hits nearly every pullspec, and
//! `fec` hits digests by chance. So each hit says where it lies, and whoever selects images can warn.

use fancy_regex::{BytesMode, Regex, RegexBuilder};

use super::bre::{self, BreError};
use super::shown;

/// No release has as many images.
const MAX_PATTERNS: usize = 1_000;
/// Bytes of one pattern; the line that a pattern is held against has about 150.
const MAX_LENGTH: usize = 4_096;
/// Steps of all patterns together, see `bre::MAX_SIZE`.
const MAX_TOTAL_SIZE: usize = 200_000;
/// Bytes that one compiled pattern may take; the engine's default is 10 MiB.
const COMPILED_SIZE: usize = 4 << 20;
/// Bytes of one pattern's lazily built automaton; beyond, the engine is slower but goes on.
const AUTOMATON_SIZE: usize = 128 << 10;
/// Steps of backtracking for one pattern and image, about 3 ms; `\([a-z]*\)-\1` needs a fiftieth of them.
const BACKTRACK_LIMIT: usize = 50_000;
/// Steps that a pattern counts for because it backtracks: 20 such patterns, each at the limit for each of 250 images,
/// take less than a minute.
const BACKTRACKING_SIZE: usize = 10_000;
/// Stands for a character that is not to be looked at: a word character, lest `\b` and `\w` see a change, but one that
/// occurs in no digest and in no name of a repository.
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
    /// What it hit.
    pub place: HitPosition,
}

/// How much of an image's line a pattern needs to match it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HitPosition {
    /// The name alone.
    Name,
    /// The repository of the pullspec too, or alone.
    Repository,
    /// The digest too, or alone: most likely by chance.
    Digest,
}

/// Why the exclude patterns cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Not a basic regular expression.
    #[error(
        "exclude pattern {number}, `{pattern}`: {why}\nhint: it is a basic regular expression, as of `grep -G`"
    )]
    Syntax {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// What is wrong.
        why: BreError,
    },
    /// The engine does not take it.
    #[error("exclude pattern {number}, `{pattern}`, cannot be compiled: {why}")]
    Compile {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// The engine's words.
        why: String,
    },
    /// It takes too long, by its back-references.
    #[error("exclude pattern {number}, `{pattern}`, takes too long on image `{name}`")]
    Backtracks {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
        /// The image.
        name: String,
    },
    /// More than anyone needs.
    #[error("{count} exclude patterns are too many: at most {MAX_PATTERNS} are taken")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// All together are too much.
    #[error(
        "the exclude patterns are too large together: pattern {number}, `{pattern}`, is the first one too much"
    )]
    TooLarge {
        /// Which, counted from 1.
        number: usize,
        /// Its text.
        pattern: String,
    },
}

impl Excludes {
    /// Compiles `patterns`; one that is bad makes all unusable, for leaving it out would pull what was not wanted.
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

    /// Every pattern that excludes the image `name` whose pullspec is written `pullspec`; none, if it is wanted.
    pub fn hits(&self, name: &str, pullspec: &str) -> Result<Vec<Hit>, PatternError> {
        let (repository, digest) = pullspec.split_at(pullspec.find('@').unwrap_or(pullspec.len()));
        let mask = |text: &str| MASK.to_string().repeat(text.len());
        let line = format!("\"{name}${pullspec}\"");
        let without_digest = format!("\"{name}${repository}{}\"", mask(digest));
        let name_only = format!("\"{name}{}\"", mask(pullspec) + &mask("$"));

        let mut hits = Vec::new();
        for (index, exclude) in self.0.iter().enumerate() {
            // The engine's only errors while matching are limits that backtracking reached.
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
            let place = if matches(&name_only)? {
                HitPosition::Name
            } else if matches(&without_digest)? {
                HitPosition::Repository
            } else {
                HitPosition::Digest
            };
            hits.push(Hit { index, place });
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
    fn says_where_a_pattern_hits() {
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
            assert_eq!(hits.first().map(|hit| hit.place), expected, "{pattern}");
        }
    }

    #[test]
    fn names_the_bad_pattern() {
        let error = excludes(&["aws", "[a", "gcp"]).unwrap_err().to_string();
        assert!(
            error.starts_with("exclude pattern 2, `[a`: unmatched `[`"),
            "{error}"
        );
    }

    /// Each ends soon, in an error or in an answer.
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
