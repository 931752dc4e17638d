//! Matches `.indexignore` patterns, which exclude files from a catalog's directory.
//!
//! The rules are those of the programs that serve catalogs (joelanford/ignore with go-git 5's `gitignore`), which differ from
//! git's. A pattern of any `.indexignore` is matched against the path of every file below its directory, never against a
//! directory alone, so `!` can include a file of an excluded directory again. The last matching pattern decides.
//!
//! ```text
//! name        any component of the path: the file, or one of its directories
//! a/name, /a  the path's first components, from the pattern's directory on
//! **          as a component: any number of components, and at the end all; with other letters it matches nothing
//! name/       directories only
//! * ? [a-z] [^a-z] \c     inside one component, as in Go's path.Match; an invalid pattern matches nothing
//! ```

/// A pattern, and the directory of its `.indexignore`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    directory: Vec<String>,
    components: Vec<String>,
    includes: bool,
    directories_only: bool,
}

/// Parses the patterns of an `.indexignore` in `directory`.
pub(super) fn patterns(text: &str, directory: &[String]) -> Vec<Pattern> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Pattern::parse(line, directory)).collect()
}

/// Whether the file at `path` is excluded.
pub(super) fn is_ignored(patterns: &[Pattern], path: &[String]) -> bool {
    let decisive = patterns.iter().rev().find(|pattern| pattern.matches(path));
    decisive.is_some_and(|pattern| !pattern.includes)
}

impl Pattern {
    fn parse(line: &str, directory: &[String]) -> Self {
        let (includes, line) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (directories_only, line) = match line.strip_suffix('/') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        Self {
            directory: directory.to_vec(),
            components: line.split('/').map(str::to_owned).collect(),
            includes,
            directories_only,
        }
    }

    fn matches(&self, path: &[String]) -> bool {
        let Some(path) = path
            .strip_prefix(&self.directory[..])
            .filter(|path| !path.is_empty())
        else {
            return false;
        };
        match &self.components[..] {
            [name] => self.matches_a_component(name, path),
            components => self.matches_the_path(components, path),
        }
    }

    fn matches_a_component(&self, name: &str, path: &[String]) -> bool {
        let first = path.iter().position(|component| glob_matches(name, component));
        first.is_some_and(|first| !self.directories_only || first + 1 < path.len())
    }

    fn matches_the_path(&self, components: &[String], path: &[String]) -> bool {
        let (mut rest, mut is_match, mut anywhere) = (path, false, false);
        for (index, component) in components.iter().enumerate() {
            if component.is_empty() {
                anywhere = false;
                continue;
            }
            if component == "**" {
                // At the end it matches the rest, so the components before it decide.
                if index + 1 == components.len() {
                    break;
                }
                anywhere = true;
                continue;
            }
            if component.contains("**") || rest.is_empty() {
                return false;
            }
            let limit = if anywhere { rest.len() } else { 1 };
            match rest[..limit]
                .iter()
                .position(|name| glob_matches(component, name))
            {
                Some(found) => {
                    is_match = true;
                    rest = &rest[found + 1..];
                }
                None if anywhere => {
                    is_match = false;
                    rest = &[];
                }
                None => return false,
            }
            anywhere = false;
        }
        is_match && !(self.directories_only && rest.is_empty())
    }
}

/// Go's `path.Match` for names without a slash.
fn glob_matches(pattern: &str, name: &str) -> bool {
    let Some(pattern) = glob(pattern) else {
        return false;
    };
    let name: Vec<char> = name.chars().collect();
    // Where to continue if a star matched too few letters: the pattern index after it, and the letters that it matched.
    let mut retry: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    loop {
        match pattern.get(p) {
            None if n == name.len() => return true,
            Some(Glob::Star) => {
                p += 1;
                retry = Some((p, n));
                continue;
            }
            Some(Glob::One(one)) if n < name.len() && one.matches(name[n]) => {
                (p, n) = (p + 1, n + 1);
                continue;
            }
            _ => {}
        }
        match retry {
            Some((after, matched)) if matched < name.len() => {
                retry = Some((after, matched + 1));
                (p, n) = (after, matched + 1);
            }
            _ => return false,
        }
    }
}

enum Glob {
    Star,
    One(GlobChar),
}

enum GlobChar {
    Any,
    Only(char),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl GlobChar {
    fn matches(&self, letter: char) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => *only == letter,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter)) != *negated
            }
        }
    }
}

/// Parses a glob; `None` if it is invalid.
fn glob(pattern: &str) -> Option<Vec<Glob>> {
    let mut letters = pattern.chars().peekable();
    let mut parts = Vec::new();
    while let Some(letter) = letters.next() {
        parts.push(match letter {
            '*' => Glob::Star,
            '?' => Glob::One(GlobChar::Any),
            '\\' => Glob::One(GlobChar::Only(letters.next()?)),
            '[' => {
                let negated = letters.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                // A closing bracket right after the opening one is invalid.
                while ranges.is_empty() || letters.next_if_eq(&']').is_none() {
                    let mut end = || match letters.next()? {
                        '-' | ']' => None,
                        '\\' => letters.next(),
                        letter => Some(letter),
                    };
                    let low = end()?;
                    let high = match letters.next_if_eq(&'-') {
                        None => low,
                        Some(_) => match letters.next()? {
                            '-' | ']' => return None,
                            '\\' => letters.next()?,
                            letter => letter,
                        },
                    };
                    ranges.push((low, high));
                }
                Glob::One(GlobChar::Class { negated, ranges })
            }
            letter => Glob::One(GlobChar::Only(letter)),
        });
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Vec<String> {
        text.split('/').map(str::to_owned).collect()
    }

    #[test]
    fn patterns_match_as_in_operator_registry() {
        for (text, ignored, kept) in [
            ("README.md", "README.md a/README.md README.md/x", "a README"),
            ("/README.md", "README.md", "a/README.md"),
            ("*.md", "a.md b/c.md", "a.mdx"),
            ("docs/", "docs/a a/docs/b", "docs a/docs"),
            ("a/b", "a/b a/b/c", "x/a/b a/c"),
            ("a/*.json", "a/x.json", "a/b/x.json"),
            ("a/**/x", "a/x a/b/x a/b/c/x", "x b/a/x"),
            ("**/x", "x a/x a/b/x", "y"),
            ("a/**", "a/b a/b/c a", "b/a"),
            ("a**/b", "", "a/b ab/b"),
            ("*\n!*.json", "a.md", "a.json b/c.json"),
            ("docs\n!docs/index.json", "docs/a", "docs/index.json"),
            ("# a\n\n  b  ", "b", "# a"),
            ("\\#a", "#a", "a"),
            ("[a-c]?", "ax c1", "d1 a"),
            ("[^a]", "b", "a bc"),
            ("[", "", "["),
            ("[]a]", "", "] a"),
            ("a[", "", "a["),
            ("\\", "", "\\"),
            ("*a*b*c", "abc xaxbxc aabbcc", "ab acb"),
        ] {
            let patterns = patterns(text, &[]);
            for file in ignored.split_whitespace() {
                assert!(is_ignored(&patterns, &path(file)), "{text:?} {file}");
            }
            for file in kept.split_whitespace() {
                assert!(!is_ignored(&patterns, &path(file)), "{text:?} {file}");
            }
        }
    }

    #[test]
    fn a_pattern_applies_below_its_directory() {
        let mut all = patterns("*.md", &[]);
        all.extend(patterns("!keep.md\n/only", &path("a/b")));
        for (file, ignored) in [
            ("keep.md", true),
            ("a/keep.md", true),
            ("a/b/keep.md", false),
            ("a/b/c/keep.md", false),
            ("a/b/only", true),
            ("only", false),
            ("a/b", false),
        ] {
            assert_eq!(is_ignored(&all, &path(file)), ignored, "{file}");
        }
    }

    #[test]
    fn many_stars_are_matched_quickly() {
        let pattern = "*a".repeat(1_000) + "b";
        assert!(!glob_matches(&pattern, &"a".repeat(10_000)));
    }
}
