//! A reference that parses reads as itself again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::oci::Reference;

fuzz_target!(|text: &str| {
    if let Ok(reference) = text.parse::<Reference>() {
        assert_eq!(reference.to_string().parse(), Ok(reference));
    }
});
