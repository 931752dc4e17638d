//! Decides which keys of a certificate may sign, as GnuPG does for the requirement `signedBy`.
//!
//! gpg uses the parts of a certificate that it can verify, and ignores the rest. The newest self-signature counts. A
//! revocation counts regardless of its date, except that of a user id.

use pgp::packet::{PublicKey, Signature, SignatureType, UserId};
use pgp::types::{Duration, KeyDetails as _, Tag};

use super::certificate::{Certificate, Checks, can_sign, issuer, may_sign};
use super::error::KeyringError;
use super::signing_key::{SigningKey, Unusable, key_id};

/// The keys of a certificate; none if no user id is bound to it.
pub(super) fn keys(certificate: &Certificate, checks: &mut Checks) -> Result<Vec<SigningKey>, KeyringError> {
    let primary = &certificate.primary;
    let mut user_ids = Vec::new();
    for (user_id, signatures) in &certificate.user_ids {
        user_ids.extend(
            newest(signatures, primary, checks, |signature| {
                signature.verify_certification(primary, Tag::UserId, user_id)
            })?
            .map(|signature| (user_id, signature)),
        );
    }
    user_ids.retain(|(_, signature)| signature.typ() != Some(SignatureType::CertRevocation));
    let Some(&(user_id, newest_id)) = user_ids.iter().max_by_key(|(_, signature)| seconds(signature)) else {
        return Ok(Vec::new());
    };
    let mut direct = None;
    let mut is_revoked = false;
    for signature in certificate
        .direct
        .iter()
        .filter(|signature| may_be_by(signature, primary))
    {
        if checks.verify(signature, primary, |signature| signature.verify_key(primary))? {
            match signature.typ() {
                Some(SignatureType::KeyRevocation) => is_revoked = true,
                _ if direct.is_none_or(|old: &Signature| seconds(old) <= seconds(signature)) => {
                    direct = Some(signature)
                }
                _ => {}
            }
        }
    }
    // A signature on the key itself precedes those on user ids.
    let flags = direct.and_then(may_sign).or_else(|| may_sign(newest_id));
    let expires = direct
        .and_then(|direct| expiry(primary, direct))
        .or_else(|| expiry(primary, newest_id));
    let mut keys = vec![SigningKey::new(primary, primary, Some(user_id))];
    keys[0].unusable = (flags == Some(false)).then_some(Unusable::NotForSigning);
    keys[0].expires = expires;
    for (subkey, signatures) in &certificate.subkeys {
        keys.extend(bound(subkey, signatures, primary, user_id, checks)?);
    }
    for key in &mut keys {
        if is_revoked {
            key.unusable = Some(Unusable::Revoked);
        }
        key.expires = [key.expires, expires].into_iter().flatten().min();
    }
    keys.retain(|key| can_sign(&key.packet));
    Ok(keys)
}

/// The subkey, if the primary key binds it.
fn bound(
    subkey: &PublicKey,
    signatures: &[Signature],
    primary: &PublicKey,
    user_id: &UserId,
    checks: &mut Checks,
) -> Result<Option<SigningKey>, KeyringError> {
    let mut binding: Option<&Signature> = None;
    let mut key = SigningKey::new(subkey, primary, Some(user_id));
    for signature in signatures
        .iter()
        .filter(|signature| may_be_by(signature, primary))
    {
        if !checks.verify(signature, primary, |signature| {
            signature.verify_subkey_binding(primary, subkey)
        })? {
            continue;
        }
        if signature.typ() == Some(SignatureType::SubkeyRevocation) {
            key.unusable = Some(Unusable::Revoked);
        } else if binding.is_none_or(|old| seconds(old) <= seconds(signature)) {
            binding = Some(signature);
        }
    }
    let Some(binding) = binding else {
        return Ok(None);
    };
    key.expires = expiry(subkey, binding);
    if key.unusable.is_none() {
        if may_sign(binding) == Some(false) {
            key.unusable = Some(Unusable::NotForSigning);
        } else if !checks.cross_certified(binding, subkey, primary)? {
            key.unusable = Some(Unusable::NotCrossCertified);
        }
    }
    Ok(Some(key))
}

/// The newest of the signatures by `primary` that `check` accepts.
fn newest<'a>(
    signatures: &'a [Signature],
    primary: &PublicKey,
    checks: &mut Checks,
    check: impl Fn(&Signature) -> pgp::errors::Result<()>,
) -> Result<Option<&'a Signature>, KeyringError> {
    let mut newest: Option<&Signature> = None;
    for signature in signatures
        .iter()
        .filter(|signature| may_be_by(signature, primary))
    {
        if checks.verify(signature, primary, &check)?
            && newest.is_none_or(|old| seconds(old) <= seconds(signature))
        {
            newest = Some(signature);
        }
    }
    Ok(newest)
}

/// Signatures of other keys are not verified: a popular key has thousands.
fn may_be_by(signature: &Signature, key: &PublicKey) -> bool {
    issuer(signature).is_none_or(|issuer| issuer == key_id(key))
}

fn seconds(signature: &Signature) -> u32 {
    signature.created().map_or(0, |time| time.as_secs())
}

/// When the key expires, by a self-signature that may itself expire; none if never.
fn expiry(key: &PublicKey, self_signature: &Signature) -> Option<i64> {
    let end = |from: u32, lifetime: Option<Duration>| {
        let lifetime = lifetime.map_or(0, Duration::as_secs);
        (lifetime != 0).then(|| i64::from(from) + i64::from(lifetime))
    };
    let of_key = end(key.created_at().as_secs(), self_signature.key_expiration_time());
    let of_signature = end(
        seconds(self_signature),
        self_signature.signature_expiration_time(),
    );
    [of_key, of_signature].into_iter().flatten().min()
}
