//! Parses OpenPGP keyrings and verifies signed messages, by the rules of the cluster-version operator or of GnuPG.
//!
//! The signature of a release and a simple signature of an image have the same form: an OpenPGP message whose body is JSON.
//! Two programs decide whether they accept it, and they do not agree:
//!
//! | question | [`Rules::Cvo`] | [`Rules::GnuPg`] |
//! |---|---|---|
//! | program | the cluster-version operator, for releases | CRI-O, for `signedBy` in policy.json |
//! | its implementation | golang.org/x/crypto/openpgp, frozen | gpg, through gpgme |
//! | expired key | accepted | refused |
//! | revoked key or subkey | refused | refused |
//! | expired signature | refused | refused |
//! | Ed25519 | refused | accepted |
//! | unsupported part of a key | refuses the whole key | ignores the part |
//! | armored file with several blocks | the first block | all blocks |
//! | MD5 | refused here, although Go accepts it | refused |
//! | secp256k1, Brainpool | refused | refused here, although gpg accepts them |
//!
//! ```text
//! keyring file ─armor→ packets ─certificate→ Certificate* ─cvo or gnupg→ SigningKey*      Keyring::parse
//!
//!    compressed data ─→ one-pass signature ─ literal data ─ signature                     verify
//!    (or none)          names the key        the body       over the body
//! ```
//!
//! rPGP parses the packets' contents and does the cryptography. The rules are here: which packets in which order, which key may
//! sign, and how large, how many and how deep everything may be. There is no I/O and no clock.
//!
//! Sources: <https://github.com/golang/crypto/tree/master/openpgp> (`read.go`, `keys.go`, `packet/`),
//! <https://github.com/openshift/library-go/blob/master/pkg/verify/verify.go>,
//! <https://github.com/containers/image/blob/main/signature/mechanism_gpgme.go>, gpg's `g10/getkey.c` and `g10/sig-check.c`,
//! [RFC 9580](https://www.rfc-editor.org/rfc/rfc9580.html).

mod armor;
mod certificate;
mod cvo;
mod error;
mod formats;
mod gnupg;
mod keyring;
mod message;
mod packets;
mod signing_key;
#[cfg(test)]
mod tests;

pub use error::{KeyringError, SignatureError};
pub use keyring::Keyring;
pub use message::{SignedMessage, verify};
pub use signing_key::Signer;

/// Whose verdict on keys and messages applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// That of the cluster-version operator, for the signature of a release.
    Cvo,
    /// That of GnuPG, which CRI-O and podman ask for the requirement `signedBy`.
    GnuPg,
}
