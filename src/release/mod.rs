//! A release: the images that its payload lists, less those that are excluded.

mod payload;
mod select;

pub use payload::{IMAGE_REFERENCES, Payload, PayloadError, RELEASE_METADATA, Tag};
pub use select::{Excluded, Selection, select};
