//! Reads and changes `index.json`, which has the tags of the layout.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use super::error::{OciLayoutError, at};
use super::partial_file;
use crate::oci::{Descriptor, Digest, OCI_IMAGE_INDEX_MEDIA_TYPE};

/// The annotation with a tag.
const REF_NAME: &str = "org.opencontainers.image.ref.name";

/// The largest `index.json` that is read.
const MAX_SIZE: u64 = 16 << 20;

/// The `index.json` of a layout.
#[derive(Debug)]
pub(super) struct IndexJson {
    path: PathBuf,
}

/// Its content, with the entries unparsed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index<'a> {
    schema_version: u32,
    #[serde(default = "media_type")]
    media_type: String,
    #[serde(borrow)]
    manifests: Vec<&'a RawValue>,
}

fn media_type() -> String {
    OCI_IMAGE_INDEX_MEDIA_TYPE.to_owned()
}

#[derive(Deserialize)]
struct Entry {
    digest: Digest,
    annotations: Option<EntryAnnotations>,
}

#[derive(Deserialize)]
struct EntryAnnotations {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    ref_name: Option<String>,
}

impl Entry {
    fn has_tag(&self, tag: &str) -> bool {
        let annotations = self.annotations.as_ref();
        annotations.and_then(|annotations| annotations.ref_name.as_deref()) == Some(tag)
    }
}

impl IndexJson {
    /// The one of the layout in `directory`; it is created if there is none.
    pub(super) fn open(directory: &Path) -> Result<Self, OciLayoutError> {
        let index = Self {
            path: directory.join("index.json"),
        };
        if !index.path.exists() {
            index.write(&[])?;
        }
        Ok(index)
    }

    /// Points the tag to this manifest.
    pub(super) fn tag(&self, tag: &str, descriptor: &Descriptor) -> Result<(), OciLayoutError> {
        self.tag_all(&[(tag, descriptor)])
    }

    /// Points each tag to its manifest.
    pub(super) fn tag_all(&self, tags: &[(&str, &Descriptor)]) -> Result<(), OciLayoutError> {
        let text = self.read()?;
        let index = self.parse(&text)?;
        let new: Result<Vec<_>, _> = tags
            .iter()
            .map(|(tag, descriptor)| entry(tag, descriptor))
            .collect();
        let new = new.map_err(|error| self.invalid(&error))?;
        let changed: HashSet<&str> = tags.iter().map(|(tag, _)| *tag).collect();
        let others = index.manifests.into_iter().filter(|raw| {
            let known: Option<Entry> = serde_json::from_str(raw.get()).ok();
            let tag = known.and_then(|known| known.annotations?.ref_name);
            !tag.is_some_and(|tag| changed.contains(tag.as_str()))
        });
        let entries: Vec<&RawValue> = others.chain(new.iter().map(AsRef::as_ref)).collect();
        self.write(&entries)
    }

    /// The digest of the manifest that the tag points to.
    pub(super) fn tagged(&self, tag: &str) -> Result<Option<Digest>, OciLayoutError> {
        let text = self.read()?;
        let index = self.parse(&text)?;
        let mut entries = index
            .manifests
            .iter()
            .filter_map(|raw| serde_json::from_str::<Entry>(raw.get()).ok());
        Ok(entries.find(|entry| entry.has_tag(tag)).map(|entry| entry.digest))
    }

    fn read(&self) -> Result<String, OciLayoutError> {
        let file = File::open(&self.path).map_err(at(&self.path))?;
        let mut text = String::new();
        let read = file.take(MAX_SIZE + 1).read_to_string(&mut text);
        match read.map_err(at(&self.path))? as u64 {
            0..=MAX_SIZE => Ok(text),
            _ => Err(at(&self.path)(io::ErrorKind::FileTooLarge.into())),
        }
    }

    fn parse<'a>(&self, text: &'a str) -> Result<Index<'a>, OciLayoutError> {
        serde_json::from_str(text).map_err(|error| self.invalid(&error))
    }

    fn write(&self, manifests: &[&RawValue]) -> Result<(), OciLayoutError> {
        let json = json_of(manifests).map_err(|error| self.invalid(&error))?;
        partial_file::write(&self.path, &json)
    }

    fn invalid(&self, error: &serde_json::Error) -> OciLayoutError {
        OciLayoutError::Invalid {
            path: self.path.clone(),
            why: error.to_string(),
        }
    }
}

/// The `index.json` of a layout with these tags.
pub fn index_json(tags: &[(&str, &Descriptor)]) -> Result<Vec<u8>, serde_json::Error> {
    let entries: Vec<_> = tags
        .iter()
        .map(|(tag, descriptor)| entry(tag, descriptor))
        .collect::<Result<_, _>>()?;
    json_of(&entries.iter().map(AsRef::as_ref).collect::<Vec<_>>())
}

fn json_of(manifests: &[&RawValue]) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&Index {
        schema_version: 2,
        media_type: media_type(),
        manifests: manifests.to_vec(),
    })
}

fn entry(tag: &str, descriptor: &Descriptor) -> Result<Box<RawValue>, serde_json::Error> {
    let mut entry = json!(descriptor);
    entry["annotations"] = json!({REF_NAME: tag});
    serde_json::value::to_raw_value(&entry)
}
