//! Parses and orders semantic versions (semver.org, 2.0.0), as the cluster-version operator does.

use std::str::FromStr;

/// `4.16.0-rc.3`; build metadata has no effect and is not kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SemanticVersion {
    core: [u64; 3],
    stage: Stage,
}

/// Ordered: every pre-release is before its release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    PreRelease(Vec<Identifier>),
    Release,
}

/// Ordered: numbers are before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

/// The text is no semantic version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotSemantic;

impl SemanticVersion {
    /// The major and the minor version.
    pub fn minor(&self) -> (u64, u64) {
        (self.core[0], self.core[1])
    }
}

impl FromStr for SemanticVersion {
    type Err = NotSemantic;

    fn from_str(text: &str) -> Result<Self, NotSemantic> {
        let (version, build) = text.split_once('+').unwrap_or((text, "0"));
        if !build.split('.').all(is_identifier) {
            return Err(NotSemantic);
        }
        let (core, pre_release) = match version.split_once('-') {
            Some((core, pre_release)) => (core, Some(pre_release)),
            None => (version, None),
        };
        let numbers: Option<Vec<u64>> = core.split('.').take(4).map(number).collect();
        let core = numbers.and_then(|numbers| numbers.try_into().ok());
        let stage = match pre_release {
            None => Some(Stage::Release),
            Some(words) => words
                .split('.')
                .map(identifier)
                .collect::<Option<_>>()
                .map(Stage::PreRelease),
        };
        match (core, stage) {
            (Some(core), Some(stage)) => Ok(Self { core, stage }),
            _ => Err(NotSemantic),
        }
    }
}

fn is_identifier(word: &str) -> bool {
    !word.is_empty()
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn is_numeric(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number without leading zeros.
fn number(word: &str) -> Option<u64> {
    let has_leading_zero = word.len() > 1 && word.starts_with('0');
    (is_numeric(word) && !has_leading_zero).then(|| word.parse().ok())?
}

fn identifier(word: &str) -> Option<Identifier> {
    match is_numeric(word) {
        true => number(word).map(Identifier::Number),
        false => is_identifier(word).then(|| Identifier::Word(word.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn versions_have_the_order_of_the_specification() {
        let ordered = [
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "4.9.0",
            "4.10.0-0.nightly-2024-08-01-082745",
            "4.10.0-ec.0",
            "4.10.0",
        ];
        for (index, one) in ordered.iter().enumerate() {
            for (other_index, other) in ordered.iter().enumerate() {
                let parse = |text: &str| text.parse::<SemanticVersion>().unwrap();
                assert_eq!(
                    parse(one).cmp(&parse(other)),
                    index.cmp(&other_index),
                    "{one} {other}"
                );
            }
        }
        let one = "4.16.3+build.01".parse::<SemanticVersion>();
        assert_eq!(one, "4.16.3".parse());
    }

    #[test]
    fn other_texts_are_no_versions() {
        for text in [
            "",
            "4",
            "4.16",
            "4.16.3.1",
            "v4.16.3",
            "04.16.3",
            "4.16.03",
            "4.16.x",
            "4.16.3-",
            "4.16.3-rc..1",
            "4.16.3-rc.01",
            "4.16.3-r_c",
            "4.16.3+",
            "4.16.3 ",
            "4.16.99999999999999999999",
            "-1.2.3",
            "placeholder",
        ] {
            assert_eq!(text.parse::<SemanticVersion>(), Err(NotSemantic), "{text}");
        }
    }
}
