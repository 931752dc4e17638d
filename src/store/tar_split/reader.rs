//! Puts a tar together again from a tar-split and the unpacked layer.
//!
//! Files are opened below the layer's directory and nowhere else, and checked against the length and checksum
//! that the tar-split has for them.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::BorrowedFd;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::bufread::MultiGzDecoder;
use rustix::fs::{FileType, OFlags, ResolveFlags};
use serde::Deserialize;

use super::writer::Content;
use super::{FILE, SEGMENT, TarSplitError};
use crate::store::unpack::{Name, Seen, clean, in_root, open_in};

/// Bytes of one line. Ours have 1.4 MB at most; podman's as much as a few extended headers, which it caps at 1 MiB
/// each.
const MAX_LINE: u64 = 16 << 20;

/// Bytes that are read from a file at once.
const BUFFER: usize = 256 << 10;

#[derive(Deserialize)]
struct Record<'a> {
    r#type: u8,
    #[serde(borrow, default)]
    name: Cow<'a, str>,
    #[serde(borrow, default)]
    name_raw: Cow<'a, str>,
    #[serde(default)]
    size: i64,
    #[serde(borrow)]
    payload: Option<Cow<'a, str>>,
}

/// Writes the tar that `tar_split`, compressed as the store keeps it, and the files in `diff` make up. Returns its
/// length. The caller compares the digest: headers are copied from the tar-split as they are.
pub fn assemble(
    tar_split: impl Read,
    diff: BorrowedFd<'_>,
    mut out: impl Write,
) -> Result<u64, TarSplitError> {
    let mut lines = BufReader::new(MultiGzDecoder::new(BufReader::new(tar_split)));
    let (mut line, mut number, mut length) = (Vec::new(), 0, 0);
    let mut seen = Seen::default();
    let mut buffer = vec![0; BUFFER];
    loop {
        line.clear();
        let mut limited = Read::by_ref(&mut lines).take(MAX_LINE);
        let read = limited
            .read_until(b'\n', &mut line)
            .map_err(TarSplitError::Read)?;
        if read == 0 {
            return Ok(length);
        }
        number += 1;
        let bad = |reason: String| TarSplitError::Record { line: number, reason };
        if read as u64 == MAX_LINE {
            return Err(bad(format!("longer than {MAX_LINE} bytes")));
        }
        let record: Record<'_> = serde_json::from_slice(&line).map_err(|error| bad(error.to_string()))?;
        let payload = record.payload.as_deref().unwrap_or_default();
        let payload = BASE64.decode(payload).map_err(|error| bad(error.to_string()))?;
        match record.r#type {
            SEGMENT => {
                out.write_all(&payload).map_err(TarSplitError::Write)?;
                length += payload.len() as u64;
            }
            FILE => {
                let name = match &*record.name_raw {
                    "" => record.name.as_bytes().to_vec(),
                    raw => BASE64.decode(raw).map_err(|error| bad(error.to_string()))?,
                };
                // podman reads no tar-split that names a path twice.
                if !seen.insert(&clean(&name)) {
                    return Err(bad(format!("second entry for `{}`", Name::new(&name))));
                }
                let size = u64::try_from(record.size).map_err(|error| bad(error.to_string()))?;
                if size > 0 {
                    copy(&name, size, &payload, diff, &mut buffer, &mut out)?;
                    length += size;
                }
            }
            other => return Err(bad(format!("unknown type {other}"))),
        }
    }
}

fn copy(
    name: &[u8],
    size: u64,
    crc: &[u8],
    diff: BorrowedFd<'_>,
    buffer: &mut [u8],
    out: &mut impl Write,
) -> Result<(), TarSplitError> {
    let failed = |source: io::Error| {
        let path = Name::new(name);
        TarSplitError::File { path, source }
    };
    let mut file = open(name, diff).map_err(failed)?;
    let mut content = Content::new();
    loop {
        let piece = match file.read(buffer) {
            Ok(0) => break,
            Ok(read) => &buffer[..read],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        content.update(piece);
        if content.length() > size {
            break;
        }
        out.write_all(piece).map_err(TarSplitError::Write)?;
    }
    let differs = |reason| {
        let path = Name::new(name);
        Err(TarSplitError::Differs { path, reason })
    };
    if content.length() != size {
        return differs(format!(
            "expected {size} bytes, found {} or more",
            content.length()
        ));
    }
    if content.crc() != crc {
        let (expected, found) = (BASE64.encode(crc), BASE64.encode(content.crc()));
        return differs(format!("expected checksum {expected}, found {found}"));
    }
    Ok(())
}

/// Opens a regular file, and never a device or a FIFO, however the layer looks like by now.
fn open(name: &[u8], diff: BorrowedFd<'_>) -> io::Result<File> {
    let clean = clean(name);
    let open = |flags| {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        open_in(diff, in_root(&clean), flags, ResolveFlags::empty())
    };
    let stat = rustix::fs::fstat(open(OFlags::PATH)?)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(open(OFlags::RDONLY | OFlags::NONBLOCK)?.into())
}
