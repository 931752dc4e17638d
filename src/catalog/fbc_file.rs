//! Reads one file of a file-based catalog: a stream of JSON objects or of YAML documents.
//!
//! The formats are distinguished as in the programs that serve catalogs (`NewYAMLOrJSONDecoder` of k8s.io/apimachinery): a
//! file whose first character is a brace is a sequence of JSON objects, with or without blanks between them. If parsing
//! fails before the third object, it is parsed as YAML. Lines that begin with `---` separate YAML documents; each document
//! is parsed by itself, so that the largest one bounds the memory.

use std::fs::File;
use std::io::{BufRead as _, Seek as _};

use serde::de::DeserializeSeed as _;

use super::bounded_reader::{BoundedReader, DOCUMENT_LIMIT, ReadBudget};
use super::collection::Collection;
use super::error::CatalogError;
use super::fbc_document::{FbcDocumentSeed, TextBudget};
use super::fbc_yaml;

/// After this many JSON objects, a file is not parsed as YAML any more.
const SURELY_JSON: usize = 2;

/// Reads the documents of `file` into `collection`; `path` is for messages.
pub(super) fn read(
    path: &str,
    mut file: File,
    collection: &mut Collection<'_>,
    texts: &TextBudget,
    budget: &ReadBudget<'_>,
) -> Result<(), CatalogError> {
    let mut reader = FileReader {
        path,
        collection,
        texts,
        budget,
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
    // If it is neither, the JSON error is more useful, because the file begins like JSON.
    file.rewind().map_err(|error| reader.io(&error))?;
    match reader.yaml(file, reader.documents) {
        Err(CatalogError::Malformed { .. }) => Err(first),
        other => other,
    }
}

struct FileReader<'f, 'r, 'a> {
    path: &'f str,
    collection: &'f mut Collection<'r>,
    texts: &'f TextBudget,
    budget: &'f ReadBudget<'a>,
    /// The number of parsed documents.
    documents: usize,
}

impl FileReader<'_, '_, '_> {
    /// Whether the first character that is not blank is a brace. Rewinds the file.
    fn is_json(&self, file: &mut File) -> Result<bool, CatalogError> {
        let copy = file.try_clone().map_err(|error| self.io(&error))?;
        let mut bytes = BoundedReader::buffered(copy, self.budget);
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
        let bytes = BoundedReader::buffered(file, self.budget);
        let mut json = serde_json::Deserializer::from_reader(bytes);
        loop {
            self.budget.next_document();
            // An error of `end` means that there is more text, and has its position; or it is repeated below.
            let Err(more) = json.end() else { return Ok(()) };
            let first_line = more.line() as u64;
            let (collection, mark) = (&*self.collection, self.texts.mark());
            let seed = FbcDocumentSeed {
                is_wanted: &|package| collection.is_wanted(package),
                texts: self.texts,
            };
            let document = match seed.deserialize(&mut json) {
                Ok(document) => document,
                Err(error) => {
                    self.texts.rewind(mark);
                    self.budget.check(self.path)?;
                    if error.is_io() {
                        return Err(self.io(&error));
                    }
                    return Err(self.malformed(error.line() as u64, error.to_string()));
                }
            };
            let document = document.map(|document| self.collection.add(document));
            let kept = document
                .unwrap_or(Ok(false))
                .map_err(|why| self.malformed(first_line, format!("the object that starts here: {why}")))?;
            if !kept {
                self.texts.rewind(mark);
            }
            self.documents += 1;
        }
    }

    /// Reads YAML documents except the first `skip`.
    fn yaml(&mut self, file: File, skip: usize) -> Result<(), CatalogError> {
        let mut bytes = BoundedReader::buffered(file, self.budget);
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
                return Err(CatalogError::LimitExceeded {
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
                    return Err(self.malformed(line, "there is more text on the line of `---`".to_owned()));
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
            self.budget.next_document();
            first_line = line + 1;
            if read == 0 {
                return Ok(());
            }
        }
    }

    fn yaml_document(&mut self, text: &[u8], first_line: u64) -> Result<(), CatalogError> {
        self.budget.cancel.check()?;
        let text = std::str::from_utf8(text).map_err(|error| {
            let before = &text[..error.valid_up_to()];
            let lines = before.iter().filter(|byte| **byte == b'\n').count();
            self.malformed(first_line + lines as u64, "it is not UTF-8".to_owned())
        })?;
        if let Some(package) = fbc_yaml::package_of(text)
            && !self.collection.is_wanted(package)
        {
            self.collection.add_name(package);
            self.documents += 1;
            return Ok(());
        }
        let (collection, mark) = (&*self.collection, self.texts.mark());
        let seed = FbcDocumentSeed {
            is_wanted: &|package| collection.is_wanted(package),
            texts: self.texts,
        };
        let document = fbc_yaml::parse(text, seed).map_err(|(line, why)| {
            self.texts.rewind(mark);
            self.malformed(first_line + line.saturating_sub(1), why)
        })?;
        let Some(document) = document else { return Ok(()) };
        let kept = self
            .collection
            .add(document)
            .map_err(|why| self.malformed(first_line, format!("the document that starts here: {why}")))?;
        if !kept {
            self.texts.rewind(mark);
        }
        self.documents += 1;
        Ok(())
    }

    /// The error of a read, which may be caused by the budget.
    fn failed(&self, error: &std::io::Error) -> CatalogError {
        match self.budget.check(self.path) {
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
        // Remove the parser's line, which in YAML counts from the start of the document.
        let end = why.rfind(" at line ").unwrap_or(why.len());
        CatalogError::Malformed {
            file: self.path.to_owned(),
            line,
            why: why[..end].to_owned(),
        }
    }
}
