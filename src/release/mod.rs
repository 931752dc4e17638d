//! Reads a release's payload and its manifests, and selects the images to pull.

pub mod manifests;
mod os_tag;
mod payload;
mod payload_search;
mod select;

pub use os_tag::OsTag;
pub use payload::{IMAGE_REFERENCES, Payload, PayloadError, PayloadImage, RELEASE_METADATA};
pub use payload_search::PayloadSearch;
pub use select::{Excluded, Selection, select};
