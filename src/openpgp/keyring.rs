//! Reads keyring files, armored or binary, into the keys that can have made a signature.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use pgp::types::KeyDetails as _;

use super::armor;
use super::certificate::{self, Certificate, Checks};
use super::error::KeyringError;
use super::packets::Limits;
use super::signing_key::{Signer, SigningKey};
use super::{Rules, cvo, gnupg};

/// A ConfigMap has at most 1 MiB; the keyring of all Debian developers, which is not needed here, has 30 MB.
const MAX_SIZE: usize = 4 << 20;

/// The smallest packets of a keyring of that size; all are read anyway.
const LIMITS: Limits = Limits {
    bytes: MAX_SIZE as u64,
    packets: 100_000,
};

/// The public keys of one or several files, with the rules they were read by.
#[derive(Debug, Clone)]
pub struct Keyring {
    pub(super) rules: Rules,
    pub(super) keys: Vec<SigningKey>,
}

impl Keyring {
    /// Reads one file. It must have a key; keys that may not sign are kept, to explain a refusal.
    pub fn parse(bytes: &[u8], rules: Rules) -> Result<Self, KeyringError> {
        Self::parse_all(&[bytes], rules)
    }

    /// Reads several files into one ring. One of them must have a key.
    pub fn parse_all(files: &[&[u8]], rules: Rules) -> Result<Self, KeyringError> {
        let size = files.iter().map(|file| file.len()).sum();
        if size > MAX_SIZE {
            return Err(KeyringError::TooLarge {
                size,
                limit: MAX_SIZE,
            });
        }
        let mut checks = Checks::new();
        let mut certificates = Vec::new();
        let mut skipped = None;
        for file in files {
            match read(file, rules, &mut checks) {
                Ok((found, unreadable)) => {
                    certificates.extend(found);
                    skipped = skipped.or(unreadable);
                }
                // gpg imports what it can of several files, and finds no key in a file of something else.
                Err(KeyringError::Packets(error)) if files.len() > 1 && rules == Rules::GnuPg => {
                    skipped = skipped.or(Some(error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        let mut keys = Vec::new();
        match rules {
            Rules::Cvo => {
                for certificate in &certificates {
                    match cvo::keys(certificate, &mut checks)? {
                        Ok(found) => keys.extend(found),
                        Err(why) => skipped = skipped.or(Some(why)),
                    }
                }
            }
            Rules::GnuPg => {
                for certificate in &merged(certificates) {
                    keys.extend(gnupg::keys(certificate, &mut checks)?);
                    skipped = skipped.or_else(|| certificate.unreadable.clone());
                }
            }
        }
        match keys.is_empty() {
            true => Err(KeyringError::NoKey(skipped)),
            false => Ok(Self { rules, keys }),
        }
    }

    /// The keys of the ring, for messages; some may be revoked or expired.
    pub fn signers(&self) -> impl Iterator<Item = &Signer> {
        self.keys.iter().map(|key| &key.signer)
    }

    /// The keys with this id, in the order of the files.
    pub(super) fn find(&self, key_id: u64) -> impl Iterator<Item = &SigningKey> {
        self.keys.iter().filter(move |key| key.signer.key_id == key_id)
    }
}

fn read(
    file: &[u8],
    rules: Rules,
    checks: &mut Checks,
) -> Result<(Vec<Certificate>, Option<String>), KeyringError> {
    let blocks = armor::blocks(file);
    if blocks.is_empty() {
        return certificate::read(file, rules, LIMITS, checks);
    }
    let count = match rules {
        Rules::Cvo => 1,
        Rules::GnuPg => blocks.len(),
    };
    let mut all = Vec::new();
    let mut unreadable = None;
    for block in &blocks[..count] {
        let (found, why) = certificate::read(&armor::decode(block)?, rules, LIMITS, checks)?;
        all.extend(found);
        unreadable = unreadable.or(why);
    }
    Ok((all, unreadable))
}

/// Merges the copies of each certificate into one.
fn merged(certificates: Vec<Certificate>) -> Vec<Certificate> {
    let mut merged: Vec<Certificate> = Vec::new();
    let mut indexes: HashMap<Vec<u8>, usize> = HashMap::new();
    for certificate in certificates {
        let fingerprint = certificate.primary.fingerprint().as_bytes().to_vec();
        match indexes.entry(fingerprint) {
            Entry::Occupied(index) => merged[*index.get()].merge(certificate),
            Entry::Vacant(index) => {
                index.insert(merged.len());
                merged.push(certificate);
            }
        }
    }
    merged
}
