//! No policy, signature or key panics, hangs or fills memory; only a rule that accepts anything accepts an image without a
//! true signature, and messages are bounded.
//!
//! Two NULs separate a policy from each signature; the second one begins the blob, as in `\0sigstore-json`. The last part is
//! also the file of every key.
#![no_main]

use std::io;
use std::path::Path;

use jiff::Timestamp;
use libfuzzer_sys::fuzz_target;
use spoke_precache::oci::{Digest, Reference};
use spoke_precache::signature::{KeyFiles, Payload, Policy, Signature};

/// Every key file is this one.
#[derive(Debug)]
struct OneFile(Vec<u8>);

impl KeyFiles for OneFile {
    fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
        Ok(self.0.clone())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.windows(2).position(|pair| pair == [0, 0]) {
        parts.push(&rest[..end]);
        rest = &rest[end + 1..];
    }
    parts.push(rest);
    let signatures: Vec<Signature> = parts.iter().skip(1).filter_map(|blob| read_blob(blob)).collect();
    for parse in [
        Payload::of_simple_signing,
        Payload::of_sigstore,
        Payload::of_release,
    ] {
        if let Err(error) = parse(parts[0]) {
            look_at(&error.to_string());
        }
    }
    let policy = match Policy::parse(parts[0]) {
        Ok(policy) => policy,
        Err(error) => return look_at(&error.to_string()),
    };
    let key = OneFile(parts.last().copied().unwrap_or_default().to_vec());
    for image in [
        "docker.io/library/busybox:latest",
        "quay.io/a/b:1",
        "a.b.example.com:5000/c/d:1",
    ] {
        let image: Reference = image.parse().expect("a reference");
        let rule = policy.rule(&image);
        look_at(&rule.to_string());
        let result = rule.evaluate(
            &image,
            Digest::of(b"manifest"),
            &signatures,
            &key,
            Timestamp::UNIX_EPOCH,
        );
        match result {
            Ok(accepted) => {
                look_at(&accepted.to_string());
                assert!(rule.accepts_anything(), "{accepted}");
            }
            Err(refusal) => {
                look_at(&refusal.to_string());
                assert!(!rule.accepts_anything(), "{refusal}");
            }
        }
        assert!(!rule.rejects() || !rule.accepts_anything());
    }
});

/// A sigstore signature is written as something that is read as the same.
fn read_blob(blob: &[u8]) -> Option<Signature> {
    match Signature::from_blob(blob) {
        Ok(signature) => {
            // The content of a named simple signature may begin with another name.
            if matches!(signature, Signature::Sigstore(_)) {
                assert_eq!(
                    Signature::from_blob(&signature.to_blob()).as_ref(),
                    Ok(&signature)
                );
            }
            Some(signature)
        }
        Err(error) => {
            look_at(&error.to_string());
            None
        }
    }
}

fn look_at(text: &str) {
    assert!(text.len() < 40_000, "{} bytes", text.len());
    assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
}
