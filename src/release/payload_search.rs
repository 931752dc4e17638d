//! Reads the payload of a release image from the blobs of its layers, without a store.
//!
//! The layers are read from the top, until both files are found: in real releases they are in the top layer.

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::payload::{IMAGE_REFERENCES, Payload, PayloadError, RELEASE_METADATA};
use crate::cancel::Cancel;
use crate::store::unpack::{ListedEntry, ListedKind, UnpackError, UnpackLimits, copy_ranges, list};

/// Far above every real payload file; `image-references` has about 100 KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The files of a payload.
const FILES: [&str; 2] = [IMAGE_REFERENCES, RELEASE_METADATA];

/// What the layers from the top down to one of them state about the files of the payload.
#[derive(Debug)]
pub struct PayloadSearch([Found; FILES.len()]);

/// What they state about one path.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    /// Nothing.
    Nothing,
    /// This is its content.
    Content(Vec<u8>),
    /// It is not a regular file, or it is removed.
    NoFile,
}

/// What one layer states about a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InLayer {
    Nothing,
    File { offset: u64, size: u64 },
    NoFile,
}

impl Default for PayloadSearch {
    fn default() -> Self {
        Self(FILES.map(|_| Found::Nothing))
    }
}

impl PayloadSearch {
    /// Whether layers further below cannot change the result.
    pub fn is_done(&self) -> bool {
        !self.0.contains(&Found::Nothing)
    }

    /// Reads the blob of the next layer below, which has `size` bytes from its current position on.
    pub fn read_layer(
        &mut self,
        mut blob: impl Read + Seek,
        size: u64,
        cancel: &Cancel,
    ) -> Result<(), UnpackError> {
        let host = |error| UnpackError::host("seek in", b"the blob", error);
        let start = blob.stream_position().map_err(host)?;
        let limits = UnpackLimits::for_blob(size);
        let mut states = FILES.map(|_| InLayer::Nothing);
        let mut is_hidden = FILES.map(|_| false);
        list(&mut blob, limits, cancel, |entry| {
            for (index, file) in FILES.iter().enumerate() {
                apply(&entry, file.as_bytes(), &mut states[index], &mut is_hidden[index]);
            }
        })?;
        let mut found = FILES.map(|_| Found::Nothing);
        let mut ranges: Vec<(usize, Range<u64>)> = Vec::new();
        for (index, state) in states.into_iter().enumerate() {
            found[index] = match state {
                InLayer::File { offset, size } if size <= FILE_LIMIT => {
                    ranges.push((index, offset..offset.saturating_add(size)));
                    Found::Content(Vec::new())
                }
                InLayer::Nothing if !is_hidden[index] => Found::Nothing,
                _ => Found::NoFile,
            };
        }
        if !ranges.is_empty() {
            ranges.sort_unstable_by_key(|(_, range)| range.start);
            blob.seek(io::SeekFrom::Start(start)).map_err(host)?;
            let (files, ranges): (Vec<usize>, Vec<Range<u64>>) = ranges.into_iter().unzip();
            copy_ranges(&mut blob, &ranges, limits, cancel, |range, bytes| {
                if let Found::Content(content) = &mut found[files[range]] {
                    content.extend_from_slice(bytes);
                }
                Ok(())
            })?;
        }
        for (above, below) in self.0.iter_mut().zip(found) {
            if *above == Found::Nothing {
                *above = below;
            }
        }
        Ok(())
    }

    /// The payload, after all layers were read or [`PayloadSearch::is_done`].
    pub fn payload(self) -> Result<Payload, PayloadError> {
        let [references, metadata] = self.0;
        let references = content(references, IMAGE_REFERENCES)?;
        Payload::parse(&references, &content(metadata, RELEASE_METADATA)?)
    }
}

fn content(found: Found, file: &'static str) -> Result<Vec<u8>, PayloadError> {
    match found {
        Found::Content(content) => Ok(content),
        Found::Nothing | Found::NoFile => Err(PayloadError::Missing { file }),
    }
}

/// Applies an entry of a layer to what is known about `file`; `is_hidden` becomes true if the layers below do not count.
fn apply(entry: &ListedEntry, file: &[u8], state: &mut InLayer, is_hidden: &mut bool) {
    let is_it = entry.path == file;
    let below = file.strip_prefix(entry.path.as_slice());
    let is_above = entry.path.is_empty() || below.is_some_and(|rest| rest.starts_with(b"/"));
    match &entry.kind {
        ListedKind::File { offset, size } if is_it => {
            *state = InLayer::File {
                offset: *offset,
                size: *size,
            };
        }
        ListedKind::Opaque if is_above => *is_hidden = true,
        ListedKind::Directory if is_above => {}
        // A directory above the file that is removed, or is something else.
        _ if is_above || is_it => *state = InLayer::NoFile,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(entries: &[(&str, ListedKind)]) -> (InLayer, bool) {
        let (mut state, mut is_hidden) = (InLayer::Nothing, false);
        for (path, kind) in entries {
            let entry = ListedEntry {
                path: path.as_bytes().to_vec(),
                kind: kind.clone(),
            };
            apply(&entry, b"a/b", &mut state, &mut is_hidden);
        }
        (state, is_hidden)
    }

    #[test]
    fn the_last_entry_counts_and_an_opaque_directory_hides_only_what_is_below() {
        let file = ListedKind::File { offset: 1, size: 2 };
        let found = InLayer::File { offset: 1, size: 2 };
        let nothing = (InLayer::Nothing, false);
        assert_eq!(
            state(&[("a", ListedKind::Directory), ("a/bc", file.clone())]),
            nothing
        );
        assert_eq!(
            state(&[("a/b", file.clone()), ("a", ListedKind::Opaque)]),
            (found, true)
        );
        assert_eq!(state(&[("", ListedKind::Opaque)]), (InLayer::Nothing, true));
        for (path, kind) in [
            ("a/b", ListedKind::Whiteout),
            ("a", ListedKind::Whiteout),
            ("a", ListedKind::Other),
            ("a/b", ListedKind::HardLink(b"c".to_vec())),
        ] {
            assert_eq!(state(&[(path, kind)]), (InLayer::NoFile, false), "{path}");
        }
        assert_eq!(
            state(&[("a/b", ListedKind::Whiteout), ("a/b", file)]),
            (found, false)
        );
    }
}
