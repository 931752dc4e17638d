//! One file of a file-based catalog: a stream of JSON objects, or of YAML documents.
//!
//! As the programs that serve catalogs tell them apart (`NewYAMLOrJSONDecoder` of k8s.io/apimachinery): a file whose first
//! character is a brace is JSON, objects one after the other with or without blanks between; when that fails before the
//! third object, it is YAML after all. YAML documents are separated by lines that begin with `---`; the text between is
//! handed to the parser as a document of its own, so that memory is bounded by the largest one.

use std::fs::File;
use std::io::{BufRead as _, Seek as _};

use serde::de::DeserializeSeed as _;

use super::bounded_reader::{Allowance, DOCUMENT_LIMIT, Watched};
use super::collection::Collection;
use super::error::CatalogError;
use super::fbc_document::{DocumentSeed, Meter};
use super::fbc_yaml;

/// JSON objects after which the file is JSON for sure.
const SURELY_JSON: usize = 2;

/// Reads the documents of `file` into `collection`; `path` is for messages.
pub(super) fn read(
    path: &str,
    mut file: File,
    collection: &mut Collection<'_>,
    meter: &Meter,
    allowance: &Allowance<'_>,
) -> Result<(), CatalogError> {
    let mut reader = FileReader {
        path,
        collection,
        meter,
        allowance,
        documents: 0,
    };
    let again = file.try_clone().map_err(|error| reader.io(&error))?;
    if !reader.is_json(&mut file)? {
        return reader.yaml(file, 0);
    }
    let json = reader.json(again);
    let Err(first @ CatalogError::Malformed { .. }) = json else {
        return json;
    };
    if reader.documents >= SURELY_JSON {
        return Err(first);
    }
    // What the two are taken for may be wrong for either, and it looked like JSON.
    file.rewind().map_err(|error| reader.io(&error))?;
    match reader.yaml(file, reader.documents) {
        Err(CatalogError::Malformed { .. }) => Err(first),
        other => other,
    }
}

struct FileReader<'f, 'r, 'a> {
    path: &'f str,
    collection: &'f mut Collection<'r>,
    meter: &'f Meter,
    allowance: &'f Allowance<'a>,
    /// How many were taken in.
    documents: usize,
}

impl FileReader<'_, '_, '_> {
    /// Whether the first character that is not blank is a brace. The file is then at its start again.
    fn is_json(&self, file: &mut File) -> Result<bool, CatalogError> {
        let copy = file.try_clone().map_err(|error| self.io(&error))?;
        let mut bytes = Watched::buffered(copy, self.allowance);
        let first = loop {
            let chunk = bytes.fill_buf().map_err(|error| self.failed(&error))?;
            let blank = chunk.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            match chunk.get(blank) {
                Some(&byte) => break Some(byte),
                None if chunk.is_empty() => break None,
                None => bytes.consume(blank),
            }
        };
        file.rewind().map_err(|error| self.io(&error))?;
        Ok(first == Some(b'{'))
    }

    fn json(&mut self, file: File) -> Result<(), CatalogError> {
        let bytes = Watched::buffered(file, self.allowance);
        let mut json = serde_json::Deserializer::from_reader(bytes);
        loop {
            self.allowance.renew();
            // The error of `end` is that there is more, and where; or one that comes again.
            let Err(more) = json.end() else { return Ok(()) };
            let first_line = more.line() as u64;
            let (collection, mark) = (&*self.collection, self.meter.mark());
            let seed = DocumentSeed {
                is_wanted: &|package| collection.is_wanted(package),
                meter: self.meter,
            };
            let document = match seed.deserialize(&mut json) {
                Ok(document) => document,
                Err(error) => {
                    self.meter.rewind(mark);
                    self.allowance.exceeded(self.path)?;
                    if error.is_io() {
                        return Err(self.io(&error));
                    }
                    return Err(self.malformed(error.line() as u64, error.to_string()));
                }
            };
            let document = document.map(|document| self.collection.take(document));
            let kept = document
                .unwrap_or(Ok(false))
                .map_err(|why| self.malformed(first_line, format!("the object from here on: {why}")))?;
            if !kept {
                self.meter.rewind(mark);
            }
            self.documents += 1;
        }
    }

    /// The same for YAML, but for the first `skip` documents.
    fn yaml(&mut self, file: File, skip: usize) -> Result<(), CatalogError> {
        let mut bytes = Watched::buffered(file, self.allowance);
        let mut text = Vec::new();
        let (mut first_line, mut line, mut number) = (1, 0, 0);
        loop {
            let start = text.len();
            let left = DOCUMENT_LIMIT.saturating_sub(start as u64);
            let read = std::io::Read::take(&mut bytes, left)
                .read_until(b'\n', &mut text)
                .map_err(|error| self.failed(&error))?;
            line += 1;
            if text.len() as u64 >= DOCUMENT_LIMIT {
                return Err(CatalogError::TooMuch {
                    file: self.path.to_owned(),
                    limit: DOCUMENT_LIMIT,
                    what: "bytes in one document",
                });
            }
            let ends = read == 0 || text[start..].starts_with(b"---");
            if !ends {
                continue;
            }
            if read > 0 {
                let after = text[start + 3..].trim_ascii();
                if !after.is_empty() && after[0] != b'#' {
                    return Err(self.malformed(line, "after `---` there is more on the line".to_owned()));
                }
                text.truncate(start);
            }
            if !text.trim_ascii().is_empty() {
                number += 1;
                if number > skip {
                    self.yaml_document(&text, first_line)?;
                }
            }
            text.clear();
            self.allowance.renew();
            first_line = line + 1;
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn yaml_document(&mut self, text: &[u8], first_line: u64) -> Result<(), CatalogError> {
        self.allowance.cancel.check()?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let before = &text[..error.valid_up_to()];
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            self.malformed(first_line + lines as u64, "it is not UTF-8".to_owned())
        })?;
        if let Some(package) = fbc_yaml::package_of(text)
            && !self.collection.is_wanted(package)
        {
            self.collection.name(package);
            self.documents += 1;
            return Ok(());
        }
        let (collection, mark) = (&*self.collection, self.meter.mark());
        let seed = DocumentSeed {
            is_wanted: &|package| collection.is_wanted(package),
            meter: self.meter,
        };
        let document = fbc_yaml::parse(text, seed).map_err(|(line, why)| {
            self.meter.rewind(mark);
            self.malformed(first_line + line.saturating_sub(1), why)
        })?;
        let Some(document) = document else { return Ok(()) };
        let kept = self
            .collection
            .take(document)
            .map_err(|why| self.malformed(first_line, format!("the document from here on: {why}")))?;
        if !kept {
            self.meter.rewind(mark);
        }
        self.documents += 1;
        Ok(())
    }

    /// The error of a read: perhaps our own limit.
    fn failed(&self, error: &std::io::Error) -> CatalogError {
        match self.allowance.exceeded(self.path) {
            Err(exceeded) => exceeded,
            Ok(()) => self.io(error),
        }
    }

    fn io(&self, why: &dyn std::fmt::Display) -> CatalogError {
        CatalogError::Io {
            file: self.path.to_owned(),
            why: why.to_string(),
        }
    }

    fn malformed(&self, line: u64, why: String) -> CatalogError {
        // The parsers say the line again, and that of YAML counts from the document's first.
        let place = why.rfind(" at line ").unwrap_or(why.len());
        CatalogError::Malformed {
            file: self.path.to_owned(),
            line,
            why: why[..place].to_owned(),
        }
    }
}
