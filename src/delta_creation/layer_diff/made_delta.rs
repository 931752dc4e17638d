//! What was made of one layer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};

use super::{DiffError, DiffParams, LayerPlan};
use crate::delta::Format;
use crate::oci::{Digest, Hasher};

/// The deltas of one layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerDiff {
    /// In the format that other programs apply too. It reads files of image 0 only.
    pub tar_diff: MadeDelta,
    /// In the own format, if it is smaller by a tenth.
    pub inflated: Option<MadeDelta>,
}

/// One delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MadeDelta {
    /// SHA-256 of the delta.
    pub digest: Digest,
    /// Its length in bytes.
    pub size: u64,
    /// The old images whose files it reads.
    pub images: BTreeSet<usize>,
}

struct HashingWriter<W> {
    inner: W,
    hasher: Hasher,
    size: u64,
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub(super) fn data_only(plan: &LayerPlan, params: DiffParams, output: &File) -> Result<MadeDelta, DiffError> {
    let tar = plan.new_layer().tar();
    let mut input = plan.new_layer().open().map_err(DiffError::host("open", tar))?;
    let mut writer = HashingWriter {
        inner: output,
        hasher: Hasher::default(),
        size: 0,
    };
    let mut write = || {
        writer.write_all(Format::TarDiff.header())?;
        let mut stream = zstd::Encoder::new(&mut writer, params.level)?;
        let mut left = plan.new_layer().tar_size();
        while left > 0 {
            let length = left.min(4 << 20);
            let mut op = vec![0];
            let mut rest = length;
            while rest >= 0x80 {
                op.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            op.push(rest as u8);
            stream.write_all(&op)?;
            io::copy(&mut io::Read::take(&mut input, length), &mut stream)?;
            left -= length;
        }
        stream.finish().map(drop)
    };
    write().map_err(DiffError::host("write the delta of", tar))?;
    Ok(MadeDelta {
        digest: writer.hasher.finish(),
        size: writer.size,
        images: BTreeSet::new(),
    })
}
