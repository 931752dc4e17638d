//! Decides which keys and signatures the cluster-version operator and GnuPG can read.

use pgp::crypto::hash::HashAlgorithm;
use pgp::crypto::public_key::PublicKeyAlgorithm;
use pgp::packet::{SignatureConfig, SignatureVersion, SubpacketData};

use super::Rules;

/// NIST's P-256, P-384 and P-521: all that Go supports. gpg also supports curves that rPGP does not (Brainpool), or of which it
/// refuses every second signature (secp256k1, those with a large S).
const CURVES: [&[u8]; 3] = [
    &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
    &[0x2b, 0x81, 0x04, 0x00, 0x22],
    &[0x2b, 0x81, 0x04, 0x00, 0x23],
];

/// Whether this body of a key packet is read: version, time (4 bytes), algorithm, then numbers or a curve.
pub(super) fn check_key(body: &[u8], rules: Rules) -> Result<(), String> {
    let algorithm = body.get(5).copied().map(PublicKeyAlgorithm::from);
    let has_other_curve = || {
        let length = body.get(6).map_or(0, |&length| usize::from(length));
        body.get(7..7 + length)
            .is_none_or(|curve| !CURVES.contains(&curve))
    };
    let is_known = match algorithm.ok_or("a key is cut off")? {
        PublicKeyAlgorithm::ECDSA => !has_other_curve(),
        PublicKeyAlgorithm::ECDH if rules == Rules::Cvo => !has_other_curve(),
        PublicKeyAlgorithm::RSA
        | PublicKeyAlgorithm::RSAEncrypt
        | PublicKeyAlgorithm::RSASign
        | PublicKeyAlgorithm::ElgamalEncrypt
        | PublicKeyAlgorithm::DSA => true,
        _ => rules == Rules::GnuPg,
    };
    match is_known {
        true => Ok(()),
        false => Err(format!(
            "public key algorithm {} with its parameters is not supported",
            body[5]
        )),
    }
}

/// Whether this signature is read.
pub(super) fn check_signature(config: &SignatureConfig, rules: Rules) -> Result<(), String> {
    let is_known = match config.pub_alg {
        PublicKeyAlgorithm::RSA | PublicKeyAlgorithm::RSASign | PublicKeyAlgorithm::DSA => true,
        PublicKeyAlgorithm::ECDSA => rules == Rules::GnuPg || config.version() == SignatureVersion::V4,
        _ => rules == Rules::GnuPg,
    };
    if !is_known {
        return Err(format!(
            "public key algorithm {} in a signature",
            u8::from(config.pub_alg)
        ));
    }
    let is_known = match config.hash_alg {
        HashAlgorithm::Sha1
        | HashAlgorithm::Sha224
        | HashAlgorithm::Sha256
        | HashAlgorithm::Sha384
        | HashAlgorithm::Sha512 => true,
        HashAlgorithm::Ripemd160 => rules == Rules::GnuPg,
        // Two messages with the same MD5 can be made within seconds. Go still accepts it; no real signature has it.
        _ => false,
    };
    if !is_known {
        return Err(format!("the hash algorithm {}", config.hash_alg));
    }
    let mut all = config.hashed_subpackets().chain(config.unhashed_subpackets());
    let unknown = all.find(|subpacket| {
        let number = subpacket.typ().as_u8(false);
        subpacket.is_critical
            && match rules {
                Rules::Cvo => !matches!(number, 2 | 3 | 9 | 11 | 16 | 21 | 22 | 25 | 27 | 29 | 30 | 32),
                // gpg accepts only some critical notations of its own.
                Rules::GnuPg => {
                    matches!(subpacket.data, SubpacketData::Notation(_))
                        || !matches!(number, 2..=7 | 9 | 11 | 12 | 16 | 21 | 22 | 24..=30 | 32 | 33)
                }
            }
    });
    match unknown {
        Some(unknown) => Err(format!("the critical subpacket {}", unknown.typ().as_u8(false))),
        None => Ok(()),
    }
}
