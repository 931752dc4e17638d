//! Limits what applying a delta costs beyond the tar that it makes.
//!
//! The consumer limits the tar. Each other limit is a base and a share that grows with the output, because a
//! zstd stream of a few bytes may contain any number of operations, and an operation of a few bytes may inflate a
//! gibibyte.

use super::patch_error::FormatFault;

/// Bytes of one inflated range, of one zlib stream in the output, and of all scratch files that exist at a time, as the
/// creator limits them too. Debug sections of real binaries have up to 100 MB.
pub(super) const MAX_INFLATED: u64 = 256 << 20;

/// Bytes that any delta may inflate or deflate in total.
const BASE: u64 = 1 << 30;

/// zlib's largest ratio, for ranges that are too short for what they inflate to.
const MAX_RATIO: u64 = 1032;

/// A limit that grows with the output.
struct Limit {
    what: &'static str,
    base: u64,
    /// Each `per` bytes of output raise the limit by this.
    times: u64,
    per: u64,
}

/// Encoded operations without the data that they output: paths and numbers. A path is shorter than the tar header of its
/// file.
const ENCODING: Limit = Limit {
    what: "bytes of operations without output",
    base: 16 << 20,
    times: 2,
    per: 1,
};

/// Opened files. A file in a tar has a header of 512 bytes.
const OPENED: Limit = Limit {
    what: "opened files",
    base: 64 << 10,
    times: 1,
    per: 512,
};

const INFLATED: Limit = Limit {
    what: "inflated bytes",
    base: BASE,
    times: 4,
    per: 1,
};

/// Counted in proportion to the compressed output: zeros deflate to a thousandth.
const DEFLATED: Limit = Limit {
    what: "bytes to deflate",
    base: BASE,
    times: 16,
    per: 1,
};

impl Limit {
    fn check(&self, found: u64, output: u64) -> Result<(), FormatFault> {
        let max = self
            .base
            .saturating_add(output.saturating_mul(self.times) / self.per);
        if found > max {
            return Err(FormatFault::Limit { what: self.what, max });
        }
        Ok(())
    }
}

/// What a delta has cost so far.
#[derive(Default)]
pub(super) struct Cost {
    encoding: u64,
    opened: u64,
    inflated: u64,
    deflated: u64,
    /// Bytes of output before they are deflated.
    output: u64,
    /// Bytes of the tar.
    tar: u64,
}

impl Cost {
    pub(super) fn add_encoding(&mut self, bytes: u64) -> Result<(), FormatFault> {
        self.encoding = self.encoding.saturating_add(bytes);
        ENCODING.check(self.encoding, self.output)
    }

    pub(super) fn add_opened(&mut self) -> Result<(), FormatFault> {
        self.opened += 1;
        OPENED.check(self.opened, self.output)
    }

    /// Before a range is inflated.
    pub(super) fn add_inflated(&mut self, length: u64, inflated_length: u64) -> Result<(), FormatFault> {
        let max = length.saturating_mul(MAX_RATIO).min(MAX_INFLATED);
        let what = "bytes of one inflated range";
        if inflated_length > max {
            return Err(FormatFault::Limit { what, max });
        }
        self.inflated = self.inflated.saturating_add(inflated_length);
        INFLATED.check(self.inflated, self.output)
    }

    /// Before output is deflated.
    pub(super) fn add_deflated(&mut self, length: u64) -> Result<(), FormatFault> {
        if length > MAX_INFLATED {
            let (what, max) = ("bytes of one zlib stream", MAX_INFLATED);
            return Err(FormatFault::Limit { what, max });
        }
        self.deflated = self.deflated.saturating_add(length);
        DEFLATED.check(self.deflated, self.tar)
    }

    pub(super) fn add_output(&mut self, bytes: u64) {
        self.output = self.output.saturating_add(bytes);
    }

    pub(super) fn add_tar(&mut self, bytes: u64) {
        self.tar = self.tar.saturating_add(bytes);
    }
}
