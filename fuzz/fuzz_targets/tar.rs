//! No blob gets out of its directory, panics, or is put together again as anything but itself. Needs root.
//!
//! The bytes are the blob, so that the corpus's tars are seeds. A mutation that breaks a header's checksum would be all
//! that ever happens to that header, so sums are mended first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use spoke_precache_fuzz::{jail, layer};

const BLOCK: usize = 512;
const SUM: std::ops::Range<usize> = 148..156;

fuzz_target!(
    init: jail::enter().expect("root"),
    |bytes: &[u8]| {
        let mut blob = bytes.to_vec();
        mend(&mut blob);
        layer::check(&blob);
    }
);

/// Gives every block the checksum of a header if it has the magic of one, or a number where the sum belongs.
fn mend(tar: &mut [u8]) {
    for block in tar.chunks_exact_mut(BLOCK) {
        let is_header =
            block[257..].starts_with(b"ustar") || block[SUM].iter().any(|byte| matches!(byte, b'0'..=b'7'));
        // Some sums stay wrong, for they are to be refused.
        if is_header && block[SUM] != *b"wrongsum" {
            block[SUM].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[SUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}
