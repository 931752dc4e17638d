//! Parses bracket expressions of basic regular expressions: `[a-z]`, `[^]"]`, `[[:digit:].]`.
//!
//! A bracket expression is a set of bytes, as in the C locale: ranges compare byte values, and a collating symbol `[.x.]` or
//! an equivalence class `[=x=]` is the one byte that it names. A backslash is an ordinary character.

use std::fmt;

use super::bre_error::BreError;

/// glibc's `BRACKET_NAME_BUF_SIZE`: a longer name of a class makes the bracket count as unclosed.
const MAX_NAME: usize = 32;

/// A set of bytes that match at one position.
pub(super) struct ByteSet([bool; 256]);

impl ByteSet {
    /// The bytes for which `test` is true.
    pub(super) fn of(test: impl Fn(u8) -> bool) -> Self {
        Self(std::array::from_fn(|byte| u8::try_from(byte).is_ok_and(&test)))
    }

    /// The bytes that are not in the set.
    pub(super) fn complement(&self) -> Self {
        Self(self.0.map(|is_member| !is_member))
    }

    fn add(&mut self, from: u8, to: u8) {
        self.0[usize::from(from)..=usize::from(to)].fill(true);
    }
}

/// A class in the syntax of the `regex` crate. All bytes are escaped, because that syntax has more operators.
impl fmt::Display for ByteSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An empty class: the complement of everything.
        if !self.0.contains(&true) {
            return f.write_str(r"[^\x00-\xFF]");
        }
        f.write_str("[")?;
        let mut from = 0;
        for run in self.0.chunk_by(|a, b| a == b) {
            let to = from + run.len() - 1;
            if run[0] {
                write!(f, r"\x{from:02X}-\x{to:02X}")?;
            }
            from = to + 1;
        }
        f.write_str("]")
    }
}

/// Parses the text after the `[`. Also returns how many bytes it consumed, including the closing `]`.
pub(super) fn parse(rest: &[u8]) -> Result<(ByteSet, usize), BreError> {
    let negated = rest.first() == Some(&b'^');
    let mut bracket = Bracket {
        rest,
        at: usize::from(negated),
    };
    let start = bracket.at;
    let mut set = ByteSet::of(|_| false);
    let mut plain = true;
    while bracket.at == start || bracket.peek()? != b']' {
        // A hyphen that neither begins nor ends the list nor makes a range.
        if bracket.at != start && bracket.peek()? == b'-' && bracket.peek_after(1)? != b']' {
            return Err(BreError::RangeEnd);
        }
        let Some(from) = bracket.element(&mut set)? else {
            plain = false;
            continue;
        };
        let mut to = from;
        if bracket.peek()? == b'-' && bracket.peek_after(1)? != b']' {
            plain = false;
            bracket.at += 1;
            to = bracket
                .element(&mut set)?
                .filter(|&byte| byte >= from)
                .ok_or(BreError::RangeEnd)?;
        }
        set.add(from, to);
    }
    let content = &rest[start..bracket.at];
    if plain && content.len() > 2 && content.starts_with(b":") && content.ends_with(b":") {
        return Err(BreError::ClassOutsideBrackets);
    }
    let set = if negated { set.complement() } else { set };
    Ok((set, bracket.at + 1))
}

struct Bracket<'a> {
    rest: &'a [u8],
    at: usize,
}

impl Bracket<'_> {
    fn peek(&self) -> Result<u8, BreError> {
        self.peek_after(0)
    }

    fn peek_after(&self, bytes: usize) -> Result<u8, BreError> {
        self.rest
            .get(self.at + bytes)
            .copied()
            .ok_or(BreError::UnclosedBracket)
    }

    /// The next element: a byte, which may be an end of a range, or `None` for a class, which is added to `set`.
    fn element(&mut self, set: &mut ByteSet) -> Result<Option<u8>, BreError> {
        let byte = self.peek()?;
        self.at += 1;
        let kind = match (byte, self.rest.get(self.at)) {
            (b'[', Some(&kind @ (b'.' | b'=' | b':'))) => kind,
            _ => return Ok(Some(byte)),
        };
        let name_start = self.at + 1;
        let rest = self.rest.get(name_start..).unwrap_or_default();
        let length = rest
            .windows(2)
            .position(|pair| pair == [kind, b']'])
            .filter(|&length| length < MAX_NAME)
            .ok_or(BreError::UnclosedBracket)?;
        self.at = name_start + length + 2;
        match (kind, &rest[..length]) {
            (b'.', &[byte]) => return Ok(Some(byte)),
            (b'=', &[byte]) => set.add(byte, byte),
            (b':', name) => {
                let class = class(name).ok_or(BreError::ClassName)?;
                (0..=255)
                    .filter(|&byte| class(byte))
                    .for_each(|byte| set.add(byte, byte));
            }
            _ => return Err(BreError::Collation),
        }
        Ok(None)
    }
}

fn class(name: &[u8]) -> Option<fn(u8) -> bool> {
    let test: fn(u8) -> bool = match name {
        b"alnum" => |b| b.is_ascii_alphanumeric(),
        b"alpha" => |b| b.is_ascii_alphabetic(),
        b"blank" => |b| matches!(b, b' ' | b'\t'),
        b"cntrl" => |b| b.is_ascii_control(),
        b"digit" => |b| b.is_ascii_digit(),
        b"graph" => |b| b.is_ascii_graphic(),
        b"lower" => |b| b.is_ascii_lowercase(),
        b"print" => |b| b.is_ascii_graphic() || b == b' ',
        b"punct" => |b| b.is_ascii_punctuation(),
        b"space" => is_space,
        b"upper" => |b| b.is_ascii_uppercase(),
        b"xdigit" => |b| b.is_ascii_hexdigit(),
        _ => return None,
    };
    Some(test)
}

/// C's `isspace`, which includes the vertical tab, unlike Rust's.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}
