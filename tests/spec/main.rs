//! Compares the version spec, references and payloads with the answers of other programs: the corpus, and the real `grep`.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod documents;
mod grep;
mod keys;
#[path = "../it/notice.rs"]
#[expect(dead_code, reason = "shared with the other tests")]
mod notice;
mod payloads;
mod printouts;
mod references;

use std::path::Path;

/// A file of the corpus; `None`, with a message, if the corpus is missing.
fn corpus(file: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../shared/corpus")
        .join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Some(text),
        Err(error) => {
            notice::print("SKIPPED", &format!("no corpus at {}: {error}", path.display()));
            None
        }
    }
}
