//! Tells which keys and signatures golang.org/x/crypto/openpgp can read.

use pgp::crypto::hash::HashAlgorithm;
use pgp::crypto::public_key::PublicKeyAlgorithm;
use pgp::packet::{SignatureConfig, SignatureVersion};

/// The subpackets that Go knows; any other that is critical makes it refuse the signature.
const SUBPACKETS: [u8; 12] = [2, 3, 9, 11, 16, 21, 22, 25, 27, 29, 30, 32];

/// NIST's P-256, P-384 and P-521.
const CURVES: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
    &[0x2b, 0x81, 0x04, 0x00, 0x23],
];

/// Whether Go reads this body of a key packet: version, time (4 bytes), algorithm, then numbers or a curve.
pub(super) fn check_key(body: &[u8]) -> Result<(), String> {
    let algorithm = *body.get(5).ok_or("a key is cut off")?;
    match algorithm {
        // RSA, Elgamal, DSA.
        1..=3 | 16 | 17 => Ok(()),
        // ECDH, ECDSA.
        18 | 19 => {
            let length = usize::from(*body.get(6).ok_or("a key is cut off")?);
            let curve = body.get(7..7 + length).ok_or("a key is cut off")?;
            match CURVES.contains(&curve) {
                true => Ok(()),
                false => Err("a key has an elliptic curve that is not supported".into()),
            }
        }
        _ => Err(format!("public key algorithm {algorithm} is not supported")),
    }
}

/// Whether Go reads this signature.
pub(super) fn check_signature(config: &SignatureConfig) -> Result<(), String> {
    match config.pub_alg {
        PublicKeyAlgorithm::RSA | PublicKeyAlgorithm::RSASign | PublicKeyAlgorithm::DSA => {}
        PublicKeyAlgorithm::ECDSA if config.version() == SignatureVersion::V4 => {}
        other => return Err(format!("public key algorithm {} in a signature", u8::from(other))),
    }
    match config.hash_alg {
        HashAlgorithm::Sha1
        | HashAlgorithm::Sha224
        | HashAlgorithm::Sha256
        | HashAlgorithm::Sha384
        | HashAlgorithm::Sha512 => {}
        other => return Err(format!("the hash algorithm {other}")),
    }
    let mut all = config.hashed_subpackets().chain(config.unhashed_subpackets());
    match all.find(|one| one.is_critical && !SUBPACKETS.contains(&one.typ().as_u8(false))) {
        Some(unknown) => Err(format!("the critical subpacket {}", unknown.typ().as_u8(false))),
        None => Ok(()),
    }
}
