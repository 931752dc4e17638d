//! Formats and checks times as Go's `time.RFC3339Nano` does: no trailing zeros in the fraction, `Z` for UTC.

use jiff::Timestamp;

/// The current time.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}

/// A config's `created` in UTC; `None` if it is not a time, or one that Go cannot parse or treats as unset. The text
/// is normalised: a time that Go does not parse makes images.json unreadable for every program.
pub(super) fn rewrite(created: &str) -> Option<String> {
    let time: Timestamp = created.parse().ok()?;
    Some(time.to_string()).filter(|text| !text.starts_with('-') && text != "0001-01-01T00:00:00Z")
}

/// Whether a record's `created` is a time. If it is not, Go rejects the whole file.
pub(super) fn is_time(created: &str) -> bool {
    created.as_bytes().get(10) == Some(&b'T') && created.parse::<Timestamp>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_does() {
        for (created, expected) in [
            ("2024-06-19T19:22:45.120000000Z", Some("2024-06-19T19:22:45.12Z")),
            ("2024-06-19T19:22:45.000Z", Some("2024-06-19T19:22:45Z")),
            ("2024-06-19T19:22:45Z", Some("2024-06-19T19:22:45Z")),
            (
                "2024-06-19T19:22:45.123456789+02:00",
                Some("2024-06-19T17:22:45.123456789Z"),
            ),
            // jiff accepts more forms than Go.
            ("2024-06-19 19:22:45Z", Some("2024-06-19T19:22:45Z")),
            ("2024-06-19T19:22Z", Some("2024-06-19T19:22:00Z")),
            ("2024-06-19T19:22:45,5Z", Some("2024-06-19T19:22:45.5Z")),
            ("2024-06-19T19:22:45+02", Some("2024-06-19T17:22:45Z")),
            ("2024-06-19T19:22:60Z", Some("2024-06-19T19:22:59Z")),
            ("2024-06-19T19:22:45Z[UTC]", Some("2024-06-19T19:22:45Z")),
            ("-000044-03-15T12:00:00Z", None),
            ("0001-01-01T01:00:00+01:00", None),
            ("2024-06-19T19:22:45+00:00", Some("2024-06-19T19:22:45Z")),
            ("1970-01-01T00:00:00Z", Some("1970-01-01T00:00:00Z")),
            ("0001-01-01T00:00:00Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(rewrite(created).as_deref(), expected, "{created}");
        }
        for (text, expected) in [
            ("0001-01-01T00:00:00Z", true),
            ("2024-06-19 19:22:45Z", false),
            ("", false),
        ] {
            assert_eq!(is_time(text), expected, "{text}");
        }
        let trimmed = Timestamp::from_nanosecond(1_700_000_000_120_000_000).map(|time| time.to_string());
        assert_eq!(trimmed.ok().as_deref(), Some("2023-11-14T22:13:20.12Z"));
    }
}
