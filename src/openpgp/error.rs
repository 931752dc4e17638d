//! Explains why a keyring cannot be used and why a message is not accepted.

use super::packets::PacketError;
use super::signing_key::Signer;

/// Why a keyring cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// The file is larger than any real keyring.
    #[error("the keyring has {size} bytes, more than {limit}")]
    TooLarge {
        /// The size of the file.
        size: usize,
        /// The largest size that is read.
        limit: usize,
    },
    /// Reading all keys would take too long.
    #[error("the keyring has more than {limit} keys")]
    TooManyKeys {
        /// How many are read.
        limit: usize,
    },
    /// Verifying all self-signatures would take too long.
    #[error("the keyring has more than {limit} self-signatures")]
    TooManySignatures {
        /// How many are verified.
        limit: usize,
    },
    /// The armor is damaged.
    #[error("the ASCII armor is damaged: {0}")]
    Armor(String),
    /// The packets are damaged.
    #[error("the keyring is damaged: {0}")]
    Packets(#[from] PacketError),
    /// The keyring has no key, or only keys that cannot be used.
    #[error("the keyring has no usable OpenPGP public key{}", because(.0))]
    NoKey(Option<String>),
}

fn because(reason: &Option<String>) -> String {
    reason
        .as_ref()
        .map(|reason| format!(": {reason}"))
        .unwrap_or_default()
}

/// Why a message is not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The bytes are no binary OpenPGP message.
    #[error("not a binary OpenPGP message: it {0}")]
    NotOpenPgp(String),
    /// The packets are damaged, too many or too large.
    #[error("the message is damaged: {0}")]
    Packets(#[from] PacketError),
    /// The message is encrypted.
    #[error("the message is encrypted")]
    Encrypted,
    /// There is a body, but no signature that comes with it.
    #[error("the message is not signed")]
    Unsigned,
    /// There is a signature, but no body that comes with it.
    #[error("the message has no body; detached signatures are not accepted")]
    NoBody,
    /// Several keys signed the message.
    #[error("the message has several or nested signatures; only one is accepted")]
    SeveralSignatures,
    /// The packets are not those of a signed message.
    #[error("the message has a packet of type {0} where a signed message has none")]
    UnexpectedPacket(u8),
    /// An algorithm, a version or a kind of signature that the rules do not know.
    #[error("{0} is not supported")]
    Unsupported(String),
    /// The keyring has no key with this id.
    #[error("signed with key {0:016X}, which is not in the keyring")]
    UnknownKey(u64),
    /// The key is in the keyring, but may not sign.
    #[error("signed with key {key}, which {why}")]
    UnusableKey {
        /// The key.
        key: Box<Signer>,
        /// Such as `is revoked`.
        why: String,
    },
    /// The signature does not match.
    #[error("the signature with key {0} does not match the message: one of the two was changed")]
    Mismatch(Box<Signer>),
    /// The signature has expired.
    #[error("the signature expired at {0}")]
    Expired(jiff::Timestamp),
}
