//! Turns an HTTP error response into a [`RegistryError`], with the registry's message and its `Retry-After`.

use std::time::SystemTime;

use reqwest::Response;

use crate::cancel::Cancel;
use crate::http::retry_after;

use super::error::{Message, RegistryError};
use super::http_client;
use super::login::Credential;
use super::response_monitor::Watchdog;

/// How much of an error's body is read.
const MAX_ERROR_BODY: u64 = 64 << 10;

/// The error for a status that is not a success.
pub(super) async fn error_response(
    response: Response,
    what: &str,
    watchdog: &Watchdog,
    cancel: &Cancel,
) -> RegistryError {
    let status = response.status().as_u16();
    let retry_after = retry_after(response.headers(), SystemTime::now());
    match read(response, what, watchdog, cancel).await {
        Ok((what, message)) => RegistryError::Status {
            what,
            status,
            message,
            retry_after,
            redirected: false,
        },
        Err(stopped) => stopped,
    }
}

/// The error for a login that is refused: the one with this credential, or one without any.
pub(super) async fn login_refused(
    response: Response,
    credential: Option<&Credential>,
    what: &str,
    watchdog: &Watchdog,
    cancel: &Cancel,
) -> RegistryError {
    let status = response.status().as_u16();
    match read(response, what, watchdog, cancel).await {
        Ok((what, message)) => RegistryError::Unauthorized {
            what,
            status,
            credential: credential.map(|credential| credential.origin.clone()),
            message,
        },
        Err(stopped) => stopped,
    }
}

/// What was requested, and the message in the body. The error is that the run stops: the status matters even if the body
/// cannot be read.
async fn read(
    response: Response,
    what: &str,
    watchdog: &Watchdog,
    cancel: &Cancel,
) -> Result<(String, Message), RegistryError> {
    let what = http_client::describe(what, &response);
    match http_client::body(response, MAX_ERROR_BODY, &what, watchdog, cancel).await {
        Ok(body) => Ok((what, Message::of_body(&body))),
        Err(stopped @ RegistryError::Stopped(_)) => Err(stopped),
        Err(_) => Ok((what, Message::default())),
    }
}
