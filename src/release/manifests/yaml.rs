//! Parses YAML as the Kubernetes decoder does, within limits.

use serde_json::Value;
use serde_saphyr::options::DuplicateKeyPolicy;

use crate::spec::shown;

/// The deepest nesting; the parser recurses. Real manifests have 40 levels.
const DEPTH_LIMIT: usize = 64;

/// The most scalars, lists and mappings of a document. A manifest that names images has less than 1,000.
const NODES_LIMIT: usize = 100_000;

/// The most bytes of all scalars of a document, with those that aliases repeat.
const SCALARS_LIMIT: usize = 32 << 20;

/// The most bytes that are parsed of a release; hostile ones take a second for each 2 MiB. Of 4.12.0, 1 MB is parsed.
const PARSED_LIMIT: usize = 8 << 20;

/// Parses the documents of a release.
#[derive(Debug)]
pub(super) struct Parser {
    bytes_left: usize,
}

impl Parser {
    pub(super) fn new() -> Self {
        Self {
            bytes_left: PARSED_LIMIT,
        }
    }

    /// Parses one document.
    pub(super) fn parse(&mut self, text: &str) -> Result<Value, String> {
        let Some(left) = self.bytes_left.checked_sub(text.len()) else {
            return Err(format!(
                "the release's manifests have more than {PARSED_LIMIT} bytes that decide about inclusion and images"
            ));
        };
        self.bytes_left = left;
        let options = serde_saphyr::options! {
            with_snippet: false,
            // Manifests of real releases have duplicate keys; the operators' decoder uses the last one.
            duplicate_keys: DuplicateKeyPolicy::LastWins,
            budget: serde_saphyr::budget! {
                max_depth: DEPTH_LIMIT,
                max_nodes: NODES_LIMIT,
                max_events: 2 * NODES_LIMIT,
                max_total_scalar_bytes: SCALARS_LIMIT,
            },
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| shown(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parser_ends_when_it_has_parsed_enough() {
        let mut parser = Parser { bytes_left: 9 };
        assert!(parser.parse("a: 1").is_ok());
        assert!(parser.parse("a: 1").is_ok());
        assert!(
            parser
                .parse("a: 1")
                .is_err_and(|why| why.contains("more than 8388608 bytes"))
        );
    }
}
