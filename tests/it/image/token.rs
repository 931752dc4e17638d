//! Splits a fixture line into words: separated by blanks, quoted if they contain blanks, with escapes for any byte.

/// A word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) bytes: Vec<u8>,
    /// It began with a quote: it is content and never an option.
    pub(crate) quoted: bool,
}

impl Token {
    /// The word as text; options are always text.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.bytes).expect("a word of a fixture that is no name or content is UTF-8")
    }

    /// Splits `key=value` at the first `=`, if it is such a word.
    pub(crate) fn pair(&self) -> Option<(&str, &[u8])> {
        let at = self
            .bytes
            .iter()
            .position(|byte| *byte == b'=')
            .filter(|_| !self.quoted)?;
        Some((
            std::str::from_utf8(&self.bytes[..at]).ok()?,
            &self.bytes[at + 1..],
        ))
    }
}

/// Splits a line. `#` begins a comment where a word could begin. Escapes: `\n`, `\t`, `\0`, `\s` (a blank), `\xNN`;
/// any other character after a backslash stands for itself.
pub(crate) fn tokens(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = line.as_bytes();
    loop {
        rest = rest.trim_ascii_start();
        if rest.is_empty() || rest[0] == b'#' {
            return tokens;
        }
        let (token, after) = word(rest);
        tokens.push(token);
        rest = after;
    }
}

fn word(mut rest: &[u8]) -> (Token, &[u8]) {
    let quoted = rest[0] == b'"';
    let mut inside = false;
    let mut bytes = Vec::new();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'"' => inside = !inside,
            b'\\' => {
                let (&escaped, after) = rest
                    .split_first()
                    .expect("a backslash at the end of a fixture line");
                rest = after;
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'0' => 0,
                    b's' => b' ',
                    b'x' => {
                        let (digits, after) = rest.split_at(2);
                        rest = after;
                        unhex(digits)[0]
                    }
                    other => other,
                });
            }
            byte if byte.is_ascii_whitespace() && !inside => break,
            byte => bytes.push(byte),
        }
    }
    assert!(!inside, "an unfinished quote in a fixture line");
    (Token { bytes, quoted }, rest)
}

/// Bytes from hexadecimal digits.
pub(crate) fn unhex(digits: &[u8]) -> Vec<u8> {
    let text = std::str::from_utf8(digits).expect("hexadecimal digits");
    assert!(text.len().is_multiple_of(2), "half a byte in `{text}`");
    let pairs = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal digits"))
        .collect()
}
