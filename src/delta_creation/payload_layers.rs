//! Reads the payload of a release image from its layers, without a store.
//!
//! The layers are read from the top, until both files are found: in real releases they are in the top layer. Its blob stays in
//! the spool, so that a later run reads it there.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use super::blocking::run_blocking;
use super::error::CreationError;
use super::named_image::NamedImage;
use super::tar_cache::TarCache;
use crate::cancel::Cancel;
use crate::oci::Digest;
use crate::release::{IMAGE_REFERENCES, Payload, PayloadError, RELEASE_METADATA};
use crate::scratch_file;
use crate::spool::VerifiedBlob;
use crate::store::unpack::{ListedEntry, ListedKind, UnpackLimits, decompress, list};

/// Far above every real payload file; `image-references` has about 100 KiB.
const FILE_LIMIT: u64 = 16 << 20;

/// The files of a payload.
const FILES: [&str; 2] = [IMAGE_REFERENCES, RELEASE_METADATA];

/// Reads payloads with temporary files in a directory.
pub(super) struct PayloadLayers {
    pub(super) dir: PathBuf,
}

/// What the layers from the top down to one of them state about a path.
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

impl PayloadLayers {
    /// The payload of a release image.
    pub(super) async fn read(
        &self,
        release: &NamedImage,
        tars: &TarCache,
        cancel: &Cancel,
    ) -> Result<Payload, CreationError> {
        let mut found = FILES.map(|_| Found::Nothing);
        for layer in release.image.layers.iter().rev() {
            let blob = tars
                .fetch(layer, std::slice::from_ref(&release.reference))
                .await?;
            let (dir, cancel) = (self.dir.clone(), cancel.clone());
            let below = run_blocking(move || read_layer(&blob, &dir, &cancel)).await?;
            for (found, below) in found.iter_mut().zip(below) {
                if *found == Found::Nothing {
                    *found = below;
                }
            }
            if !found.contains(&Found::Nothing) {
                break;
            }
        }
        let [references, metadata] = found;
        let payload = content(references, IMAGE_REFERENCES)
            .and_then(|references| Payload::parse(&references, &content(metadata, RELEASE_METADATA)?));
        payload.map_err(|source| CreationError::Payload {
            reference: release.reference.to_string(),
            source,
        })
    }
}

fn content(found: Found, file: &'static str) -> Result<Vec<u8>, PayloadError> {
    match found {
        Found::Content(content) => Ok(content),
        Found::Nothing | Found::NoFile => Err(PayloadError::Missing { file }),
    }
}

fn read_layer(
    blob: &VerifiedBlob,
    dir: &std::path::Path,
    cancel: &Cancel,
) -> Result<[Found; FILES.len()], CreationError> {
    let digest: Digest = blob.digest();
    let unpacking = |source| CreationError::Layer { blob: digest, source };
    let tar = File::open(dir).and_then(scratch_file::create);
    let tar = tar.map_err(CreationError::host("create a scratch file in", dir))?;
    let limits = UnpackLimits::for_blob(blob.size());
    decompress(&blob.open()?, &tar, limits, cancel).map_err(unpacking)?;
    let mut states = FILES.map(|_| InLayer::Nothing);
    let mut is_hidden = FILES.map(|_| false);
    let start = tar.try_clone().and_then(|mut tar| {
        std::io::Seek::rewind(&mut tar)?;
        Ok(tar)
    });
    let start = start.map_err(CreationError::host("read", dir))?;
    let each = |entry: ListedEntry| {
        for (index, file) in FILES.iter().enumerate() {
            apply(&entry, file.as_bytes(), &mut states[index], &mut is_hidden[index]);
        }
    };
    list(start, limits, cancel, each).map_err(unpacking)?;
    let mut found = FILES.map(|_| Found::Nothing);
    for (index, found) in found.iter_mut().enumerate() {
        *found = match states[index] {
            InLayer::File { offset, size } if size <= FILE_LIMIT => {
                let mut content = vec![0; usize::try_from(size).unwrap_or(0)];
                tar.read_exact_at(&mut content, offset)
                    .map_err(CreationError::host("read", dir))?;
                Found::Content(content)
            }
            InLayer::Nothing if !is_hidden[index] => Found::Nothing,
            _ => Found::NoFile,
        };
    }
    Ok(found)
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
