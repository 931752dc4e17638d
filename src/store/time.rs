//! Times as Go's `time.RFC3339Nano` writes them: no trailing zeros in the fraction, `Z` for no offset.

use jiff::Timestamp;

/// This moment.
pub(super) fn now() -> String {
    Timestamp::now().to_string()
}

/// A config's `created` as Go would write it again; `None` if it is no time, or the year 1, which Go takes
/// for none.
pub(super) fn rewrite(created: &str) -> Option<String> {
    created.parse::<Timestamp>().ok()?;
    let (whole, rest) = created.split_at_checked("0000-00-00T00:00:00".len())?;
    let zone = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone);
    let zone = if matches!(zone, "+00:00" | "-00:00") {
        "Z"
    } else {
        zone
    };
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let text = format!("{whole}{fraction}{zone}");
    (text != "0001-01-01T00:00:00Z").then_some(text)
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
                Some("2024-06-19T19:22:45.123456789+02:00"),
            ),
            ("2024-06-19T19:22:45+00:00", Some("2024-06-19T19:22:45Z")),
            ("1970-01-01T00:00:00Z", Some("1970-01-01T00:00:00Z")),
            ("0001-01-01T00:00:00Z", None),
            ("yesterday", None),
            ("", None),
        ] {
            assert_eq!(rewrite(created).as_deref(), expected, "{created}");
        }
        let trimmed = Timestamp::from_nanosecond(1_700_000_000_120_000_000).map(|time| time.to_string());
        assert_eq!(trimmed.ok().as_deref(), Some("2023-11-14T22:13:20.12Z"));
    }
}
