//! Copies ranges of a layer's uncompressed tar, such as the contents of files that [`list`](super::list) found.

use std::io::{self, Read, Write};
use std::ops::Range;

use super::decompress;
use super::error::UnpackError;
use super::limits::UnpackLimits;
use crate::cancel::Cancel;

/// Passes the bytes of each range of the uncompressed tar to `each`, with the range's index. `ranges` are in the order of
/// their starts and do not overlap. The blob is read to its end.
pub fn copy_ranges(
    blob: impl Read,
    ranges: &[Range<u64>],
    limits: UnpackLimits<'_>,
    cancel: &Cancel,
    each: impl FnMut(usize, &[u8]) -> io::Result<()>,
) -> Result<(), UnpackError> {
    let picker = Picker {
        ranges,
        next: 0,
        offset: 0,
        each,
    };
    decompress(blob, picker, limits, cancel).map(drop)
}

struct Picker<'r, F> {
    ranges: &'r [Range<u64>],
    /// The first range that does not end before `offset`.
    next: usize,
    /// Bytes that were written.
    offset: u64,
    each: F,
}

impl<F: FnMut(usize, &[u8]) -> io::Result<()>> Write for Picker<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.offset + bytes.len() as u64;
        while let Some(range) = self.ranges.get(self.next) {
            let (from, to) = (range.start.max(self.offset), range.end.min(end));
            if from < to {
                // Both are within `bytes`, whose length is a `usize`.
                let within = |at: u64| usize::try_from(at - self.offset).unwrap_or(bytes.len());
                (self.each)(self.next, &bytes[within(from)..within(to)])?;
            }
            if range.end > end {
                break;
            }
            self.next += 1;
        }
        self.offset = end;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_gets_its_bytes_wherever_the_chunks_end() {
        let bytes: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
        let ranges = [0..1, 1..1, 10..300_000, 300_000..300_001, 999_999..1_000_000];
        let mut found = vec![Vec::new(); ranges.len()];
        let copied = copy_ranges(
            &bytes[..],
            &ranges,
            UnpackLimits::for_blob(0),
            &Cancel::default(),
            |index, chunk| {
                found[index].extend_from_slice(chunk);
                Ok(())
            },
        );
        copied.expect("no limit is exceeded");
        for (range, found) in ranges.iter().zip(found) {
            let (start, end) = (range.start as usize, range.end as usize);
            assert_eq!(found, bytes[start..end], "{range:?}");
        }
    }
}
