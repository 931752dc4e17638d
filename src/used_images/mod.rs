//! Finds out which images of the release that runs here this node uses, and which images of another release are needed then.
//!
//! ```text
//! containers in the store, pod templates of the API → ImageUse*
//! ClusterVersion, release images in the store ──────→ RunningRelease::find ─→ UsedTags::find ─→ UsedTags
//!                                                               Evidence ─────────↗                │
//! payload of the new release ───────────────────────────────────────────────────→ UsedTags::assess ┴→ TagVerdict*
//! ```
//!
//! Releases are compared by the names of their tags, because the images differ in nearly all of them. A tag of the new release
//! is left out only if the running release has the tag too, nothing here uses its image, and no rule keeps it. What is known is
//! either enough or refused: a [`Refusal`] explains what is missing and what to do.
//!
//! Nothing here does I/O or reads a clock.

mod evidence;
mod image_identity;
mod image_use;
mod refusal;
mod running_release;
mod tag_verdict;
mod used_tags;

#[cfg(test)]
mod tests;

pub use evidence::{Evidence, OperatorOfTag};
pub use image_identity::ImageIdentity;
pub use image_use::{ImageUse, ImageUser};
pub use refusal::Refusal;
pub use running_release::{RunningRelease, StoredRelease};
pub use tag_verdict::{Need, TagVerdict};
pub use used_tags::UsedTags;
