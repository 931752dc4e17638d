//! Verifies a signed message: the packets in their order, the key, the signature, the times.

use jiff::Timestamp;
use pgp::packet::{
    LiteralDataHeader, OnePassSignature, OpsVersionSpecific, Signature, SignatureType, SubpacketData,
};
use pgp::types::{KeyDetails as _, Tag};

use super::Rules;
use super::certificate::{same_algorithm, signature};
use super::error::SignatureError;
use super::keyring::Keyring;
use super::packets::{Limits, Packet, Packets, brief};
use super::signing_key::{Signer, SigningKey};

/// How far a message is inflated. A real one has less than 1 KiB and four packets.
const LIMITS: Limits = Limits {
    bytes: 1 << 20,
    packets: 100,
};

/// A message whose signature is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedMessage {
    /// What was signed.
    pub body: Vec<u8>,
    /// Who signed it.
    pub signer: Signer,
}

/// Verifies that a key of `keyring` signed `message`, by the rules of the keyring; `now` decides what is expired.
pub fn verify(message: &[u8], keyring: &Keyring, now: Timestamp) -> Result<SignedMessage, SignatureError> {
    if message.first().is_none_or(|first| first & 0x80 == 0) {
        return Err(SignatureError::NotOpenPgp(beginning(message)));
    }
    let mut packets = Packets::new(message, LIMITS);
    let one_pass = one_pass_signature(&mut packets)?;
    let OpsVersionSpecific::V3 { key_id } = one_pass.version_specific() else {
        return Err(SignatureError::Unsupported(
            "the version of the one-pass signature".into(),
        ));
    };
    let body = body(&mut packets)?;
    let key_id = key_id
        .as_ref()
        .iter()
        .fold(0, |id, &byte| id << 8 | u64::from(byte));
    let (key, objection) = choose(keyring, key_id, now)?;
    let signature = final_signature(&mut packets, keyring.rules)?;
    if let Some(why) = objection {
        let key = Box::new(key.signer.clone());
        return Err(SignatureError::UnusableKey { key, why });
    }
    check(&signature, &one_pass, key, &body)?;
    check_times(&signature, key, keyring.rules, now)?;
    Ok(SignedMessage {
        body,
        signer: key.signer.clone(),
    })
}

/// The first bytes of something that is not a message, such as the `<html>` of an error page.
fn beginning(message: &[u8]) -> String {
    match message {
        [] => "is empty".into(),
        _ => format!(
            "begins with `{}`",
            message[..message.len().min(20)].escape_ascii()
        ),
    }
}

/// The next packet that both programs evaluate.
fn next(packets: &mut Packets<'_>) -> Result<Option<Packet>, SignatureError> {
    while let Some(packet) = packets.next()? {
        match packet.tag {
            Tag::Marker
            | Tag::Trust
            | Tag::Padding
            | Tag::UnassignedNonCritical(_)
            | Tag::Experimental(_) => {}
            Tag::PublicKeyEncryptedSessionKey
            | Tag::SymKeyEncryptedSessionKey
            | Tag::SymEncryptedData
            | Tag::SymEncryptedProtectedData
            | Tag::GnupgAeadData => return Err(SignatureError::Encrypted),
            _ => return Ok(Some(packet)),
        }
    }
    Ok(None)
}

fn one_pass_signature(packets: &mut Packets<'_>) -> Result<OnePassSignature, SignatureError> {
    let packet = next(packets)?.ok_or(SignatureError::NoBody)?;
    match packet.tag {
        Tag::OnePassSignature => {}
        Tag::LiteralData => return Err(SignatureError::Unsigned),
        Tag::Signature => return Err(SignatureError::NoBody),
        other => return Err(SignatureError::UnexpectedPacket(other.into())),
    }
    let unreadable = |error: pgp::errors::Error| {
        SignatureError::Unsupported(format!("the one-pass signature ({})", brief(error)))
    };
    let one_pass =
        OnePassSignature::try_from_reader(packet.header(), &packet.body[..]).map_err(unreadable)?;
    if one_pass.is_nested() {
        return Err(SignatureError::SeveralSignatures);
    }
    match one_pass.typ() {
        SignatureType::Binary | SignatureType::Text => Ok(one_pass),
        other => Err(SignatureError::Unsupported(format!(
            "a signature of type {}",
            u8::from(other)
        ))),
    }
}

fn body(packets: &mut Packets<'_>) -> Result<Vec<u8>, SignatureError> {
    let packet = next(packets)?.ok_or(SignatureError::NoBody)?;
    match packet.tag {
        Tag::LiteralData => {}
        Tag::OnePassSignature => return Err(SignatureError::SeveralSignatures),
        Tag::Signature => return Err(SignatureError::NoBody),
        other => return Err(SignatureError::UnexpectedPacket(other.into())),
    }
    let mut rest = &packet.body[..];
    LiteralDataHeader::try_from_reader(&mut rest)
        .map_err(|error| SignatureError::Unsupported(format!("the header of the body ({})", brief(error))))?;
    Ok(rest.to_vec())
}

/// The key with this id; the first one that may be used now, else the first one with the reason against it.
fn choose(
    keyring: &Keyring,
    key_id: u64,
    now: Timestamp,
) -> Result<(&SigningKey, Option<String>), SignatureError> {
    let mut refused = None;
    for key in keyring.find(key_id) {
        match key.objection(now) {
            None => return Ok((key, None)),
            objection => _ = refused.get_or_insert((key, objection)),
        }
    }
    refused.ok_or(SignatureError::UnknownKey(key_id))
}

fn final_signature(packets: &mut Packets<'_>, rules: Rules) -> Result<Signature, SignatureError> {
    let packet = next(packets)?.ok_or(SignatureError::Unsigned)?;
    if packet.tag != Tag::Signature {
        return Err(SignatureError::UnexpectedPacket(packet.tag.into()));
    }
    let signature = signature(&packet, rules).map_err(SignatureError::Unsupported)?;
    // Go ignores what follows; gpg reads it, and finds several messages or signatures.
    if rules == Rules::GnuPg
        && let Some(further) = next(packets)?
    {
        return Err(match further.tag {
            Tag::Signature | Tag::OnePassSignature => SignatureError::SeveralSignatures,
            other => SignatureError::UnexpectedPacket(other.into()),
        });
    }
    Ok(signature)
}

fn check(
    signature: &Signature,
    one_pass: &OnePassSignature,
    key: &SigningKey,
    body: &[u8],
) -> Result<(), SignatureError> {
    let announced =
        signature.typ() == Some(one_pass.typ()) && signature.hash_alg() == Some(one_pass.hash_algorithm());
    if announced && same_algorithm(signature, &key.packet) && signature.verify(&key.packet, body).is_ok() {
        Ok(())
    } else {
        Err(SignatureError::Mismatch(Box::new(key.signer.clone())))
    }
}

fn check_times(
    signature: &Signature,
    key: &SigningKey,
    rules: Rules,
    now: Timestamp,
) -> Result<(), SignatureError> {
    let created = i64::from(signature.created().map_or(0, |time| time.as_secs()));
    if rules == Rules::GnuPg && created < i64::from(key.packet.created_at().as_secs()) {
        let key = Box::new(key.signer.clone());
        let why = "is younger than the signature".into();
        return Err(SignatureError::UnusableKey { key, why });
    }
    let hashed = signature
        .config()
        .into_iter()
        .flat_map(|config| config.hashed_subpackets());
    let lifetimes = hashed.filter_map(|subpacket| match subpacket.data {
        SubpacketData::SignatureExpirationTime(lifetime) => Some(i64::from(lifetime.as_secs())),
        _ => None,
    });
    // Version 3 has no lifetime. Go takes the last one, and 0 seconds as they are; for gpg 0 means forever.
    let end = match rules {
        Rules::Cvo => lifetimes.last().map(|lifetime| created + lifetime),
        Rules::GnuPg => lifetimes
            .filter(|&lifetime| lifetime != 0)
            .min()
            .map(|lifetime| created + lifetime),
    };
    let is_over = |end: &i64| match rules {
        Rules::Cvo => *end < now.as_second(),
        Rules::GnuPg => *end <= now.as_second(),
    };
    match end.filter(is_over) {
        Some(end) => Err(SignatureError::Expired(
            Timestamp::from_second(end).unwrap_or(now),
        )),
        None => Ok(()),
    }
}
