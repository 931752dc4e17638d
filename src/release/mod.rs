//! Reads a release's payload and selects the images to pull.

mod payload;
mod select;

pub use payload::{IMAGE_REFERENCES, Payload, PayloadError, PayloadImage, RELEASE_METADATA};
pub use select::{Excluded, Selection, select};
