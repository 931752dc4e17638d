//! The version spec: what the coming upgrade needs, as the hub or a person wrote it down.
//!
//! Nothing here does I/O; whoever reads files hands their bytes in.

mod bracket;
mod bre;
mod exclude;

pub use bre::BreError;
pub use exclude::{Excludes, Hit, PatternError, Place};
