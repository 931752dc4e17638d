//! One document of a file-based catalog, of which only what can matter is kept while it is read.
//!
//! ```text
//! schema: olm.package    name, defaultChannel
//! schema: olm.channel    package, name, entries[] { name, replaces, skips[] }
//! schema: olm.bundle     package, name, image, relatedImages[] { name, image }
//! ```
//!
//! Nearly all of a catalog's bytes are `properties`, icons and descriptions, and they are passed over as they come, in
//! whatever order the fields are; so are the lists of a package that nobody asked for, once it is known whose they are.
//!
//! Names of fields may have any case, as for Go. A field that is there twice is refused: Go takes the last, others the
//! first.

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::channel_head::Entry;

/// As many texts as are kept of one catalog; those of a package with 200 bundles of 60 images are 25,000.
const TEXTS_LIMIT: usize = 1_000_000;

/// As many bytes as these may have together.
const TEXT_BYTES_LIMIT: usize = 64 << 20;

/// The schemas that matter here.
pub(super) const PACKAGE: &str = "olm.package";
pub(super) const CHANNEL: &str = "olm.channel";
pub(super) const BUNDLE: &str = "olm.bundle";

/// What is kept.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) schema: String,
    pub(super) package: String,
    pub(super) name: String,
    pub(super) default_channel: String,
    pub(super) image: String,
    pub(super) entries: Vec<Entry>,
    pub(super) related_images: Vec<RelatedImage>,
}

/// An image that a bundle lists, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RelatedImage {
    /// Often empty.
    pub(super) name: String,
    /// Its pull spec; empty where a bundle's author wrote another field.
    pub(super) image: String,
}

/// Counts what is kept, so that a catalog cannot fill the memory.
#[derive(Debug, Default)]
pub(super) struct Meter {
    used: Cell<(usize, usize)>,
}

impl Meter {
    /// How much is used now, for [`Self::rewind`].
    pub(super) fn mark(&self) -> (usize, usize) {
        self.used.get()
    }

    /// Forgets what was counted since.
    pub(super) fn rewind(&self, mark: (usize, usize)) {
        self.used.set(mark);
    }

    fn count<E: Error>(&self, text: &str) -> Result<(), E> {
        let (texts, bytes) = self.used.get();
        let (texts, bytes) = (texts + 1, bytes + text.len());
        if texts > TEXTS_LIMIT || bytes > TEXT_BYTES_LIMIT {
            return Err(E::custom(format_args!(
                "the packages asked for have more than {TEXTS_LIMIT} names, or {TEXT_BYTES_LIMIT} bytes of them"
            )));
        }
        self.used.set((texts, bytes));
        Ok(())
    }
}

/// Reads a [`Document`]; null is none.
pub(super) struct DocumentSeed<'a> {
    /// Whether anybody asked for the package of this name.
    pub(super) is_wanted: &'a dyn Fn(&str) -> bool,
    pub(super) meter: &'a Meter,
}

impl<'de> DeserializeSeed<'de> for DocumentSeed<'_> {
    type Value = Option<Document>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Document>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DocumentSeed<'_> {
    type Value = Option<Document>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a `schema`")
    }

    fn visit_unit<E: Error>(self) -> Result<Option<Document>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Document>, A::Error> {
        let mut document = Document::default();
        let mut seen = Seen::default();
        while let Some(field) = map.next_key_seed(FieldSeed(&DOCUMENT))? {
            seen.once(field, &DOCUMENT)?;
            let text = Text(self.meter);
            // Only where both are known: a list may come before what says whose it is.
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
                    document.entries = map.next_value_seed(List(self.meter, EntrySeed))?;
                }
                Some("relatedImages") if may_be(BUNDLE) => {
                    document.related_images = map.next_value_seed(List(self.meter, ImageSeed))?;
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

/// Fields of one object that were there.
#[derive(Default)]
struct Seen(u8);

impl Seen {
    fn once<E: Error>(&mut self, field: Option<usize>, names: &[&str]) -> Result<(), E> {
        let Some(field) = field else { return Ok(()) };
        if self.0 & (1 << field) != 0 {
            return Err(E::custom(format_args!("`{}` is there twice", names[field])));
        }
        self.0 |= 1 << field;
        Ok(())
    }
}

/// The index of a field's name, if it is one of these.
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

/// A string, counted; null is an empty one, as for Go.
struct Text<'a>(&'a Meter);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        // Not a string whatever it looks like: the YAML number 4.10 is 4.1 for the programs that serve the catalog.
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

/// What a list is made of.
trait Item: Copy {
    type Value;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        meter: &Meter,
        list: &mut A,
    ) -> Result<Option<Self::Value>, A::Error>;
}

/// A list of something; null is an empty one.
struct List<'a, I>(&'a Meter, I);

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
            // An item may have no text at all, and is counted nevertheless.
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
        meter: &Meter,
        list: &mut A,
    ) -> Result<Option<String>, A::Error> {
        list.next_element_seed(Text(meter))
    }
}

impl Item for EntrySeed {
    type Value = Entry;

    fn element<'de, A: SeqAccess<'de>>(self, meter: &Meter, list: &mut A) -> Result<Option<Entry>, A::Error> {
        list.next_element_seed(Object(meter, self))
    }
}

impl Item for ImageSeed {
    type Value = RelatedImage;

    fn element<'de, A: SeqAccess<'de>>(
        self,
        meter: &Meter,
        list: &mut A,
    ) -> Result<Option<RelatedImage>, A::Error> {
        list.next_element_seed(Object(meter, self))
    }
}

/// An item that is an object.
struct Object<'a, K>(&'a Meter, K);

impl<'de, K> DeserializeSeed<'de> for Object<'_, K>
where
    Self: Visitor<'de>,
{
    type Value = <Self as Visitor<'de>>::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_, EntrySeed> {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an entry of a channel")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entry, A::Error> {
        let (mut entry, mut seen) = (Entry::default(), Seen::default());
        while let Some(field) = map.next_key_seed(FieldSeed(&ENTRY))? {
            seen.once(field, &ENTRY)?;
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

impl<'de> Visitor<'de> for Object<'_, ImageSeed> {
    type Value = RelatedImage;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a related image")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RelatedImage, A::Error> {
        let (mut image, mut seen) = (RelatedImage::default(), Seen::default());
        while let Some(field) = map.next_key_seed(FieldSeed(&IMAGE))? {
            seen.once(field, &IMAGE)?;
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
