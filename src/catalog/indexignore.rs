//! `.indexignore`: files of a catalog's directory that are none of its documents.
//!
//! The rules are those of the programs that serve catalogs (joelanford/ignore over go-git 5's `gitignore`), which differ
//! from git's own. A pattern of any `.indexignore` is tried on every file's path below the file's directory, never on a
//! directory by itself, so that `!` brings back what lies in an excluded directory; the last pattern that fits decides.
//!
//! ```text
//! name        any component of the path: the file, or a directory that it is in
//! a/name, /a  the path's first components, from the pattern's directory on
//! **          as a component: any number of components, and at the end all; beside other letters it fits nothing
//! name/       directories only
//! * ? [a-z] [^a-z] \c     inside one component, as Go's path.Match; a pattern that is broken fits nothing
//! ```

/// A pattern, and the directory whose `.indexignore` has it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    directory: Vec<String>,
    components: Vec<String>,
    includes: bool,
    directories_only: bool,
}

/// The patterns of a text, found in `directory`.
pub(super) fn patterns(text: &str, directory: &[String]) -> Vec<Pattern> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Pattern::parse(line, directory)).collect()
}

/// Whether the file at `path` is to be passed over.
pub(super) fn is_ignored(patterns: &[Pattern], path: &[String]) -> bool {
    let decisive = patterns.iter().rev().find(|pattern| pattern.fits(path));
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

    fn fits(&self, path: &[String]) -> bool {
        let Some(path) = path
            .strip_prefix(&self.directory[..])
            .filter(|path| !path.is_empty())
        else {
            return false;
        };
        match &self.components[..] {
            [name] => self.fits_a_component(name, path),
            components => self.fits_the_path(components, path),
        }
    }

    fn fits_a_component(&self, name: &str, path: &[String]) -> bool {
        let first = path.iter().position(|component| matches(name, component));
        first.is_some_and(|first| !self.directories_only || first + 1 < path.len())
    }

    fn fits_the_path(&self, components: &[String], path: &[String]) -> bool {
        let (mut rest, mut fits, mut anywhere) = (path, false, false);
        for (index, component) in components.iter().enumerate() {
            if component.is_empty() {
                anywhere = false;
                continue;
            }
            if component == "**" {
                // At the end it takes all that is left, and fits if what was before it did.
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
            match rest[..limit].iter().position(|name| matches(component, name)) {
                Some(found) => {
                    fits = true;
                    rest = &rest[found + 1..];
                }
                None if anywhere => {
                    fits = false;
                    rest = &[];
                }
                None => return false,
            }
            anywhere = false;
        }
        fits && !(self.directories_only && rest.is_empty())
    }
}

/// Go's `path.Match` for names without a slash.
fn matches(pattern: &str, name: &str) -> bool {
    let Some(pattern) = glob(pattern) else {
        return false;
    };
    let name: Vec<char> = name.chars().collect();
    // Where to go on when a star took too little: the place after it, and the next letter it is to take.
    let mut again: Option<(usize, usize)> = None;
    let (mut p, mut n) = (0, 0);
    loop {
        match pattern.get(p) {
            None if n == name.len() => return true,
            Some(Glob::Star) => {
                p += 1;
                again = Some((p, n));
                continue;
            }
            Some(Glob::One(one)) if n < name.len() && one.fits(name[n]) => {
                (p, n) = (p + 1, n + 1);
                continue;
            }
            _ => {}
        }
        match again {
            Some((after, taken)) if taken < name.len() => {
                again = Some((after, taken + 1));
                (p, n) = (after, taken + 1);
            }
            _ => return false,
        }
    }
}

enum Glob {
    Star,
    One(Letter),
}

enum Letter {
    Any,
    Only(char),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Letter {
    fn fits(&self, letter: char) -> bool {
        match self {
            Self::Any => true,
            Self::Only(only) => *only == letter,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&letter)) != *negated
            }
        }
    }
}

/// The parts of a pattern; `None` if it is broken.
fn glob(pattern: &str) -> Option<Vec<Glob>> {
    let mut letters = pattern.chars().peekable();
    let mut parts = Vec::new();
    while let Some(letter) = letters.next() {
        parts.push(match letter {
            '*' => Glob::Star,
            '?' => Glob::One(Letter::Any),
            '\\' => Glob::One(Letter::Only(letters.next()?)),
            '[' => {
                let negated = letters.next_if_eq(&'^').is_some();
                let mut ranges = Vec::new();
                // A bracket right after the opening one is not the closing one, but broken.
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
                Glob::One(Letter::Class { negated, ranges })
            }
            letter => Glob::One(Letter::Only(letter)),
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
    fn the_rules() {
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
    fn a_pattern_rules_below_its_directory() {
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
    fn stars_do_not_take_for_ever() {
        let pattern = "*a".repeat(1_000) + "b";
        assert!(!matches(&pattern, &"a".repeat(10_000)));
    }
}
