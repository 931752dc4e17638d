//! Parses `Retry-After`: how long a server asks its clients to wait.

use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// `Retry-After` (RFC 9110, 10.2.3) as a number of seconds or as a date. A date is read against the server's own clock, which
/// `Date` states: ours is `now`, and may be anything on a node that has just started.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let date = |text| {
        let date = jiff::fmt::rfc2822::parse(text).ok()?;
        Some(SystemTime::from(date.timestamp()))
    };
    let until = text(RETRY_AFTER)?;
    if let Ok(seconds) = until.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let now = text(DATE).and_then(date).unwrap_or(now);
    date(until)?.duration_since(now).ok()
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn retry_after_is_a_number_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_420);
        for (text, seconds) in [
            ("120", Some(120)),
            ("Wed, 21 Oct 2015 07:28:00 GMT", Some(60)),
            ("Wed, 21 Oct 2015 07:26:00 GMT", None),
            ("Tue, 31 Dec 2999 23:59:59 GMT", Some(31_058_267_579)),
            // Beyond the range of jiff's timestamps.
            ("Fri, 31 Dec 9999 23:59:59 GMT", None),
            ("Sat, 32 Oct 2015 07:26:00 GMT", None),
            ("soon", None),
            ("-5", None),
            ("1e9", None),
            ("18446744073709551615", Some(u64::MAX)),
            ("99999999999999999999", None),
            ("", None),
        ] {
            let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(text))]);
            assert_eq!(
                retry_after(&headers, now),
                seconds.map(Duration::from_secs),
                "{text}"
            );
        }
        // Our clock is an hour ahead of the server's.
        let headers = HeaderMap::from_iter([
            (
                RETRY_AFTER,
                HeaderValue::from_static("Wed, 21 Oct 2015 07:28:00 GMT"),
            ),
            (DATE, HeaderValue::from_static("Wed, 21 Oct 2015 07:27:30 GMT")),
        ]);
        let hour = Duration::from_secs(3600);
        assert_eq!(retry_after(&headers, now + hour), Some(Duration::from_secs(30)));
    }
}
