//! Decides which keys of a certificate may sign, as golang.org/x/crypto/openpgp does for the cluster-version operator.
//!
//! Go reads a certificate all or nothing: an algorithm, a curve or a critical subpacket that it does not know, in any user id,
//! subkey or third-party signature, makes it skip the whole certificate.

use pgp::packet::{Signature, SignatureType, SubpacketData};
use pgp::types::Tag;

use super::certificate::{self, Certificate, Checks, issuer, may_sign};
use super::error::KeyringError;
use super::signing_key::{SigningKey, Unusable, key_id};

/// The keys of a certificate, or why Go skips it.
pub(super) fn keys(
    certificate: &Certificate,
    checks: &mut Checks,
) -> Result<Result<Vec<SigningKey>, String>, KeyringError> {
    let primary = &certificate.primary;
    if let Some(why) = &certificate.unreadable {
        return Ok(Err(why.clone()));
    }
    if !certificate::can_sign(primary) {
        return Ok(Err("a primary key that cannot sign".into()));
    }
    let mut identities = Vec::new();
    for (user_id, signatures) in &certificate.user_ids {
        let mut self_signature = None;
        for signature in signatures {
            let kind = signature.typ();
            let is_self = issuer(signature) == Some(key_id(primary));
            if !is_self
                || !matches!(
                    kind,
                    Some(SignatureType::CertPositive | SignatureType::CertGeneric)
                )
            {
                continue;
            }
            if !checks.verify(signature, primary, |signature| {
                signature.verify_certification(primary, Tag::UserId, user_id)
            })? {
                return Ok(Err("a self-signature of a user id does not match".into()));
            }
            self_signature = Some(signature);
        }
        identities.extend(self_signature.map(|signature| (user_id, signature)));
    }
    let Some(&(user_id, self_signature)) = identities
        .iter()
        .find(|(_, signature)| signature.is_primary())
        .or(identities.first())
    else {
        return Ok(Err("a key without a user id that it signed".into()));
    };
    let mut keys = vec![SigningKey::new(primary, primary, Some(user_id))];
    keys[0].unusable = objection(self_signature);
    for (subkey, signatures) in &certificate.subkeys {
        let mut binding: Option<&Signature> = None;
        for signature in signatures {
            if !checks.verify(signature, primary, |signature| {
                signature.verify_subkey_binding(primary, subkey)
            })? {
                return Ok(Err("the signature of a subkey does not match".into()));
            }
            if may_sign(signature) == Some(true) && !checks.cross_certified(signature, subkey, primary)? {
                return Ok(Err(format!("a subkey that {}", Unusable::NotCrossCertified)));
            }
            if replaces(binding, signature) {
                binding = Some(signature);
            }
        }
        let Some(binding) = binding else {
            return Ok(Err("a subkey without a signature".into()));
        };
        let mut key = SigningKey::new(subkey, primary, Some(user_id));
        key.unusable = objection(binding);
        keys.push(key);
    }
    for revocation in &certificate.direct {
        if revocation.typ() != Some(SignatureType::KeyRevocation) {
            continue;
        }
        if !checks.verify(revocation, primary, |revocation| revocation.verify_key(primary))? {
            return Ok(Err("a revocation by another key".into()));
        }
        for key in &mut keys {
            key.unusable = Some(Unusable::Revoked);
        }
    }
    keys.retain(|key| certificate::can_sign(&key.packet));
    Ok(Ok(keys))
}

/// Whether `new` counts instead of `old`: a revocation always, else the newer one.
fn replaces(old: Option<&Signature>, new: &Signature) -> bool {
    let Some(old) = old else {
        return true;
    };
    let is_revocation = |signature: &Signature| signature.typ() == Some(SignatureType::SubkeyRevocation);
    is_revocation(new) || (!is_revocation(old) && new.created() > old.created())
}

/// Why the key of this self-signature or binding must not sign.
fn objection(signature: &Signature) -> Option<Unusable> {
    let revokes = signature.typ() == Some(SignatureType::SubkeyRevocation)
        || signature.config().is_some_and(|config| {
            let mut hashed = config.hashed_subpackets();
            hashed.any(|one| matches!(one.data, SubpacketData::RevocationReason(..)))
        });
    if revokes {
        Some(Unusable::Revoked)
    } else if may_sign(signature) == Some(false) {
        Some(Unusable::NotForSigning)
    } else {
        None
    }
}
