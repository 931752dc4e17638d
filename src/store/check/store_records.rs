//! Checks the records in layers.json and images.json against manifests, configs, tars and each other.
//!
//! ```text
//! layers.json  parent diff-digest uidmap                         config, layer ids         check_record
//!              diff-size uidset gidset                           the tar                   layer_content
//!              compressed-diff-digest compressed-size            manifests                flaw_of_origin
//! images.json  layer                                             config, layers.json       completeness
//!              big-data-sizes big-data-digests                   the files                 big_data
//!              digest big-data-names                             each other                flaws_of_image
//!              metadata                                          the signature items       big_data
//! both         created                                           Go's format of times
//! ```
//!
//! Nothing determines `names`, `names-history` and the value of `created`, nor `compression`: containers/image omits
//! it from a layer that it copies from another one, with the digest and length of the blob (`storage_dest.go`:
//! `createNewLayer`).

use super::damage::{Damage, DamageList};
use crate::oci::Digest;
use crate::store::error::StoreError;
use crate::store::escaped_name::EscapedName;
use crate::store::expected_layer::{ExpectedLayer, LayerBlob};
use crate::store::go_time;
use crate::store::image_record::MANIFEST;
use crate::store::inventory::{Inventory, StoredImage};
use crate::store::layers_json::LayerView;

/// Compares parent and content in a layer's record with the config.
pub(super) fn check_record(view: &LayerView, layer: &ExpectedLayer, found: &mut DamageList) {
    let mut wrong = |reason: &str| found.add(Damage::Record(reason.to_owned()));
    if !view.is_filled() {
        wrong("it has no digest of the layer's content");
    } else if view.diff_id().is_some_and(|diff_id| diff_id != layer.diff_id) {
        wrong("its diffID differs from the image's config");
    }
    if view.parent() != layer.parent.map(|parent| parent.to_string()).as_deref() {
        wrong("its parent differs from the image's config");
    }
    if view.is_mapped() {
        wrong("its files have mapped owners");
    }
}

impl Inventory {
    /// Describes an error in the blob that a layer's record names. The image may have another blob of the same tar,
    /// and the image that the layer was pulled with may be gone; then the recorded blob is unknown.
    pub(in crate::store) fn flaw_of_origin(
        &self,
        view: &LayerView,
        layer: &ExpectedLayer,
        blob: &LayerBlob,
    ) -> Result<Option<String>, StoreError> {
        if !view.has_time() {
            return Ok(Some("its `created` is not a time".to_owned()));
        }
        let Some(text) = view.blob_text() else {
            // Built on this node, or pulled in chunks.
            return Ok(None);
        };
        let Ok(recorded) = text.parse::<Digest>() else {
            return Ok(Some("its `compressed-diff-digest` is not a digest".to_owned()));
        };
        let size = view.compressed_size.and_then(|size| u64::try_from(size).ok());
        // Podman 4.3 records a layer this way if it copies it from another one in the store.
        let is_copy = view.compression.unwrap_or(0) == 0 && size == view.size();
        let is_same_size = blob.size.is_none() || size == blob.size;
        if recorded == blob.digest {
            // containers/storage omits the size if it converts an image (`convert_images`).
            let is_converted = size.is_none() && view.is_partial();
            if !is_same_size && !is_copy && !is_converted {
                return Ok(Some(
                    "its `compressed-size` differs from the image's manifest".to_owned(),
                ));
            }
        } else if recorded != layer.diff_id.0 {
            let known = self.diff_ids_of_blob(&recorded)?;
            // Two compressions of one tar almost never have the same length. If they do, the image's own blob is
            // equally right.
            if !known.contains(&layer.diff_id) && (!known.is_empty() || is_same_size) {
                let reason = "its `compressed-diff-digest` differs from the image's manifest";
                return Ok(Some(reason.to_owned()));
            }
        }
        Ok(None)
    }
}

/// Describes errors in an image's record, apart from its top layer and its files.
pub(super) fn flaws_of_image(image: &StoredImage) -> Vec<String> {
    let mut flaws = Vec::new();
    if !image.created.as_deref().is_none_or(go_time::is_time) {
        flaws.push("its `created` is not a time".to_owned());
    }
    for (key, _) in image.items.iter().filter(|(_, item)| !item.is_named) {
        flaws.push(format!(
            "its `big-data-names` lacks `{}`",
            EscapedName::new(key.as_bytes())
        ));
    }
    let digest_of = |key: &str| image.items.get(key).and_then(|item| item.digest);
    if let Some(manifest) = digest_of(MANIFEST) {
        if digest_of(&format!("{MANIFEST}-{manifest}")) != Some(manifest) {
            flaws.push(format!("it has no `{MANIFEST}-{manifest}`"));
        }
        let manifests = image.items.iter().filter(|(key, _)| key.starts_with(MANIFEST));
        let mut digests = manifests.filter_map(|(_, item)| item.digest);
        let recorded = image
            .digest
            .as_deref()
            .and_then(|digest| digest.parse::<Digest>().ok());
        if !recorded.is_some_and(|recorded| digests.any(|digest| digest == recorded)) {
            flaws.push("its `digest` is not the digest of one of its manifests".to_owned());
        }
    }
    flaws
}
