//! Finds the codec that produced a zlib stream, by compressing its content again.

use super::{Codec, Deflater};

/// How much is compressed between two comparisons: a wrong codec mostly differs in its first block.
const STEP: usize = 64 << 10;

/// The codec that reproduces `stream` exactly from what it inflates to. `None` if no codec does, or if `inflated` is not the
/// content of `stream`.
pub fn find_codec(stream: &[u8], inflated: &[u8]) -> Option<Codec> {
    let (&method, &flags) = (stream.first()?, stream.get(1)?);
    // RFC 1950: deflate with a window of 32 KiB, no dictionary. The highest two bits are the level's class.
    if method != 0x78 || flags & 0x20 != 0 {
        return None;
    }
    let candidates: &[u8] = match flags >> 6 {
        0 => &[16, 17, 1],
        1 => &[5, 4, 3, 2],
        2 => &[6],
        _ => &[9, 8, 7],
    };
    candidates
        .iter()
        .filter_map(|&byte| Codec::from_byte(byte))
        .find(|&codec| reproduces(codec, stream, inflated))
}

fn reproduces(codec: Codec, stream: &[u8], inflated: &[u8]) -> bool {
    let mut deflater = Deflater::new(codec);
    let mut rest = stream;
    let mut out = Vec::with_capacity(2 * STEP);
    for step in inflated.chunks(STEP) {
        deflater.write(step, &mut out);
        let Some(after) = rest.strip_prefix(out.as_slice()) else {
            return false;
        };
        rest = after;
        out.clear();
    }
    deflater.finish(&mut out);
    rest == out
}
