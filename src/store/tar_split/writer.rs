//! Writes a tar-split, byte for byte as podman 5.4 does inside the gzip.

use std::io::{self, BufWriter, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::{CRC, FILE, SEGMENT};

/// The most raw bytes in one Segment. Readers keep a Segment in memory; podman splits trailing bytes at this length.
const MAX_SEGMENT: usize = 1 << 20;

/// Accepts a tar's raw bytes and files in their order.
pub(in crate::store) struct Writer<W: Write> {
    /// Buffered, because the encoder passes on a few bytes at each write.
    gzip: GzEncoder<BufWriter<W>>,
    /// Raw bytes since the last File.
    segment: Vec<u8>,
    line: String,
    position: u64,
}

/// Checksum and length of a File's content.
pub(in crate::store) struct FileChecksum {
    crc: crc_fast::Digest,
    length: u64,
}

impl FileChecksum {
    /// No content yet.
    pub(in crate::store) fn new() -> Self {
        Self {
            crc: crc_fast::Digest::new(CRC),
            length: 0,
        }
    }

    /// Adds the next bytes.
    pub(in crate::store) fn update(&mut self, bytes: &[u8]) {
        self.crc.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Bytes added.
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// The checksum in the byte order of the format.
    pub(super) fn crc(&self) -> [u8; 8] {
        self.crc.finalize().to_be_bytes()
    }
}

impl<W: Write> Writer<W> {
    /// Writes gzip to `out`.
    pub(in crate::store) fn new(out: W) -> Self {
        Self {
            // The fastest level, as podman uses it.
            gzip: GzEncoder::new(BufWriter::new(out), Compression::fast()),
            segment: Vec::new(),
            line: String::new(),
            position: 0,
        }
    }

    /// Adds raw bytes of the tar.
    pub(in crate::store) fn raw(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.segment.len() == MAX_SEGMENT {
                self.end_segment()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(MAX_SEGMENT - self.segment.len()));
            self.segment.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Ends the Segment; the next raw bytes start another one.
    pub(in crate::store) fn end_segment(&mut self) -> io::Result<()> {
        if self.segment.is_empty() {
            return Ok(());
        }
        self.start_line(SEGMENT);
        self.line.push_str(",\"payload\":\"");
        BASE64.encode_string(&self.segment, &mut self.line);
        self.line.push('"');
        self.segment.clear();
        self.end_line()
    }

    /// Adds an entry. Its `content`, if any, can be read back from the path `name`.
    pub(in crate::store) fn file(&mut self, name: &[u8], content: Option<&FileChecksum>) -> io::Result<()> {
        self.end_segment()?;
        self.start_line(FILE);
        match str::from_utf8(name) {
            Ok("") => {}
            Ok(name) => {
                self.line.push_str(",\"name\":\"");
                push_json(name, &mut self.line);
                self.line.push('"');
            }
            Err(_) => {
                self.line.push_str(",\"name_raw\":\"");
                BASE64.encode_string(name, &mut self.line);
                self.line.push('"');
            }
        }
        match content.filter(|content| content.length > 0) {
            Some(content) => {
                self.line
                    .push_str(&format!(",\"size\":{},\"payload\":\"", content.length));
                BASE64.encode_string(content.crc(), &mut self.line);
                self.line.push('"');
            }
            None => self.line.push_str(",\"payload\":null"),
        }
        self.end_line()
    }

    /// Writes the remaining bytes.
    pub(in crate::store) fn finish(mut self) -> io::Result<W> {
        self.end_segment()?;
        let out = self.gzip.finish()?.into_inner();
        out.map_err(io::IntoInnerError::into_error)
    }

    fn start_line(&mut self, kind: u8) {
        self.line.clear();
        self.line.push_str(&format!("{{\"type\":{kind}"));
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.line
            .push_str(&format!(",\"position\":{}}}\n", self.position));
        self.position += 1;
        self.gzip.write_all(self.line.as_bytes())
    }
}

/// Appends `text` as Go's `encoding/json` escapes it, including characters that are special in HTML and JavaScript.
fn push_json(text: &str, line: &mut String) {
    for char in text.chars() {
        match char {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\u{8}' => line.push_str("\\b"),
            '\u{c}' => line.push_str("\\f"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                line.push_str(&format!("\\u{:04x}", u32::from(char)));
            }
            char => line.push(char),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    fn written(write: impl FnOnce(&mut Writer<Vec<u8>>) -> io::Result<()>) -> String {
        let mut writer = Writer::new(Vec::new());
        write(&mut writer).unwrap();
        let gzip = writer.finish().unwrap();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&gzip[..])
            .read_to_string(&mut text)
            .unwrap();
        text
    }

    #[test]
    fn writes_what_podman_writes() {
        let text = written(|writer| {
            writer.raw(b"head")?;
            writer.raw(b"er")?;
            let mut content = FileChecksum::new();
            content.update(b"1234");
            content.update(b"56789");
            writer.file(b"a<b>&\"\\\x7f\x01\t\xe2\x80\xa8\xc3\xa4", Some(&content))?;
            writer.file(b"\xff", None)?;
            writer.file(b"", Some(&FileChecksum::new()))?;
            writer.raw(b"end")?;
            writer.end_segment()?;
            writer.end_segment()?;
            writer.raw(b"more")
        });
        let expected = [
            r#"{"type":2,"payload":"aGVhZGVy","position":0}"#,
            concat!(
                r#"{"type":1,"name":"a\u003cb\u003e\u0026\"\\"#,
                "\x7f",
                r#"\u0001\t\u2028ä","size":9,"payload":"uQlWx3WkEAE=","position":1}"#
            ),
            r#"{"type":1,"name_raw":"/w==","payload":null,"position":2}"#,
            r#"{"type":1,"payload":null,"position":3}"#,
            r#"{"type":2,"payload":"ZW5k","position":4}"#,
            r#"{"type":2,"payload":"bW9yZQ==","position":5}"#,
            "",
        ];
        assert_eq!(text.split('\n').collect::<Vec<_>>(), expected);
    }

    #[test]
    fn long_segments_are_cut() {
        let text = written(|writer| writer.raw(&vec![0; 5 * MAX_SEGMENT / 2]));
        assert_eq!(text.lines().count(), 3);
        assert!(text.lines().all(|line| line.len() < 2 * MAX_SEGMENT));
    }
}
