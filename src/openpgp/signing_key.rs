//! Describes a key of a keyring that can have made a signature, and whether it may.

use std::fmt;

use jiff::Timestamp;
use pgp::packet::{PublicKey, UserId};
use pgp::types::KeyDetails as _;

/// Enough of a user id for a message; some have kilobytes.
const MAX_NAME: usize = 100;

/// The key that signed a message. Displayed as its id and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// The id of the key or subkey that signed, as the signature has it.
    pub key_id: u64,
    /// The fingerprint of the primary key, 40 upper-case hexadecimal digits.
    pub fingerprint: String,
    /// A user id, such as `Red Hat, Inc. (release key 2) <security@redhat.com>`, without control characters; may be empty.
    pub user_id: String,
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.key_id)?;
        if !self.user_id.is_empty() {
            write!(f, " of `{}`", self.user_id)?;
        }
        Ok(())
    }
}

/// Why a key must not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unusable {
    Revoked,
    NotForSigning,
    /// Only by the rules of GnuPG.
    NotCrossCertified,
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Revoked => "is revoked",
            Self::NotForSigning => "is not meant for signing data",
            Self::NotCrossCertified => "is a subkey that does not confirm its primary key",
        })
    }
}

/// A primary key or a subkey, after its self-signatures were verified.
#[derive(Debug, Clone)]
pub(super) struct SigningKey {
    pub(super) packet: PublicKey,
    pub(super) signer: Signer,
    pub(super) unusable: Option<Unusable>,
    /// Seconds since 1970; none if it never expires or if the rules do not ask.
    pub(super) expires: Option<i64>,
}

impl SigningKey {
    pub(super) fn new(packet: &PublicKey, primary: &PublicKey, user_id: Option<&UserId>) -> Self {
        let signer = Signer {
            key_id: key_id(packet),
            fingerprint: format!("{:X}", primary.fingerprint()),
            user_id: user_id.map(printable).unwrap_or_default(),
        };
        Self {
            packet: packet.clone(),
            signer,
            unusable: None,
            expires: None,
        }
    }

    /// Why the key must not be used now; none if it may.
    pub(super) fn objection(&self, now: Timestamp) -> Option<String> {
        if let Some(unusable) = self.unusable {
            return Some(unusable.to_string());
        }
        let expires = self.expires.filter(|&expires| expires <= now.as_second())?;
        Some(match Timestamp::from_second(expires) {
            Ok(expires) => format!("expired at {expires}"),
            Err(_) => "is expired".into(),
        })
    }
}

/// The key id of a version 4 key: the last 8 bytes of its fingerprint.
pub(super) fn key_id(key: &PublicKey) -> u64 {
    let id = key.legacy_key_id();
    id.as_ref().iter().fold(0, |id, &byte| id << 8 | u64::from(byte))
}

fn printable(user_id: &UserId) -> String {
    String::from_utf8_lossy(user_id.id())
        .chars()
        .filter(|letter| !letter.is_control())
        .take(MAX_NAME)
        .collect()
}
