//! Answers that are no success.

use std::time::{Duration, SystemTime};

use reqwest::Response;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::cancel::Cancel;

use super::credentials::Credential;
use super::error::{Message, RegistryError};
use super::http_client;
use super::watchdog::Watch;

/// How much of an error's body is read.
const MAX_ERROR_BODY: u64 = 64 << 10;

/// Makes an error of an answer: with what the registry says, when it wants to be asked again, and if it
/// `is_refused`, which credential it was that it refused.
pub(super) async fn failure(
    response: Response,
    is_refused: bool,
    credential: Option<&Credential>,
    what: &str,
    watch: &Watch,
    cancel: &Cancel,
) -> RegistryError {
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers(), SystemTime::now());
    let what = http_client::asked(what, &response);
    let message = match http_client::body(response, MAX_ERROR_BODY, &what, watch, cancel).await {
        Ok(body) => Message::of_body(&body),
        Err(RegistryError::Stopped(stopped)) => return stopped.into(),
        // The status says enough.
        Err(_) => Message::default(),
    };
    if is_refused {
        return RegistryError::Unauthorized {
            what,
            status,
            credential: credential.map(|credential| credential.origin.clone()),
            message,
        };
    }
    RegistryError::Status {
        what,
        status,
        message,
        retry_after,
        redirected: false,
    }
}

/// `Retry-After`, in seconds or as a date. A date is one of the registry's clock, which `Date` tells; ours is `now`, and
/// may be anything on a node that just started.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
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
            // Later than jiff knows times.
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
        // An hour later by our clock.
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
