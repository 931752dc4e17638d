//! Reads `<id>.tar-split.gz` with a second implementation: as lines to compare, and as the tar that it rebuilds.
//!
//! ```text
//! {"type":2,"payload":"<base64>","position":0}                                     Segment: raw bytes
//! {"type":1,"name":"etc/hosts","size":9,"payload":"<base64 of crc64>","position":1}  File: bytes of diff/etc/hosts
//! ```

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::image::sha256;

/// A line of a tar-split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Segment(Vec<u8>),
    File {
        name: Vec<u8>,
        size: u64,
        crc: Option<Vec<u8>>,
    },
}

/// Lines to compare: as they stand, without the empty segment that podman 4.3.1 ends with.
pub(super) fn lines(graph_root: &Path, id: &str) -> Vec<String> {
    let mut lines: Vec<String> = match stored(graph_root, id).and_then(|gzip| text(&gzip)) {
        Ok(text) => text.lines().map(str::to_owned).collect(),
        Err(why) => return vec![why],
    };
    lines.pop_if(|line| line.starts_with(r#"{"type":2,"payload":"","#));
    lines
}

/// The lines, with neighbouring segments joined: where they are cut is free.
pub(crate) fn joined(gzip: &[u8]) -> Result<Vec<Part>, String> {
    let mut joined: Vec<Part> = Vec::new();
    for part in parts(gzip)? {
        match (joined.last_mut(), part) {
            (Some(Part::Segment(open)), Part::Segment(bytes)) => open.extend(bytes),
            (_, Part::Segment(bytes)) if bytes.is_empty() => {}
            (_, part) => joined.push(part),
        }
    }
    Ok(joined)
}

/// Digest of the rebuilt tar: the layer's `diff-digest`, if tar-split and tree are right.
pub(super) fn rebuilt_digest(graph_root: &Path, id: &str) -> Result<String, String> {
    let diff = graph_root.join("overlay").join(id).join("diff");
    rebuild(&stored(graph_root, id)?, &diff).map(|tar| sha256(&tar))
}

/// Rebuilds the tar. Files are opened inside `diff/`, and their CRCs are checked. As in tar-split's own reader, a name may
/// occur once.
pub(crate) fn rebuild(gzip: &[u8], diff: &Path) -> Result<Vec<u8>, String> {
    let mut tar = Vec::new();
    let mut seen = BTreeSet::new();
    for part in parts(gzip)? {
        match part {
            Part::Segment(bytes) => tar.extend(bytes),
            Part::File { name, size, crc } => {
                let shown = name.escape_ascii().to_string();
                if !seen.insert(cleaned(&name)) {
                    return Err(format!("`{shown}` is twice in the tar-split"));
                }
                if size == 0 {
                    continue;
                }
                // Go joins before it cleans, and so leaves the layer through `/..`.
                let path = cleaned(&[diff.as_os_str().as_bytes(), b"/", &name].concat());
                let content = fs::read(OsStr::from_bytes(&path))
                    .map_err(|error| format!("`{shown}` of the tar-split: {error}"))?;
                if content.len() as u64 != size {
                    return Err(format!(
                        "`{shown}` has {} bytes, the tar-split says {size}",
                        content.len()
                    ));
                }
                if crc.as_deref() != Some(&crc64(&content).to_be_bytes()) {
                    return Err(format!("`{shown}` has another CRC than the tar-split says"));
                }
                tar.extend(content);
            }
        }
    }
    Ok(tar)
}

fn stored(graph_root: &Path, id: &str) -> Result<Vec<u8>, String> {
    let path = graph_root
        .join("overlay-layers")
        .join(format!("{id}.tar-split.gz"));
    fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
}

fn text(gzip: &[u8]) -> Result<String, String> {
    let mut text = String::new();
    let read = flate2::read::MultiGzDecoder::new(gzip).read_to_string(&mut text);
    read.map(|_| text)
        .map_err(|error| format!("the tar-split: {error}"))
}

fn parts(gzip: &[u8]) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for (number, line) in text(gzip)?.lines().enumerate() {
        let entry: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        if entry["position"] != number {
            return Err(format!("line {number} is of position {}", entry["position"]));
        }
        let text = |key: &str| entry.get(key).and_then(Value::as_str);
        let decode = |key: &str| -> Result<Option<Vec<u8>>, String> {
            let decoded = text(key).map(|text| STANDARD.decode(text)).transpose();
            decoded.map_err(|error| format!("line {number}: {error}"))
        };
        parts.push(match entry["type"].as_u64() {
            Some(2) => Part::Segment(decode("payload")?.unwrap_or_default()),
            Some(1) => Part::File {
                // Go leaves out an empty name.
                name: decode("name_raw")?.unwrap_or_else(|| text("name").unwrap_or_default().into()),
                size: entry.get("size").and_then(Value::as_u64).unwrap_or(0),
                crc: decode("payload")?,
            },
            other => return Err(format!("line {number} is of type {other:?}")),
        });
    }
    Ok(parts)
}

/// Go's `path.Clean`: `..` takes back the part before it, whatever that is.
fn cleaned(name: &[u8]) -> Vec<u8> {
    let is_absolute = name.starts_with(b"/");
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if parts.last().is_some_and(|part| *part != b"..") => drop(parts.pop()),
            b".." if is_absolute => {}
            part => parts.push(part),
        }
    }
    let root: &[u8] = if is_absolute { b"/" } else { b"" };
    [root, &parts.join(&b'/')].concat()
}

/// CRC-64/GO-ISO, bit by bit from its definition: polynomial x⁶⁴+x⁴+x³+x+1 reflected, all ones before and after.
fn crc64(bytes: &[u8]) -> u64 {
    let table: Vec<u64> = (0..256_u64)
        .map(|byte| {
            (0..8).fold(byte, |crc, _| {
                if crc & 1 == 1 {
                    crc >> 1 ^ 0xd800_0000_0000_0000
                } else {
                    crc >> 1
                }
            })
        })
        .collect();
    !bytes.iter().fold(u64::MAX, |crc, byte| {
        table[(crc as u8 ^ byte) as usize] ^ crc >> 8
    })
}

#[test]
fn the_crc_is_that_of_go() {
    assert_eq!(crc64(b"123456789"), 0xb909_56c7_75a4_1001);
}
