//! Tests the signature policy with files and expected answers of the corpus.

use std::path::{Path, PathBuf};

/// A file or directory of the corpus; nothing, with a message, if there is no corpus.
pub(super) fn corpus(path: &str) -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::skip(&format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus.join(path))
}
