//! No manifest, list or config panics or fills memory; what is accepted can be relied on, what is refused is refused in
//! a message that a log can bear.
//!
//! A NUL divides a manifest from its config. Nobody hits upon a config's digest by chance, so it is written into the
//! manifest.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use spoke_precache::oci::{Content, Digest, ImageManifest, MAX_CONFIG_SIZE, Manifest, ManifestError, Platform, ResolvedImage};

fuzz_target!(|bytes: &[u8]| {
    let (manifest, config) = match bytes.iter().position(|byte| *byte == 0) {
        Some(position) => (&bytes[..position], Some(&bytes[position + 1..])),
        None => (bytes, None),
    };
    match Manifest::parse(manifest, None) {
        Ok(Manifest::Image(image)) => assemble(manifest, &image, config),
        Ok(Manifest::Index(index)) => {
            for platform in ["linux/amd64", "linux/arm64/v8", "linux/arm", "windows/odd/v1"] {
                let platform: Platform = platform.parse().expect("a platform");
                if let Err(error) = index.choose(&platform) {
                    look_at(&error);
                }
            }
        }
        Err(error) => look_at(&error),
    }
});

fn assemble(manifest: &[u8], image: &ImageManifest, config: Option<&[u8]>) {
    assert!(image.config_size <= MAX_CONFIG_SIZE);
    let total = image
        .layers
        .iter()
        .try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
    assert!(total.is_some(), "sizes overflow");
    let config = match config {
        Some(config) => config.to_vec(),
        None => {
            let ids: Vec<_> = image
                .layers
                .iter()
                .map(|layer| format!("\"{}\"", layer.blob))
                .collect();
            format!(
                r#"{{"rootfs":{{"type":"layers","diff_ids":[{}]}}}}"#,
                ids.join(",")
            )
            .into_bytes()
        }
    };
    let mut fields: Value = serde_json::from_slice(manifest).expect("JSON, for it was accepted");
    fields["config"]["digest"] = Digest::of(&config).to_string().into();
    fields["config"]["size"] = config.len().into();
    let manifest = Content::new(Bytes::from(fields.to_string()));
    match ResolvedImage::assemble(None, manifest.clone(), Content::new(config.into())) {
        Ok(resolved) => {
            assert_eq!(resolved.layers.len(), image.layers.len());
            assert_eq!(resolved.layer_ids().len(), image.layers.len());
            assert_eq!(resolved.manifest, manifest);
        }
        Err(error) => look_at(&error),
    }
}

fn look_at(error: &ManifestError) {
    let text = error.to_string();
    assert!(text.len() < 4_000, "{} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}
