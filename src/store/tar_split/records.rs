//! Parses the lines of an uncompressed tar-split, one record at a time.

use std::borrow::Cow;
use std::io::{BufRead, Read as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;

use super::{FILE, SEGMENT, TarSplitError};

/// The longest line. Ours have at most 1.4 MB; podman's contain a few extended headers, which are limited to 1 MiB
/// each.
const MAX_LINE: u64 = 16 << 20;

#[derive(Deserialize)]
struct Line<'a> {
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

/// One line.
#[derive(Debug, PartialEq, Eq)]
pub enum Record {
    /// Bytes of the tar.
    Segment(Vec<u8>),
    /// The content of a path.
    File {
        /// The name in the tar's header.
        name: Vec<u8>,
        /// Bytes of the content.
        size: u64,
        /// Checksum of the content, as stored.
        crc: Vec<u8>,
    },
}

/// Reads the records in the order of the tar.
#[derive(Debug)]
pub struct Records<R> {
    lines: R,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Records<R> {
    /// Reads lines from the current position.
    pub fn new(lines: R) -> Self {
        Self {
            lines,
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next record; none at the end.
    ///
    /// # Errors
    /// If the line cannot be read or is not a record.
    pub fn next_record(&mut self) -> Result<Option<Record>, TarSplitError> {
        self.line.clear();
        let mut limited = (&mut self.lines).take(MAX_LINE);
        let read = limited.read_until(b'\n', &mut self.line);
        let read = read.map_err(TarSplitError::Read)?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        if read as u64 == MAX_LINE {
            return Err(self.fault(format!("longer than {MAX_LINE} bytes")));
        }
        let record = parse(&self.line).map_err(|reason| self.fault(reason))?;
        Ok(Some(record))
    }

    /// An error in the record that was read last.
    pub fn fault(&self, reason: String) -> TarSplitError {
        let line = self.number;
        TarSplitError::Record { line, reason }
    }
}

fn parse(line: &[u8]) -> Result<Record, String> {
    let record: Line<'_> = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let decode = |text: &str| BASE64.decode(text).map_err(|error| error.to_string());
    let payload = decode(record.payload.as_deref().unwrap_or_default())?;
    match record.r#type {
        SEGMENT => Ok(Record::Segment(payload)),
        FILE => Ok(Record::File {
            name: match &*record.name_raw {
                "" => record.name.as_bytes().to_vec(),
                raw => decode(raw)?,
            },
            size: u64::try_from(record.size).map_err(|error| error.to_string())?,
            crc: payload,
        }),
        other => Err(format!("unknown type {other}")),
    }
}
