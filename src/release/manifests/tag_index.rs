//! Finds the images of a payload in a text, by digest or pullspec.

use std::collections::HashMap;

use crate::release::payload::Payload;

const ALGORITHM: &str = "sha256:";

/// Hexadecimal digits of a digest.
const DIGITS: usize = 64;

/// The images of a payload. An image is the index of its tag in the payload.
#[derive(Debug)]
pub(super) struct TagIndex {
    /// By the hexadecimal digits of the manifest's digest; several tags may have one image.
    by_digest: HashMap<String, Vec<usize>>,
    /// Images without a digest, by pullspec as written and in full.
    by_pullspec: HashMap<String, Vec<usize>>,
    by_name: HashMap<String, usize>,
    pullspecs: Vec<String>,
}

impl TagIndex {
    pub(super) fn of(payload: &Payload) -> Self {
        let mut by_digest = HashMap::<_, Vec<usize>>::new();
        let mut by_pullspec = HashMap::<_, Vec<usize>>::new();
        for (index, tag) in payload.tags.iter().enumerate() {
            if let Some(digest) = tag.reference.digest() {
                by_digest.entry(digest.hex()).or_default().push(index);
                continue;
            }
            let full = tag.reference.to_string();
            if full != tag.pullspec {
                by_pullspec.entry(full).or_default().push(index);
            }
            by_pullspec.entry(tag.pullspec.clone()).or_default().push(index);
        }
        let names = payload.tags.iter().enumerate();
        Self {
            by_digest,
            by_pullspec,
            by_name: names.map(|(index, tag)| (tag.name.clone(), index)).collect(),
            pullspecs: payload.tags.iter().map(|tag| tag.pullspec.clone()).collect(),
        }
    }

    /// The pullspec of the image with this name.
    pub(super) fn pullspec(&self, name: &str) -> Option<&str> {
        self.by_name
            .get(name)
            .map(|index| self.pullspecs[*index].as_str())
    }

    /// Calls `found` with each image in the text, as often as it occurs.
    pub(super) fn search(&self, text: &str, mut found: impl FnMut(usize)) {
        let mut rest = text;
        while let Some(start) = rest.find(ALGORITHM) {
            rest = &rest[start + ALGORITHM.len()..];
            let digits = rest.get(..DIGITS).and_then(|digits| self.by_digest.get(digits));
            digits.into_iter().flatten().copied().for_each(&mut found);
        }
        if self.by_pullspec.is_empty() {
            return;
        }
        let in_reference = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
        for word in text.split(|c| !in_reference(c)) {
            // `docker://` before it, or the end of a sentence behind it.
            let word = word.rsplit_once("//").map_or(word, |(_, word)| word);
            let images = self.by_pullspec.get(word.trim_end_matches(['.', ':']));
            images.into_iter().flatten().copied().for_each(&mut found);
        }
    }
}
