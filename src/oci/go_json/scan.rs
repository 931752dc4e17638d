//! Refuses JSON that Go's scanner refuses but serde_json accepts in skipped values.
//!
//! These are deep nesting, control characters in strings, and numbers beyond `float64`, into which Go decodes the numbers of
//! an `any`.

use serde::de::Error as _;

/// `maxNestingDepth` of `encoding/json`.
const MAX_DEPTH: usize = 10_000;

pub(super) fn check(json: &[u8]) -> Result<(), serde_json::Error> {
    let refuse = |why: &str| Err(serde_json::Error::custom(why));
    let mut depth = 0_usize;
    let mut rest = json;
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'[' | b'{' if depth == MAX_DEPTH => {
                return refuse("it is nested deeper than 10000, which Go cannot read");
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => loop {
                match rest {
                    [b'\\', _, after @ ..] => rest = after,
                    [b'"', after @ ..] => {
                        rest = after;
                        break;
                    }
                    [0..0x20, ..] => return refuse("a string contains a control character"),
                    [_, after @ ..] => rest = after,
                    [] => return refuse("a string has no end"),
                }
            },
            b'0'..=b'9' => {
                let is_part = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
                let (number, after) = rest.split_at(rest.iter().take_while(is_part).count());
                let number = [&[*first], number].concat();
                let value = std::str::from_utf8(&number)
                    .ok()
                    .and_then(|text| text.parse::<f64>().ok());
                if value.is_some_and(f64::is_infinite) {
                    return refuse("a number is too large");
                }
                rest = after;
            }
            _ => {}
        }
    }
    Ok(())
}
