//! Translates a GNU basic regular expression (`grep -G`) into the syntax of the `regex` crates.
//!
//! A recursive-descent parser over the pattern's bytes, in the C locale. It follows the behaviour of grep 3.8, which a
//! differential test checks. grep has two parsers, `dfa.c` and glibc's, which do not always agree; this one follows
//! `dfa.c`, which decides in grep unless the pattern has back-references.
//!
//! ```text
//! regex  = branch *( "\|" branch )
//! branch = *( atom *repeat )
//! atom   = "\(" regex "\)" | "\1".."\9" | "." | "[" … "]" | anchor | literal
//! anchor = "^" first in a branch | "$" last in a branch | \< \> \b \B \` \'
//! repeat = "*" | "\+" | "\?" | "\{" m [ "," [ n ] ] "\}"        literals themselves where nothing precedes
//! ```

use super::bre_bracket::{self, ByteSet, is_space};
use super::bre_error::BreError;

/// How many single-character steps a pattern may have with its repetitions expanded. Real patterns have a few dozen, and
/// the texts that they match about a hundred characters. Bounds the time and memory of compiling.
pub(super) const MAX_SIZE: usize = 20_000;
/// How deep groups and repetitions may be nested; the engine's parser fails at 64.
const MAX_DEPTH: usize = 24;
/// glibc's `RE_DUP_MAX`.
const MAX_REPEAT: usize = 32_767;

/// A pattern in the engine's syntax.
#[derive(Debug)]
pub(super) struct Translated {
    /// For an engine that matches bytes, without Unicode.
    pub(super) regex: String,
    /// Steps with repetitions expanded, at most [`MAX_SIZE`].
    pub(super) size: usize,
    /// It has back-references, which no linear engine can match.
    pub(super) backtracks: bool,
}

/// Translates `pattern`.
pub(super) fn translate(pattern: &[u8]) -> Result<Translated, BreError> {
    let mut parser = Parser {
        pattern,
        at: 0,
        groups: 0,
        completed: 0,
        backtracks: false,
        first: true,
        fresh: true,
    };
    let whole = parser.regex(0)?;
    if parser.at < pattern.len() {
        return Err(BreError::UnopenedGroup);
    }
    Ok(Translated {
        regex: whole.regex,
        size: whole.size,
        backtracks: parser.backtracks,
    })
}

/// A translated part of the pattern.
#[derive(Default)]
struct Fragment {
    regex: String,
    size: usize,
    depth: usize,
    is_anchor: bool,
}

impl Fragment {
    fn new(regex: impl Into<String>) -> Self {
        Self {
            regex: regex.into(),
            size: 1,
            ..Self::default()
        }
    }

    fn literal(byte: u8) -> Self {
        match byte.is_ascii_alphanumeric() {
            true => Self::new(char::from(byte)),
            false => Self::new(format!(r"[\x{byte:02X}]")),
        }
    }

    fn anchor(regex: &str) -> Self {
        Self {
            is_anchor: true,
            ..Self::new(regex)
        }
    }

    fn append(&mut self, separator: &str, other: Self) -> Result<(), BreError> {
        self.regex += separator;
        self.regex += &other.regex;
        self.size += other.size;
        self.depth = self.depth.max(other.depth);
        self.check()
    }

    fn enclosed(self, before: &str, after: &str, times: usize) -> Result<Self, BreError> {
        let fragment = Self {
            regex: format!("{before}{}{after}", self.regex),
            size: self.size.saturating_mul(times.max(1)).saturating_add(1),
            depth: self.depth + 1,
            is_anchor: false,
        };
        fragment.check()?;
        Ok(fragment)
    }

    fn check(&self) -> Result<(), BreError> {
        match self.size > MAX_SIZE || self.depth > MAX_DEPTH {
            true => Err(BreError::TooLarge),
            false => Ok(()),
        }
    }
}

struct Parser<'a> {
    pattern: &'a [u8],
    at: usize,
    /// Groups opened so far.
    groups: usize,
    /// Bit n: group n has ended in this alternative, so that a back-reference may name it.
    completed: u16,
    backtracks: bool,
    /// Nothing precedes in this branch, so `^` is an anchor (`lasttok` in `dfa.c`).
    first: bool,
    /// Only anchors precede in this branch, so `*` is a literal (`laststart` in `dfa.c`).
    fresh: bool,
}

impl Parser<'_> {
    fn rest(&self) -> &[u8] {
        &self.pattern[self.at..]
    }

    fn eat(&mut self, token: &[u8]) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn regex(&mut self, depth: usize) -> Result<Fragment, BreError> {
        if depth > MAX_DEPTH {
            return Err(BreError::TooLarge);
        }
        let before = self.completed;
        let mut whole = self.branch(depth)?;
        let mut completed = self.completed;
        while self.eat(br"\|") {
            self.completed = before;
            whole.append("|", self.branch(depth)?)?;
            completed |= self.completed;
        }
        self.completed = completed;
        Ok(whole)
    }

    fn branch(&mut self, depth: usize) -> Result<Fragment, BreError> {
        (self.first, self.fresh) = (true, true);
        let mut branch = Fragment::default();
        while !self.rest().is_empty() && !self.rest().starts_with(br"\|") && !self.rest().starts_with(br"\)")
        {
            let mut atom = self.atom(depth)?;
            while !self.fresh
                && let Some((least, most)) = self.repeat()?
            {
                if atom.is_anchor {
                    return Err(BreError::RepeatedAnchor);
                }
                let quantifier = match most {
                    Some(most) => format!("){{{least},{most}}}"),
                    None => format!("){{{least},}}"),
                };
                atom = atom.enclosed("(?:", &quantifier, most.unwrap_or(least))?;
            }
            branch.append("", atom)?;
        }
        Ok(branch)
    }

    /// The bounds of a repetition, if one starts here.
    fn repeat(&mut self) -> Result<Option<(usize, Option<usize>)>, BreError> {
        let bounds = if self.eat(b"*") {
            (0, None)
        } else if self.eat(br"\+") {
            (1, None)
        } else if self.eat(br"\?") {
            (0, Some(1))
        } else if self.eat(br"\{") {
            let least = self.number();
            let (least, most) = match self.eat(b",") {
                true => (least.unwrap_or(0), self.number()),
                false => {
                    let exactly = least.ok_or_else(|| self.bad_repeat())?;
                    (exactly, Some(exactly))
                }
            };
            if !self.eat(br"\}") {
                return Err(self.bad_repeat());
            }
            if most.is_some_and(|most| most < least) {
                return Err(BreError::RepeatContent);
            }
            if most.unwrap_or(least) > MAX_REPEAT {
                return Err(BreError::TooLarge);
            }
            (least, most)
        } else {
            return Ok(None);
        };
        Ok(Some(bounds))
    }

    fn bad_repeat(&self) -> BreError {
        match self.rest() {
            [] | [b'\\'] => BreError::UnclosedRepeat,
            _ => BreError::RepeatContent,
        }
    }

    fn number(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(&digit @ b'0'..=b'9') = self.rest().first() {
            self.at += 1;
            let value = number.unwrap_or(0) * 10 + usize::from(digit - b'0');
            number = Some(value.min(MAX_REPEAT + 1));
        }
        number
    }

    fn atom(&mut self, depth: usize) -> Result<Fragment, BreError> {
        let first = std::mem::replace(&mut self.first, false);
        let Some((&byte, _)) = self.rest().split_first() else {
            return Ok(Fragment::default());
        };
        self.at += 1;
        let fragment = match byte {
            b'\\' => return self.escape(depth),
            b'^' if first => return Ok(Fragment::anchor(r"\A")),
            b'$' if self.ends_branch() => return Ok(Fragment::anchor(r"\z")),
            b'.' => Fragment::new(ByteSet::of(|b| b != b'\n').to_string()),
            b'[' => {
                let (set, length) = bre_bracket::parse(self.rest())?;
                self.at += length;
                Fragment::new(set.to_string())
            }
            // Also a `*` without anything to repeat.
            _ => Fragment::literal(byte),
        };
        self.fresh = false;
        Ok(fragment)
    }

    /// Whether a preceding `$` is an anchor: at the end of a branch, and also before a plain `)` or `|` that is not the
    /// pattern's last byte, because `dfa.c` does not check for the backslash there. So `aws$|gcp` matches nothing.
    fn ends_branch(&self) -> bool {
        matches!(self.rest(), [] | [b'\\', b')' | b'|', ..] | [b')' | b'|', _, ..])
    }

    fn escape(&mut self, depth: usize) -> Result<Fragment, BreError> {
        let Some(&byte) = self.rest().first() else {
            return Err(BreError::TrailingBackslash);
        };
        self.at += 1;
        let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
        let fragment = match byte {
            b'<' => return Ok(Fragment::anchor(r"\b{start}")),
            b'>' => return Ok(Fragment::anchor(r"\b{end}")),
            b'b' => return Ok(Fragment::anchor(r"\b")),
            b'B' => return Ok(Fragment::anchor(r"\B")),
            b'`' => return Ok(Fragment::anchor(r"\A")),
            b'\'' => return Ok(Fragment::anchor(r"\z")),
            b'(' => self.group(depth)?,
            b'1'..=b'9' => {
                let group = byte - b'0';
                if self.completed & 1 << group == 0 {
                    return Err(BreError::BackReference);
                }
                self.backtracks = true;
                Fragment::new(format!(r"(?:\{group})"))
            }
            b'w' => Fragment::new(ByteSet::of(word).to_string()),
            b'W' => Fragment::new(ByteSet::of(word).complement().to_string()),
            b's' => Fragment::new(ByteSet::of(is_space).to_string()),
            b'S' => Fragment::new(ByteSet::of(is_space).complement().to_string()),
            // `\.` and the like, and unknown escapes such as `\d`, which grep 3.8 reads literally.
            _ => Fragment::literal(byte),
        };
        self.fresh = false;
        Ok(fragment)
    }

    fn group(&mut self, depth: usize) -> Result<Fragment, BreError> {
        self.groups += 1;
        let number = self.groups;
        let inner = self.regex(depth + 1)?;
        if !self.eat(br"\)") {
            return Err(BreError::UnclosedGroup);
        }
        if number <= 9 {
            self.completed |= 1 << number;
        }
        inner.enclosed("(", ")", 1)
    }
}
