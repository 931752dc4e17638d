//! Checks that Go's `time.Time` can decode a JSON string: RFC 3339, more strictly than jiff reads it.

use jiff::Timestamp;

/// Whether `json` is such a string. The shape is checked here, the calendar by jiff.
pub(crate) fn is_time(json: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00:00:00";
    let alike = |(byte, shape): (&u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        shape => byte == shape,
    };
    let Some(text) = json.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else {
        return false;
    };
    let Some((whole, rest)) = text.as_bytes().split_at_checked(SHAPE.len()) else {
        return false;
    };
    let fraction = match rest {
        [b'.', digits @ ..] => 1 + digits.iter().take_while(|byte| byte.is_ascii_digit()).count(),
        _ => 0,
    };
    let zone = match &rest[fraction..] {
        b"Z" => true,
        [b'+' | b'-', zone @ ..] => {
            zone.len() == 5
                && zone.iter().zip(b"00:00").all(alike)
                && zone < &b"24"[..]
                && zone[3..] < b"60"[..]
        }
        _ => false,
    };
    // Go truncates a fraction that is too long, and has no leap seconds.
    let is_in_calendar =
        || std::str::from_utf8(whole).is_ok_and(|whole| format!("{whole}Z").parse::<Timestamp>().is_ok());
    fraction != 1 && zone && whole.iter().zip(SHAPE).all(alike) && !whole.ends_with(b"60") && is_in_calendar()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_that_go_decodes_are_accepted() {
        for time in [
            "2024-06-19T19:22:45Z",
            "2024-06-19T19:22:45.123456789Z",
            "2024-06-19T19:22:45.1234567890123Z",
            "0001-01-01T00:00:00Z",
            "2024-02-29T23:59:59-23:59",
        ] {
            assert!(is_time(&format!("\"{time}\"")), "{time}");
        }
        for time in [
            "",
            "2024-06-19",
            "2024-06-19 19:22:45Z",
            "2024-06-19T19:22:45",
            "2024-06-19T19:22:45z",
            "2024-06-19T19:22:45,5Z",
            "2024-06-19T19:22:45.Z",
            "2024-06-19T19:22:45+02",
            "2024-06-19T19:22:45+24:00",
            "2024-06-19T19:22:45+02:60",
            "2024-06-19T19:22:60Z",
            "2023-02-29T00:00:00Z",
            "2024-06-19T24:00:00Z",
            "2024-06-19T19:22:45Z[UTC]",
            "-00044-03-15T12:00:00Z",
            r"\u0032024-06-19T19:22:45Z",
        ] {
            assert!(!is_time(&format!("\"{time}\"")), "{time}");
        }
    }
}
