//! Parses one document of a file-based catalog, and keeps only the fields that are needed.
//!
//! ```text
//! schema: olm.package    name, defaultChannel
//! schema: olm.channel    package, name, entries[] { name, replaces, skips[] }
//! schema: olm.bundle     package, name, image, relatedImages[] { name, image }
//! ```
//!
//! Nearly all bytes of a catalog are `properties`, icons and descriptions, which are skipped during parsing, in any order of
//! the fields. The lists of a package that is not requested are skipped too, once the package's name is known.
//!
//! Names of fields may have any case, as in Go. A duplicate field is refused: Go uses the last one, other programs the
//! first.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::channel_head::ChannelEntry;

/// The most texts that are kept of one catalog; a package with 200 bundles of 60 images has 25,000.
const TEXTS_LIMIT: usize = 1_000_000;

/// The most bytes of these texts together.
const TEXT_BYTES_LIMIT: usize = 64 << 20;

/// The schemas that are read.
pub(super) const PACKAGE: &str = "olm.package";
pub(super) const CHANNEL: &str = "olm.channel";
pub(super) const BUNDLE: &str = "olm.bundle";

/// The fields that are kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FbcDocument {
    pub(super) schema: String,
    pub(super) package: String,
    pub(super) name: String,
    pub(super) default_channel: String,
    pub(super) image: String,
    pub(super) entries: Vec<ChannelEntry>,
    pub(super) related_images: Vec<FbcRelatedImage>,
}

/// An image that a bundle lists, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FbcRelatedImage {
    /// Often empty.
    pub(super) name: String,
    /// Its reference; empty if the bundle's author used another field name.
    pub(super) image: String,
}

/// Limits the kept texts, so that a catalog cannot exhaust the memory.
#[derive(Debug, Default)]
pub(super) struct TextBudget {
    used: Cell<(usize, usize)>,
}

impl TextBudget {
    /// The current use, for [`Self::rewind`].
    pub(super) fn mark(&self) -> (usize, usize) {
        self.used.get()
    }

    /// Returns to an earlier use, when texts were discarded.
    pub(super) fn rewind(&self, mark: (usize, usize)) {
        self.used.set(mark);
    }

    fn count<E: Error>(&self, text: &str) -> Result<(), E> {
        let (count, bytes) = self.used.get();
        let (count, bytes) = (count + 1, bytes + text.len());
        if count > TEXTS_LIMIT || bytes > TEXT_BYTES_LIMIT {
            return Err(E::custom(format_args!(
                "the requested packages have more than {TEXTS_LIMIT} names, or {TEXT_BYTES_LIMIT} bytes of names"
            )));
        }
        self.used.set((count, bytes));
        Ok(())
    }
}

/// Parses an [`FbcDocument`]; `None` for null.
pub(super) struct FbcDocumentSeed<'a> {
    /// Whether the package of this name is requested.
    pub(super) is_wanted: &'a dyn Fn(&str) -> bool,
    pub(super) texts: &'a TextBudget,
}

impl<'de> DeserializeSeed<'de> for FbcDocumentSeed<'_> {
    type Value = Option<FbcDocument>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<FbcDocument>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for FbcDocumentSeed<'_> {
    type Value = Option<FbcDocument>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `schema`")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<FbcDocument>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<FbcDocument>, A::Error> {
        let mut document = FbcDocument::default();
        let mut fields = UniqueFields::default();
        while let Some(field) = map.next_key_seed(FieldSeed(&DOCUMENT))? {
            fields.check(field, &DOCUMENT)?;
            let text = Text(self.texts);
            // A list is kept if schema or package are still unknown, as they may follow it.
            let may_be = |schema: &str| {
                (document.schema.is_empty() || document.schema == schema)
                    && (document.package.is_empty() || (self.is_wanted)(&document.package))
            };
            match field.map(|field| DOCUMENT[field]) {
                Some("schema") => document.schema = map.next_value_seed(text)?,
                Some("package") => document.package = map.next_value_seed(text)?,
                Some("name") => document.name = map.next_value_seed(text)?,
                Some("defaultChannel") => document.default_channel = map.next_value_seed(text)?,
                Some("image") => document.image = map.next_value_seed(text)?,
                Some("entries") if may_be(CHANNEL) => {
                    document.entries = map.next_value_seed(List(self.texts, EntrySeed))?;
                }
                Some("relatedImages") if may_be(BUNDLE) => {
                    document.related_images = map.next_value_seed(List(self.texts, ImageSeed))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Some(document))
    }
}

const DOCUMENT: [&str; 7] = [
    "schema",
    "package",
    "name",
    "defaultChannel",
    "image",
    "entries",
    "relatedImages",
];
const ENTRY: [&str; 3] = ["name", "replaces", "skips"];
const IMAGE: [&str; 2] = ["name", "image"];

/// The fields of one object so far, to refuse duplicates.
#[derive(Default)]
struct UniqueFields(u8);

impl UniqueFields {
    fn check<E: Error>(&mut self, field: Option<usize>, names: &[&str]) -> Result<(), E> {
        let Some(field) = field else { return Ok(()) };
        if self.0 & (1 << field) != 0 {
            return Err(E::custom(format_args!("`{}` occurs twice", names[field])));
        }
        self.0 |= 1 << field;
        Ok(())
    }
}

/// Parses a field's name into its index in a list of names.
struct FieldSeed<'a>(&'a [&'a str]);

impl<'de> DeserializeSeed<'de> for FieldSeed<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<usize>, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl Visitor<'_> for FieldSeed<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field's name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.0.iter().position(|known| known.eq_ignore_ascii_case(name)))
    }
}

/// Parses a string within the budget; null is an empty string, as in Go.
struct Text<'a>(&'a TextBudget);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        // Refuses other types instead of converting them: for programs that serve catalogs, the YAML number 4.10 is 4.1.
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<String, E> {
        self.0.count(text)?;
        Ok(text.to_owned())
    }

    fn visit_unit<E: Error>(self) -> Result<String, E> {
        Ok(String::new())
    }
}

/// The type of a list's items.
trait Item: Copy {
    type Value;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        texts: &TextBudget,
        list: &mut A,
    ) -> Result<Option<Self::Value>, A::Error>;
}

/// Parses a list; null is an empty list.
struct List<'a, I>(&'a TextBudget, I);

impl<'de, I: Item> DeserializeSeed<'de> for List<'_, I> {
    type Value = Vec<I::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<I::Value>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, I: Item> Visitor<'de> for List<'_, I> {
    type Value = Vec<I::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E: Error>(self) -> Result<Vec<I::Value>, E> {
        Ok(Vec::new())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<I::Value>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = self.1.element(self.0, &mut list)? {
            // An item without any text counts too.
            self.0.count("")?;
            items.push(item);
        }
        Ok(items)
    }
}

#[derive(Clone, Copy)]
struct TextItem;
#[derive(Clone, Copy)]
struct EntrySeed;
#[derive(Clone, Copy)]
struct ImageSeed;

impl Item for TextItem {
    type Value = String;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        texts: &TextBudget,
        list: &mut A,
    ) -> Result<Option<String>, A::Error> {
        list.next_element_seed(Text(texts))
    }
}

impl Item for EntrySeed {
    type Value = ChannelEntry;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        texts: &TextBudget,
        list: &mut A,
    ) -> Result<Option<ChannelEntry>, A::Error> {
        list.next_element_seed(ObjectSeed(texts, self))
    }
}

impl Item for ImageSeed {
    type Value = FbcRelatedImage;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        texts: &TextBudget,
        list: &mut A,
    ) -> Result<Option<FbcRelatedImage>, A::Error> {
        list.next_element_seed(ObjectSeed(texts, self))
    }
}

/// Parses an item that is an object.
struct ObjectSeed<'a, K>(&'a TextBudget, K);

impl<'de, K> DeserializeSeed<'de> for ObjectSeed<'_, K>
where
    Self: Visitor<'de>,
{
    type Value = <Self as Visitor<'de>>::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_, EntrySeed> {
    type Value = ChannelEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry of a channel")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ChannelEntry, A::Error> {
        let (mut entry, mut fields) = (ChannelEntry::default(), UniqueFields::default());
        while let Some(field) = map.next_key_seed(FieldSeed(&ENTRY))? {
            fields.check(field, &ENTRY)?;
            match field.map(|field| ENTRY[field]) {
                Some("name") => entry.name = map.next_value_seed(Text(self.0))?,
                Some("replaces") => entry.replaces = map.next_value_seed(Text(self.0))?,
                Some("skips") => entry.skips = map.next_value_seed(List(self.0, TextItem))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(entry)
    }
}

impl<'de> Visitor<'de> for ObjectSeed<'_, ImageSeed> {
    type Value = FbcRelatedImage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a related image")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FbcRelatedImage, A::Error> {
        let (mut image, mut fields) = (FbcRelatedImage::default(), UniqueFields::default());
        while let Some(field) = map.next_key_seed(FieldSeed(&IMAGE))? {
            fields.check(field, &IMAGE)?;
            match field.map(|field| IMAGE[field]) {
                Some("name") => image.name = map.next_value_seed(Text(self.0))?,
                Some("image") => image.image = map.next_value_seed(Text(self.0))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(image)
    }
}
