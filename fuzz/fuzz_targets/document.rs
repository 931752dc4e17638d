//! No document panics, hangs or fills a screen, and a version spec that is printed reads as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::spec::from_document;

/// Bytes of a message: some objects with their names, each cut off.
const MESSAGE: usize = 128 << 10;

fuzz_target!(|bytes: &[u8]| {
    let document = match from_document(bytes) {
        Ok(document) => document,
        Err(error) => {
            assert!(error.to_string().len() < MESSAGE);
            return;
        }
    };
    let _ = document.spec.to_text();
    // A package of this name would be no package, and the word alone means nothing at all.
    if document.spec.packages_and_channels == ["null"] {
        return;
    }
    for text in [document.spec.to_yaml(), document.spec.to_json()] {
        let again = from_document(text.as_bytes()).expect("what is printed can be read");
        assert_eq!(again.spec, document.spec, "{text}");
        assert_eq!(again.warnings, Vec::<String>::new());
    }
});
