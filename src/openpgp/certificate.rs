//! Groups the packets of a keyring into certificates: a primary key with its user ids, subkeys and their signatures.

use pgp::crypto::public_key::PublicKeyAlgorithm;
use pgp::packet::{PacketHeader, PublicKey, Signature, SubpacketData, UserId};
use pgp::types::{KeyDetails as _, KeyId, Tag};

use super::Rules;
use super::error::KeyringError;
use super::formats;
use super::packets::{Limits, Packet, Packets, brief};

/// Keys and subkeys of one keyring. Parsing a DSA key checks its parameters, which takes as long as verifying a
/// signature.
const MAX_KEYS: usize = 250;

/// Self-signatures of one keyring that are verified. Real keyrings of nodes have some dozens.
const MAX_CHECKS: usize = 500;

/// A primary key with its user ids, subkeys and signatures; none of them is verified yet.
#[derive(Debug)]
pub(super) struct Certificate {
    pub(super) primary: PublicKey,
    /// Signatures on the primary key itself, such as its revocation.
    pub(super) direct: Vec<Signature>,
    pub(super) user_ids: Vec<(UserId, Vec<Signature>)>,
    pub(super) subkeys: Vec<(PublicKey, Vec<Signature>)>,
    /// The first part that could not be read. By the rules of the CVO it makes the whole certificate unusable.
    pub(super) unreadable: Option<String>,
}

impl Certificate {
    fn new(primary: PublicKey) -> Self {
        Self {
            primary,
            direct: Vec::new(),
            user_ids: Vec::new(),
            subkeys: Vec::new(),
            unreadable: None,
        }
    }

    /// Adds what another copy of the same certificate has, as an import into gpg does: one file may have the revocation.
    pub(super) fn merge(&mut self, other: Self) {
        self.direct.extend(other.direct);
        self.user_ids.extend(other.user_ids);
        self.subkeys.extend(other.subkeys);
    }
}

/// What a signature packet follows, and thus what it is about.
enum Context {
    Direct,
    UserId,
    Subkey,
    /// A part that is not read, such as a photo: its signatures are not either.
    Nothing,
}

/// The certificates of a binary keyring; those whose primary key cannot be read are left out, with the reason.
pub(super) fn read(
    bytes: &[u8],
    rules: Rules,
    limits: Limits,
    checks: &mut Checks,
) -> Result<(Vec<Certificate>, Option<String>), KeyringError> {
    let mut packets = Packets::new(bytes, limits);
    let mut certificates: Vec<Certificate> = Vec::new();
    let mut unreadable = None;
    let mut current: Option<Certificate> = None;
    let mut context = Context::Nothing;
    while let Some(packet) = packets.next()? {
        if matches!(packet.tag, Tag::PublicKey | Tag::PublicSubkey) {
            checks.count_key()?;
        }
        if matches!(packet.tag, Tag::PublicKey | Tag::SecretKey) {
            certificates.extend(current.take());
            context = Context::Direct;
            match key(&packet, rules) {
                Ok(primary) => current = Some(Certificate::new(primary)),
                Err(why) => unreadable = Some(why),
            }
            continue;
        }
        let Some(certificate) = &mut current else {
            continue;
        };
        if let Err(why) = add(certificate, &packet, &mut context, rules) {
            certificate.unreadable.get_or_insert(why);
        }
    }
    certificates.extend(current);
    Ok((certificates, unreadable))
}

fn add(
    certificate: &mut Certificate,
    packet: &Packet,
    context: &mut Context,
    rules: Rules,
) -> Result<(), String> {
    match packet.tag {
        Tag::Signature => {
            let signature = signature(packet, rules)?;
            let list = match context {
                Context::Direct => &mut certificate.direct,
                Context::UserId => &mut certificate.user_ids.last_mut().expect("the context").1,
                Context::Subkey => &mut certificate.subkeys.last_mut().expect("the context").1,
                Context::Nothing => return Ok(()),
            };
            list.push(signature);
        }
        Tag::UserId => {
            *context = Context::Nothing;
            let user_id = UserId::try_from_reader(packet.header(), &packet.body[..]).map_err(brief)?;
            certificate.user_ids.push((user_id, Vec::new()));
            *context = Context::UserId;
        }
        Tag::PublicSubkey | Tag::SecretSubkey => {
            *context = Context::Nothing;
            certificate.subkeys.push((key(packet, rules)?, Vec::new()));
            *context = Context::Subkey;
        }
        Tag::UserAttribute => *context = Context::Nothing,
        // Trust packets of gpg's old keyrings stand between signatures.
        _ => {}
    }
    Ok(())
}

/// A primary key or a subkey: both packets have the same content.
fn key(packet: &Packet, rules: Rules) -> Result<PublicKey, String> {
    if matches!(packet.tag, Tag::SecretKey | Tag::SecretSubkey) {
        return Err("secret keys are not read".into());
    }
    // Older keys have weak fingerprints; neither program supports newer ones.
    match packet.body.first() {
        Some(4) => {}
        Some(version) => return Err(format!("keys of version {version} are not supported")),
        None => return Err("a key is empty".into()),
    }
    formats::check_key(&packet.body, rules)?;
    let header = PacketHeader::new_fixed(Tag::PublicKey, packet.body.len() as u32);
    let mut rest = &packet.body[..];
    let key = PublicKey::try_from_reader(header, &mut rest)
        .map_err(|error| format!("a key is not readable: {}", brief(error)))?;
    if rest.is_empty() {
        Ok(key)
    } else {
        Err("a key is longer than its content".into())
    }
}

/// Parses a signature packet of a message or of a keyring.
pub(super) fn signature(packet: &Packet, rules: Rules) -> Result<Signature, String> {
    match packet.body.first() {
        Some(2 | 3) if rules == Rules::Cvo => {}
        Some(3 | 4) => {}
        Some(version) => return Err(format!("a signature of version {version}")),
        None => return Err("an empty signature".into()),
    }
    let mut rest = &packet.body[..];
    let signature = Signature::try_from_reader(packet.header(), &mut rest)
        .map_err(|error| format!("the content of a signature packet ({})", brief(error)))?;
    if !rest.is_empty() {
        return Err("a signature that is longer than its content".into());
    }
    let config = signature.config().ok_or("the version of a signature")?;
    formats::check_signature(config, rules)?;
    if signature.created().is_none() {
        return Err("a signature without a time".into());
    }
    Ok(signature)
}

/// The id of the key that made a signature, as the signature claims it; the last one counts, as for Go.
pub(super) fn issuer(signature: &Signature) -> Option<u64> {
    let number = |id: &&KeyId| id.as_ref().iter().fold(0, |id, &byte| id << 8 | u64::from(byte));
    signature.issuer_key_id().last().map(number)
}

/// Whether the key may sign data, as far as its self-signature restricts it.
pub(super) fn may_sign(self_signature: &Signature) -> Option<bool> {
    let mut hashed = self_signature.config()?.hashed_subpackets();
    hashed.find_map(|subpacket| match &subpacket.data {
        SubpacketData::KeyFlags(flags) => Some(flags.sign()),
        _ => None,
    })
}

/// Whether signatures of data exist for the algorithm of the key.
pub(super) fn can_sign(key: &PublicKey) -> bool {
    matches!(
        key.algorithm(),
        PublicKeyAlgorithm::RSA
            | PublicKeyAlgorithm::RSASign
            | PublicKeyAlgorithm::DSA
            | PublicKeyAlgorithm::ECDSA
            | PublicKeyAlgorithm::EdDSALegacy
    )
}

/// Verifies self-signatures. It limits their number and that of keys, so that no keyring takes minutes.
pub(super) struct Checks {
    left: usize,
    keys_left: usize,
}

impl Checks {
    pub(super) fn new() -> Self {
        Self {
            left: MAX_CHECKS,
            keys_left: MAX_KEYS,
        }
    }

    fn count_key(&mut self) -> Result<(), KeyringError> {
        self.keys_left = self
            .keys_left
            .checked_sub(1)
            .ok_or(KeyringError::TooManyKeys { limit: MAX_KEYS })?;
        Ok(())
    }

    /// Whether `signature` by `signer` is valid: one of the `verify_…` of rPGP. The algorithms must be the same, because rPGP only
    /// compares the shape of the signature.
    pub(super) fn verify(
        &mut self,
        signature: &Signature,
        signer: &PublicKey,
        check: impl FnOnce(&Signature) -> pgp::errors::Result<()>,
    ) -> Result<bool, KeyringError> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or(KeyringError::TooManySignatures { limit: MAX_CHECKS })?;
        Ok(same_algorithm(signature, signer) && check(signature).is_ok())
    }

    /// Whether the subkey that `binding` allows to sign confirms that it belongs to `primary`; otherwise anyone could claim the
    /// signatures of another's subkey.
    pub(super) fn cross_certified(
        &mut self,
        binding: &Signature,
        subkey: &PublicKey,
        primary: &PublicKey,
    ) -> Result<bool, KeyringError> {
        match binding.embedded_signature() {
            Some(back) => self.verify(back, subkey, |back| {
                back.verify_primary_key_binding(subkey, primary)
            }),
            None => Ok(false),
        }
    }
}

/// Whether key and signature name the same algorithm.
pub(super) fn same_algorithm(signature: &Signature, signer: &PublicKey) -> bool {
    signature
        .config()
        .is_some_and(|config| config.pub_alg == signer.algorithm())
}
