//! Media made by hand: the same image in every form, as directories and as archives.

#![allow(clippy::unwrap_used)]

mod archives;
mod cut_archives;
mod faults;
mod forms;
mod signatures;

use std::fs;
use std::io::Read as _;
use std::path::Path;

use bytes::Bytes;
use tar_core::builder::EntryBuilder;
use tempfile::TempDir;

use super::{Media, MediaError, MediumPath};
use crate::cancel::Cancel;
use crate::oci::{Content, DiffId, Digest};

/// More than any file here has.
const LIMIT: u64 = 4 << 20;

/// The name under which the image is stored where names are.
const REPOSITORY: &str = "quay.io/openshift/base";

/// The files of a medium: path and bytes.
type Files = Vec<(String, Vec<u8>)>;

/// An image with one layer.
struct Image {
    layer: Vec<u8>,
    config: Content,
    manifest: Content,
}

impl Image {
    fn new() -> Self {
        let layer: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let config = format!(
            r#"{{"architecture":"amd64","os":"linux","rootfs":{{"type":"layers","diff_ids":["{}"]}}}}"#,
            Digest::of(&layer)
        );
        let config = Content::new(Bytes::from(config));
        let manifest = format!(
            r#"{{"schemaVersion":2,"config":{{"digest":"{}"}},"layers":[{{"digest":"{}"}}]}}"#,
            config.digest(),
            Digest::of(&layer)
        );
        Self {
            layer,
            config,
            manifest: Content::new(Bytes::from(manifest)),
        }
    }

    /// The digest of the layer, which is stored uncompressed.
    fn blob(&self) -> Digest {
        Digest::of(&self.layer)
    }

    fn diff_id(&self) -> DiffId {
        DiffId(self.blob())
    }

    /// All blobs under the names that `path` gives them.
    fn files(&self, path: impl Fn(&Digest) -> String) -> Files {
        let manifests = [&self.manifest, &self.config];
        let manifests = manifests.map(|content| (path(&content.digest()), content.bytes().to_vec()));
        let layer = (path(&self.blob()), self.layer.clone());
        manifests.into_iter().chain([layer]).collect()
    }

    fn oci_layout(&self) -> Files {
        let mut files = self.files(|digest| format!("blobs/sha256/{}", digest.hex()));
        let index = format!(
            r#"{{"schemaVersion":2,"manifests":[{{"digest":"{}","annotations":{{"org.opencontainers.image.ref.name":"{REPOSITORY}:4.16"}}}}]}}"#,
            self.manifest.digest()
        );
        files.insert(0, ("index.json".to_owned(), index.into_bytes()));
        files.insert(
            0,
            (
                "oci-layout".to_owned(),
                br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec(),
            ),
        );
        files
    }

    fn registry(&self, root: &str, repository: &str) -> Files {
        let mut files = self.files(|digest| {
            let hex = digest.hex();
            format!("{root}blobs/sha256/{}/{hex}/data", &hex[..2])
        });
        let digest = self.manifest.digest();
        let below = format!("{root}repositories/{repository}");
        for link in [
            format!("{below}/_manifests/tags/4.16/current/link"),
            format!("{below}/_manifests/revisions/sha256/{}/link", digest.hex()),
            format!("{below}/_layers/sha256/{}/link", digest.hex()),
        ] {
            files.push((link, digest.to_string().into_bytes()));
        }
        files
    }

    fn docker_archive(&self) -> Files {
        let (config, layer) = (self.config.digest().hex(), self.blob().hex());
        let manifest = format!(
            r#"[{{"Config":"{config}.json","RepoTags":["{REPOSITORY}:4.16"],"Layers":["{layer}.tar"]}}]"#
        );
        vec![
            (format!("{layer}.tar"), self.layer.clone()),
            (format!("{config}.json"), self.config.bytes().to_vec()),
            ("manifest.json".to_owned(), manifest.into_bytes()),
        ]
    }
}

/// Writes the files below `directory`.
fn write(directory: &Path, files: &Files) {
    for (path, bytes) in files {
        let path = directory.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

fn in_directory(files: &Files) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), files);
    directory
}

/// The entry of a file in a tar.
fn entry(mut builder: EntryBuilder, path: &str, bytes: &[u8]) -> Vec<u8> {
    builder
        .path(path)
        .mode(0o644)
        .unwrap()
        .size(bytes.len() as u64)
        .unwrap();
    let mut entry = builder.finish_bytes();
    entry.extend_from_slice(bytes);
    entry.resize(entry.len().next_multiple_of(512), 0);
    entry
}

/// The end mark of a tar.
const END: [u8; 1024] = [0; 1024];

fn tar(files: &Files) -> Vec<u8> {
    let entries = files
        .iter()
        .map(|(path, bytes)| entry(EntryBuilder::new_gnu(), path, bytes));
    let mut tar: Vec<u8> = entries.flatten().collect();
    tar.extend_from_slice(&END);
    tar
}

fn in_file(name: &str, bytes: &[u8]) -> TempDir {
    in_directory(&vec![(name.to_owned(), bytes.to_vec())])
}

fn open(path: impl AsRef<Path>) -> Result<(Media, Vec<String>), MediaError> {
    Media::open(&[MediumPath::named(path.as_ref())], &Cancel::default())
}

/// Opens a medium that has no damage.
fn opened(path: impl AsRef<Path>) -> Media {
    let (media, warnings) = open(path).unwrap();
    assert_eq!(warnings, [""; 0]);
    media
}

fn read(media: &Media, digest: Digest) -> Option<Vec<u8>> {
    let blob = media.blobs(digest).into_iter().next()?;
    let mut bytes = Vec::new();
    blob.open().unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, blob.size());
    Some(bytes)
}

/// Everything of the image is found, with the right bytes.
fn assert_complete(media: &Media, image: &Image, form: &str) {
    for content in [&image.manifest, &image.config] {
        assert_eq!(
            media.content(content.digest(), LIMIT).as_ref(),
            Some(content),
            "{form}"
        );
    }
    assert_eq!(
        media.size_of(image.blob()),
        Some(image.layer.len() as u64),
        "{form}"
    );
    assert!(read(media, image.blob()).unwrap() == image.layer, "{form}");
    assert_eq!(media.blobs(Digest::of(b"unknown")).len(), 0, "{form}");
    assert_eq!(media.layer_tars(image.diff_id()).len(), 1, "{form}");
    assert_eq!(media.take_faults(), [], "{form}");
}
