//! Reads and writes tar-split files: the data that, together with the unpacked files, recreates a layer's tar byte
//! for byte.
//!
//! The store keeps it as `overlay-layers/<id>.tar-split.gz`. podman and skopeo read it when they save, push or reuse
//! a layer. It is gzip of one JSON object per line, in the order of the tar:
//!
//! ```text
//! {"type":2,"payload":"<base64 of headers, padding>","position":0}                   a Segment: raw bytes
//! {"type":1,"name":"bin/sh","size":9,"payload":"<base64 of the CRC>","position":1}   a File: the content of a path
//! {"type":1,"name":"etc/","payload":null,"position":2}                               a File without content
//! ```
//!
//! `name_raw`, base64, replaces a `name` that is not UTF-8. The CRC is CRC-64/GO-ISO, eight bytes, big-endian. The
//! format is that of vbatts/tar-split (`tar/storage/entry.go`). The output equals that of podman 5.4, with one
//! difference: content that cannot be read back from its path is stored in Segments.

mod error;
mod reader;
mod records;
mod writer;

pub use error::TarSplitError;
pub use reader::assemble;
pub(in crate::store) use reader::{Assembler, FileEvent};
pub use records::{Record, Records};
pub(in crate::store) use writer::{FileChecksum, Writer};

/// `type` of a File.
const FILE: u8 = 1;

/// `type` of a Segment.
const SEGMENT: u8 = 2;

/// The checksum of a File's content.
const CRC: crc_fast::CrcAlgorithm = crc_fast::CrcAlgorithm::Crc64GoIso;
