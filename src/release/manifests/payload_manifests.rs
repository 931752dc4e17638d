//! Reads manifest files one by one, and keeps what decides about their inclusion and which images they name.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::documents::documents;
use super::file_name::{FileName, MANIFEST_DIRECTORIES, is_manifest};
use super::header::Header;
use super::naming::{Naming, named_images};
use super::tag_index::TagIndex;
use super::template;
use super::yaml::Parser;
use crate::release::payload::Payload;
use crate::spec::shown;

/// The most entries of a directory with manifests. Real releases have less than 1,500 files.
pub const FILES_LIMIT: usize = 10_000;

/// The most bytes of a file. The largest real one has 848 KB.
pub const FILE_LIMIT: u64 = 16 << 20;

/// The most bytes of all files. Real releases have less than 40 MB.
const TOTAL_LIMIT: usize = 128 << 20;

/// The most documents of all files. Real releases have less than 3,000.
const DOCUMENTS_LIMIT: usize = 50_000;

/// The most bytes that are kept of all documents; aliases repeat a text without repeating its bytes.
const RETAINED_LIMIT: usize = 16 << 20;

/// A file of a release image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestFile {
    /// In the image: `release-manifests/0000_50_console-operator_07-operator.yaml`.
    pub path: String,
    /// The bytes, or why they cannot be read. The caller limits them to [`FILE_LIMIT`].
    pub content: Result<Vec<u8>, String>,
}

/// The manifests of a payload.
#[derive(Debug)]
pub struct PayloadManifests {
    /// Version of the release.
    version: String,
    /// The names of the payload's images, in its order.
    tags: Vec<String>,
    manifests: Vec<Manifest>,
    unread: Vec<UnreadFile>,
    /// Directories without any manifest.
    missing_directories: Vec<&'static str>,
}

/// A manifest, in the order of the files.
#[derive(Debug)]
pub(super) struct Manifest {
    pub(super) level: Option<u32>,
    pub(super) component: Option<Arc<str>>,
    pub(super) header: Header,
    /// The images that it names.
    pub(super) names: Vec<(usize, Naming)>,
}

/// A file that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadFile {
    /// In the image.
    pub path: String,
    /// The reason.
    pub why: String,
    /// Whether it may name images that are not in its text, or has no text.
    pub may_name_any: bool,
    pub(super) level: Option<u32>,
    pub(super) component: Option<Arc<str>>,
    /// The images in its text.
    pub(super) names: Vec<usize>,
    /// How many manifests precede it.
    pub(super) position: usize,
}

impl PayloadManifests {
    /// Reads the files of [`MANIFEST_DIRECTORIES`], which should come in the order of their names. Files that are no
    /// manifests are ignored.
    pub fn read(files: impl IntoIterator<Item = ManifestFile>, payload: &Payload) -> Self {
        let mut reader = Reader {
            index: TagIndex::of(payload),
            parser: Parser::new(),
            manifests: Vec::new(),
            unread: Vec::new(),
            bytes: 0,
            retained: 0,
        };
        let mut missing_directories = MANIFEST_DIRECTORIES.to_vec();
        let is_meant = |file: &ManifestFile| is_manifest(&file.path);
        for (number, file) in files.into_iter().filter(is_meant).enumerate() {
            if number == 2 * FILES_LIMIT {
                let why = format!("the release has more than {number} manifest files");
                reader.add_unread(&file.path, why, "", true);
                break;
            }
            let directory = file.path.trim_start_matches('/').rsplit_once('/');
            missing_directories.retain(|name| directory.is_none_or(|(directory, _)| directory != *name));
            reader.add(file);
        }
        Self {
            version: payload.version.clone(),
            tags: payload.tags.iter().map(|tag| tag.name.clone()).collect(),
            manifests: reader.manifests,
            unread: reader.unread,
            missing_directories,
        }
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    pub(super) fn tags(&self) -> &[String] {
        &self.tags
    }

    pub(super) fn manifests(&self) -> &[Manifest] {
        &self.manifests
    }

    pub(super) fn unread(&self) -> &[UnreadFile] {
        &self.unread
    }

    pub(super) fn missing_directories(&self) -> &[&'static str] {
        &self.missing_directories
    }
}

struct Reader {
    index: TagIndex,
    parser: Parser,
    manifests: Vec<Manifest>,
    unread: Vec<UnreadFile>,
    /// Read so far.
    bytes: usize,
    /// Kept so far.
    retained: usize,
}

impl Reader {
    fn add(&mut self, file: ManifestFile) {
        let bytes = match file.content {
            Ok(bytes) => bytes,
            Err(why) => return self.add_unread(&file.path, why, "", true),
        };
        self.bytes += bytes.len();
        if self.bytes > TOTAL_LIMIT {
            let why = format!("the release's manifests have more than {TOTAL_LIMIT} bytes");
            return self.add_unread(&file.path, why, "", true);
        }
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => {
                let why = format!("it is not UTF-8, at byte {}", error.valid_up_to());
                return self.add_unread(&file.path, why, &String::from_utf8_lossy(&bytes), false);
            }
        };
        let name = FileName::parse(&file.path);
        let (count, retained) = (self.manifests.len(), self.retained);
        let index = &self.index;
        let rendered = match name.is_template {
            true => template::render(text, |tag| index.pullspec(tag)),
            false => Ok(text.into()),
        };
        let rendered = match rendered {
            Ok(rendered) => rendered,
            // It may print any image.
            Err(why) => return self.add_unread(&file.path, why, text, true),
        };
        if let Err(why) = self.add_documents(&name, &rendered) {
            self.manifests.truncate(count);
            self.retained = retained;
            self.add_unread(&file.path, why, &rendered, false);
        }
    }

    fn add_documents(&mut self, name: &FileName, text: &str) -> Result<(), String> {
        for document in documents(text) {
            let document = document?;
            if self.manifests.len() == DOCUMENTS_LIMIT {
                return Err(format!("the release has more than {DOCUMENTS_LIMIT} manifests"));
            }
            let Some(header) = Header::parse(document, &mut self.parser)? else {
                continue;
            };
            self.retained += header.retained_bytes();
            if self.retained > RETAINED_LIMIT {
                return Err(format!(
                    "the names and annotations of the release's manifests have more than {RETAINED_LIMIT} bytes"
                ));
            }
            let names = named_images(document, &header.id.kind, &self.index, &mut self.parser)?;
            self.manifests.push(Manifest {
                level: name.level,
                component: name.component.clone(),
                header,
                names,
            });
        }
        Ok(())
    }

    /// Adds a file that is not understood; `text` is searched for images.
    fn add_unread(&mut self, path: &str, why: String, text: &str, may_name_any: bool) {
        let name = FileName::parse(path);
        let mut names = BTreeSet::new();
        self.index.search(text, |image| {
            names.insert(image);
        });
        self.unread.push(UnreadFile {
            path: shown(path),
            why,
            may_name_any,
            level: name.level,
            component: name.component,
            names: names.into_iter().collect(),
            position: self.manifests.len(),
        });
    }
}
