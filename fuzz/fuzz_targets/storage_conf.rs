//! No storage.conf panics or hangs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache::store::StorageConf;

fuzz_target!(|text: &str| {
    if let Err(error) = StorageConf::parse(text) {
        let _ = error.to_string();
    }
});
