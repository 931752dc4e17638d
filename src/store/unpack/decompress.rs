//! Decompresses a layer's blob to its plain tar.

use std::io::{Read, Write};

use super::error::UnpackError;
use super::limits::UnpackLimits;
use super::tar_stream::TarStream;
use crate::cancel::Cancel;
use crate::oci::DiffId;

/// Writes the uncompressed bytes of `blob` to `tar`, and returns their SHA-256 and their number.
pub fn decompress(
    blob: impl Read,
    mut tar: impl Write,
    limits: UnpackLimits<'_>,
    cancel: &Cancel,
) -> Result<(DiffId, u64), UnpackError> {
    let mut stream = TarStream::open(blob, limits, cancel)?;
    loop {
        let chunk = stream.take(u64::MAX)?;
        if chunk.is_empty() {
            return Ok(stream.finish());
        }
        let written = tar.write_all(chunk);
        written.map_err(|error| UnpackError::host("write", b"the tar", error))?;
    }
}
