//! Parses `Content-Range`, which states the range of a blob that a partial answer has (RFC 9110, 14.4).

/// `bytes 0-9/20`, `bytes 0-9/*`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContentRange {
    /// Offset of the first byte.
    pub(super) first: u64,
    /// Offset of the last byte, which is part of the range.
    pub(super) last: u64,
    /// Length of the whole blob, if it is stated.
    pub(super) total: Option<u64>,
}

impl ContentRange {
    /// Nothing if it is not a satisfied range of bytes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.trim().split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        let total = match total {
            "*" => None,
            digits => Some(digits.parse().ok()?),
        };
        (unit.eq_ignore_ascii_case("bytes") && first <= last).then_some(Self { first, last, total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_range_is_parsed_strictly() {
        let range = |first, last, total| Some(ContentRange { first, last, total });
        for (text, expected) in [
            ("bytes 5-9/10", range(5, 9, Some(10))),
            ("Bytes 0-0/*", range(0, 0, None)),
            ("bytes 9-5/10", None),
            ("bytes */10", None),
            ("bytes 5-9", None),
            ("items 5-9/10", None),
            ("bytes 5-99999999999999999999/10", None),
            ("", None),
        ] {
            assert_eq!(ContentRange::parse(text), expected, "{text}");
        }
    }
}
