//! What is wanted, and why: sources turn a version spec into image requests.
//!
//! A release names its images in a payload ([`release`]), operators in a catalog ([`catalog`]); additional images name
//! themselves. Knows references and documents; how an image is laid out in the store, and how it
//! gets there, is others' matter.

pub mod catalog;
pub mod release;
mod request;

pub use request::{ImageRequest, Source, dedupe};
