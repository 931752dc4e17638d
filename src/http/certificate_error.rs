//! Describes in plain words why a TLS certificate was refused.
//!
//! The texts of rustls are made for programmers: `invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))`. These use
//! the words of Go's `crypto/x509`, which podman, CRI-O and `oc` print.

use jiff::Timestamp;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;

/// What is wrong with the certificate, as the end of a sentence.
pub(super) fn describe(error: &CertificateError) -> String {
    use CertificateError as E;
    match error {
        E::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
        _ if is_self_signed(error) => "self-signed certificate that is not trusted".to_owned(),
        E::Expired => "certificate has expired".to_owned(),
        E::ExpiredContext { not_after, .. } => format!("certificate has expired on {}", date(*not_after)),
        E::NotValidYet => "certificate is not yet valid".to_owned(),
        E::NotValidYetContext { not_before, .. } => {
            format!("certificate is not valid before {}", date(*not_before))
        }
        E::NotValidForName => "certificate is not valid for this host".to_owned(),
        E::NotValidForNameContext { expected, presented } => {
            let names = presented.iter().map(|name| format!("`{}`", bare(name)));
            let names = names.collect::<Vec<_>>().join(", ");
            let only = match names.as_str() {
                "" => "it names no host as a subject alternative name".to_owned(),
                names => format!("only for {names}"),
            };
            format!("certificate is not valid for `{}`, {only}", expected.to_str())
        }
        E::Revoked => "certificate is revoked".to_owned(),
        other => format!("invalid certificate: {other}"),
    }
}

/// Whether the server presents a certificate of an authority as its own, as `openssl req -x509` makes them. webpki has no
/// name for that beyond "an authority used as an end entity".
pub fn is_self_signed(error: &CertificateError) -> bool {
    let CertificateError::Other(other) = error else {
        return false;
    };
    matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// `2021-01-01`
fn date(time: UnixTime) -> String {
    let timestamp = i64::try_from(time.as_secs()).map(Timestamp::from_second);
    match timestamp {
        Ok(Ok(timestamp)) => timestamp.strftime("%Y-%m-%d").to_string(),
        _ => "a date out of range".to_owned(),
    }
}

/// The name in `DnsName("other.example")`, which is how webpki lists those of a certificate.
fn bare(name: &str) -> &str {
    let inside = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inside.unwrap_or(name).trim_matches('"')
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use rustls::OtherError;
    use rustls::pki_types::ServerName;

    use super::*;

    #[test]
    fn each_reason_has_plain_words() {
        let day = |days: u64| UnixTime::since_unix_epoch(Duration::from_secs(days * 86_400));
        let self_signed = OtherError(Arc::new(webpki::Error::CaUsedAsEndEntity));
        for (error, expected) in [
            (
                CertificateError::UnknownIssuer,
                "certificate signed by unknown authority",
            ),
            (
                CertificateError::Other(self_signed),
                "self-signed certificate that is not trusted",
            ),
            (
                CertificateError::ExpiredContext {
                    time: day(20_000),
                    not_after: day(18_628),
                },
                "certificate has expired on 2021-01-01",
            ),
            (
                CertificateError::NotValidYetContext {
                    time: day(0),
                    not_before: day(18_628),
                },
                "certificate is not valid before 2021-01-01",
            ),
            (
                CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("registry.example").expect("a name"),
                    presented: vec!["DnsName(\"other.example\")".to_owned()],
                },
                "certificate is not valid for `registry.example`, only for `other.example`",
            ),
            (
                CertificateError::BadSignature,
                "invalid certificate: BadSignature",
            ),
        ] {
            assert_eq!(describe(&error), expected);
        }
    }
}
