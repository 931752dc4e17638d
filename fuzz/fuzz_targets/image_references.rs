//! No payload panics or fills memory, and one that parses has images.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::release::Payload;

const METADATA: &[u8] = br#"{"kind": "cincinnati-metadata-v0", "version": "4.16.3"}"#;
const IMAGES: &[u8] =
    br#"{"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "spec": {"tags": []}}"#;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(payload) = Payload::parse(bytes, METADATA) {
        assert!(!payload.tags.is_empty());
    }
    let _ = Payload::parse(IMAGES, bytes);
});
