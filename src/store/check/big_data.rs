//! Checks an image's big data (manifest, list, config, signatures) against the digests and sizes in its record.

use super::Damage;
use super::store_records::flaws_of_image;
use crate::oci::{Digest, Manifest, ResolvedImage};
use crate::store::error::StoreError;
use crate::store::escaped_name::EscapedName;
use crate::store::image_record::MANIFEST;
use crate::store::inventory::{Inventory, StoredImage};
use crate::store::signature_lengths::{SIGNATURE, SignatureLengths};

impl Inventory {
    /// Reads every file of big data, compares it with digest and size in the image's record, and checks that the
    /// record is consistent.
    pub fn check_data(&self, image: &StoredImage) -> Result<Vec<Damage>, StoreError> {
        let damages = self.damages_of_data(image)?;
        if damages.is_empty() {
            return Ok(damages);
        }
        // Another program may just have replaced items and record.
        match self.replaced(image)? {
            Some(new) => self.damages_of_data(&new),
            None => Ok(damages),
        }
    }

    fn damages_of_data(&self, image: &StoredImage) -> Result<Vec<Damage>, StoreError> {
        let mut damages: Vec<Damage> = flaws_of_image(image).into_iter().map(Damage::Record).collect();
        damages.extend(flaws_of_metadata(image));
        for (key, item) in &image.items {
            let reason = match self.read_item(image, key) {
                Ok(None) => "it is missing".to_owned(),
                Ok(Some(content)) => {
                    let (digest, size) = (content.digest(), content.bytes().len() as u64);
                    if item.size != Some(size) {
                        let recorded = item
                            .size
                            .map_or("no size".to_owned(), |size| format!("{size} bytes"));
                        format!("it has {size} bytes, its record has {recorded}")
                    } else if item.digest != Some(digest) {
                        format!("it has the digest {digest}, which differs from its record")
                    } else if digest_in_key(key).is_some_and(|expected| expected != digest) {
                        format!("it has the digest {digest}, which differs from its name")
                    } else {
                        continue;
                    }
                }
                Err(StoreError::Corrupt { reason, .. }) => reason,
                Err(error) => return Err(error),
            };
            let is_signature = key.starts_with(SIGNATURE);
            let key = EscapedName::new(key.as_bytes());
            damages.push(match is_signature {
                true => Damage::Signatures { key, reason },
                false => Damage::Data { key, reason },
            });
        }
        Ok(damages)
    }

    /// The image as stored, if manifest and config are intact; then no registry request is needed for them.
    pub fn describe(&self, image: &StoredImage) -> Result<Option<ResolvedImage>, StoreError> {
        let Some(manifest) = self.read_item(image, MANIFEST)? else {
            return Ok(None);
        };
        if image.items.get(MANIFEST).and_then(|item| item.digest) != Some(manifest.digest()) {
            return Ok(None);
        }
        let Ok(Manifest::Image(parsed)) = Manifest::parse(manifest.bytes(), None) else {
            return Ok(None);
        };
        let config = self.read_item(image, &parsed.config.to_string())?;
        let Some(config) = config.filter(|config| config.digest() == parsed.config) else {
            return Ok(None);
        };
        Ok(ResolvedImage::assemble(None, manifest, config).ok())
    }
}

/// Compares the lengths of the signatures with the lengths of their items, both as recorded.
fn flaws_of_metadata(image: &StoredImage) -> Vec<Damage> {
    let damage = |key: &str, reason: &str| Damage::Signatures {
        key: EscapedName::new(key.as_bytes()),
        reason: reason.to_owned(),
    };
    let Some(lengths) = SignatureLengths::parse(image.metadata.as_deref()) else {
        return vec![damage("metadata", "it does not parse")];
    };
    let size_of = |key: &str| image.items.get(key).and_then(|item| item.size);
    let mismatches = lengths.mismatches(size_of).into_iter();
    mismatches
        .map(|key| {
            damage(
                &key,
                "its length differs from the lengths of the signatures in `metadata`",
            )
        })
        .collect()
}

/// The digest in the key of a manifest or config.
fn digest_in_key(key: &str) -> Option<Digest> {
    let digest = key.strip_prefix(MANIFEST).and_then(|rest| rest.strip_prefix('-'));
    digest.unwrap_or(key).parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use serde_json::json;

    use crate::oci::{DiffId, Digest, LayerId};
    use crate::store::{StorageConf, Store};

    #[test]
    fn a_manifest_that_we_would_not_pull_still_names_its_layers() {
        if let Err(why) = crate::notice::root() {
            return crate::notice::skip(&why);
        }
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let store = Store::open(root, &StorageConf::default()).unwrap();
        store.create_if_missing().unwrap();
        let diff_id = Digest::of(b"the layer's tar");
        let config = json!({"rootfs": {"diff_ids": [diff_id.to_string()]}}).to_string();
        let config_digest = Digest::of(config.as_bytes());
        let media_type = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
        let manifest = json!({
            "schemaVersion": 2,
            "config": {"digest": config_digest.to_string()},
            "layers": [{"digest": Digest::of(b"a blob").to_string(), "mediaType": media_type}],
        })
        .to_string();
        let id = config_digest.hex();
        let top = LayerId::of(None, DiffId(diff_id));
        let (mut sizes, mut digests) = (json!({}), json!({}));
        let digest = Digest::of(manifest.as_bytes());
        let (by_digest, config_key) = (format!("manifest-{digest}"), config_digest.to_string());
        let items = [
            ("manifest", &manifest),
            (&*by_digest, &manifest),
            (&*config_key, &config),
        ];
        for (key, content) in items {
            sizes[key] = content.len().into();
            digests[key] = Digest::of(content.as_bytes()).to_string().into();
        }
        let names: Vec<_> = sizes.as_object().unwrap().keys().collect();
        let record = json!([{
            "id": id, "digest": digest.to_string(), "layer": top.to_string(),
            "big-data-names": names, "big-data-sizes": sizes, "big-data-digests": digests,
        }]);
        fs::write(root.join("overlay-images/images.json"), record.to_string()).unwrap();
        let inventory = store.inventory().unwrap();
        let [image] = inventory.images() else {
            panic!("{record}")
        };
        for (key, content) in items {
            let path = store.layout.big_data(&image.id, key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        assert!(inventory.check_data(image).unwrap().is_empty());
        assert!(inventory.describe(image).unwrap().is_none());
        let places = inventory.expected_layers(image).unwrap().unwrap();
        assert_eq!(places.len(), 1);
        assert_eq!((places[0].id, places[0].diff_id), (top, DiffId(diff_id)));
    }
}
