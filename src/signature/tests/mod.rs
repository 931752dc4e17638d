//! Helpers of the tests of the signature policy: files and expected answers of the corpus.

mod rules;
mod verdicts;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::*;
use crate::oci::{Digest, Reference};

const FIXTURES: &str = "policy-json/containers-image-signature-fixtures";

/// A file or directory of the corpus; nothing, with a message, if there is no corpus.
pub(super) fn corpus(path: &str) -> Option<PathBuf> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/corpus");
    if !corpus.exists() {
        crate::notice::skip(&format!("no corpus at {}", corpus.display()));
        return None;
    }
    Some(corpus.join(path))
}

fn json_of(path: &Path) -> Value {
    let text = std::fs::read(path).expect("a file of the corpus");
    serde_json::from_slice(&text).expect("JSON")
}

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn policy(policy: Value) -> Policy {
    Policy::parse(policy.to_string().as_bytes()).expect("a policy")
}

/// Key files below a directory.
#[derive(Debug)]
struct Directory(PathBuf);

impl KeyFiles for Directory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(self.0.join(path))
    }
}

/// No key files.
fn no_files() -> Directory {
    Directory("/nonexistent".into())
}

/// The signatures of an image in a directory, and the digest of its manifest.
fn image_in(directory: &Path) -> (Digest, Vec<Signature>) {
    let manifest = std::fs::read(directory.join("manifest.json")).expect("a manifest");
    let blobs = (1..).map_while(|number| std::fs::read(directory.join(format!("signature-{number}"))).ok());
    let signatures = blobs.map(|blob| Signature::from_blob(&blob).expect("a signature"));
    (Digest::of(&manifest), signatures.collect())
}
