//! Reads the signatures of a stored image from its items of big data.

use super::atomic_file;
use super::error::StoreError;
use super::image_record::ManifestSignatures;
use super::inventory::ITEM_LIMIT;
use super::layout::Layout;
use super::signature_lengths::{COUNT_LIMIT, SIGNATURES, SignatureLengths, cut, key_of};
use crate::oci::{Digest, ImageId};

/// The record of an image, as far as its signatures are concerned.
pub(super) struct SignedRecord<'r, D> {
    pub(super) layout: &'r Layout,
    pub(super) id: ImageId,
    pub(super) metadata: Option<&'r str>,
    /// The digest of the item `manifest`.
    pub(super) default: Option<Digest>,
    /// The recorded digest of an item.
    pub(super) digest_of: D,
}

impl<D: Fn(&str) -> Option<Digest>> SignedRecord<'_, D> {
    /// The signatures that containers/image reads for this manifest: for the one of the item `manifest` those in
    /// `signatures`, for another one those in its own item. containers/image does not compare the digest.
    ///
    /// # Errors
    /// [`StoreError::DamagedSignatures`] if the item is missing or damaged.
    pub(super) fn signatures(&self, manifest: Digest) -> Result<Vec<Vec<u8>>, StoreError> {
        let lengths = self.lengths()?;
        match self.default == Some(manifest) {
            true => self.read(SIGNATURES, lengths.of_default()),
            false => self.read(&key_of(manifest), lengths.of(manifest)),
        }
    }

    /// The signatures of this manifest from either item, without those that are damaged.
    pub(super) fn intact(&self, manifest: Digest) -> Result<Vec<Vec<u8>>, StoreError> {
        let own = || self.read(&key_of(manifest), self.lengths()?.of(manifest));
        let (first, second) = (self.signatures(manifest), own());
        for read in [first, second] {
            match read {
                Ok(signatures) if signatures.is_empty() => {}
                Err(error @ StoreError::DamagedSignatures { .. }) => tracing::warn!("{error}"),
                read => return read,
            }
        }
        Ok(Vec::new())
    }

    fn lengths(&self) -> Result<SignatureLengths, StoreError> {
        SignatureLengths::parse(self.metadata).ok_or_else(|| self.damaged("metadata", "it does not parse"))
    }

    fn read(&self, key: &str, lengths: &[u64]) -> Result<Vec<Vec<u8>>, StoreError> {
        if lengths.is_empty() {
            return Ok(Vec::new());
        }
        match atomic_file::read(&self.layout.big_data(&self.id, key), ITEM_LIMIT) {
            Ok(Some(bytes)) if (self.digest_of)(key).is_some_and(|digest| digest != Digest::of(&bytes)) => {
                Err(self.damaged(key, "its digest differs from its record"))
            }
            Ok(Some(bytes)) => cut(&bytes, lengths).map_err(|reason| self.damaged(key, reason)),
            Ok(None) => Err(self.damaged(key, "it is missing")),
            Err(StoreError::Corrupt { reason, .. }) => Err(self.damaged(key, reason)),
            Err(error) => Err(error),
        }
    }

    fn damaged(&self, item: &str, reason: impl Into<String>) -> StoreError {
        StoreError::DamagedSignatures {
            image: self.id,
            item: item.to_owned(),
            reason: reason.into(),
        }
    }
}

impl ManifestSignatures {
    /// Puts `signatures` one after another.
    ///
    /// # Errors
    /// [`StoreError::Unsignable`] if there are more than can be read again, or containers/image cannot read one.
    pub(super) fn new(
        image: ImageId,
        manifest: Digest,
        is_default: bool,
        signatures: &[Vec<u8>],
    ) -> Result<Self, StoreError> {
        let lengths: Vec<u64> = signatures
            .iter()
            .map(|signature| signature.len() as u64)
            .collect();
        let total: u64 = lengths.iter().sum();
        let reason = if lengths.contains(&0) {
            "one of them is empty".to_owned()
        } else if lengths.len() > COUNT_LIMIT || total > ITEM_LIMIT {
            let count = lengths.len();
            format!("{count} signatures of {total} bytes, more than {COUNT_LIMIT} or {ITEM_LIMIT} bytes")
        } else {
            let bytes = signatures.concat();
            return Ok(Self {
                manifest,
                is_default,
                lengths,
                bytes,
            });
        };
        Err(StoreError::Unsignable {
            image,
            reason,
            hint: "remove superfluous signatures from the store or registry that registries.d configures",
        })
    }
}
