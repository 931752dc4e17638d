//! `<id>.tar-split.gz`, read by a reader of its own: as lines to compare, and as the tar that it rebuilds.
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

enum Part {
    Segment(Vec<u8>),
    File {
        name: Vec<u8>,
        size: u64,
        crc: Option<Vec<u8>>,
    },
}

fn text(graph_root: &Path, id: &str) -> Result<String, String> {
    let path = graph_root
        .join("overlay-layers")
        .join(format!("{id}.tar-split.gz"));
    let file = fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut text = String::new();
    flate2::read::MultiGzDecoder::new(file)
        .read_to_string(&mut text)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

fn parts(graph_root: &Path, id: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for (number, line) in text(graph_root, id)?.lines().enumerate() {
        let entry: Map<String, Value> =
            serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))?;
        if entry["position"] != number {
            return Err(format!("line {number} is of position {}", entry["position"]));
        }
        let decode = |key: &str| match entry.get(key).and_then(Value::as_str) {
            Some(text) => STANDARD
                .decode(text)
                .map(Some)
                .map_err(|error| format!("line {number}: {error}")),
            None => Ok(None),
        };
        match entry["type"].as_u64() {
            Some(2) => parts.push(Part::Segment(decode("payload")?.unwrap_or_default())),
            Some(1) => {
                // Go leaves out an empty name.
                let plain = || {
                    entry
                        .get("name")
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .as_bytes()
                        .to_vec()
                };
                parts.push(Part::File {
                    name: decode("name_raw")?.unwrap_or_else(plain),
                    size: entry.get("size").and_then(Value::as_u64).unwrap_or(0),
                    crc: decode("payload")?,
                });
            }
            other => return Err(format!("line {number} is of type {other:?}")),
        }
    }
    Ok(parts)
}

/// Lines to compare: as they stand, without the empty segment that podman 4.3.1 ends with.
pub(super) fn lines(graph_root: &Path, id: &str) -> Vec<String> {
    let mut lines: Vec<String> = match text(graph_root, id) {
        Ok(text) => text.lines().map(str::to_owned).collect(),
        Err(why) => return vec![why],
    };
    lines.pop_if(|line| line.starts_with(r#"{"type":2,"payload":"","#));
    lines
}

/// Rebuilds the tar and returns its digest: the layer's `diff-digest`, if tar-split and tree are right. Files are opened
/// inside `diff/` without following links, and their CRCs are checked. As in tar-split's own reader, a name may occur once.
pub(crate) fn rebuild(graph_root: &Path, id: &str) -> Result<String, String> {
    let diff = graph_root.join("overlay").join(id).join("diff");
    let mut tar = Vec::new();
    let mut seen = BTreeSet::new();
    for part in parts(graph_root, id)? {
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
                // An absolute name is one inside the layer.
                let inside = name
                    .iter()
                    .position(|byte| *byte != b'/')
                    .map_or(&[][..], |at| &name[at..]);
                let content = fs::read(diff.join(OsStr::from_bytes(inside)))
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
    Ok(sha256(&tar))
}

/// Without empty and `.` parts.
fn cleaned(name: &[u8]) -> Vec<u8> {
    let parts = name
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".");
    parts.collect::<Vec<_>>().join(&b'/')
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
