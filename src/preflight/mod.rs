//! Before the first blob: is there space for what the plan needs?
//!
//! A node whose image file system fills up beyond the kubelet's threshold loses images that nobody uses at the moment,
//! which is what pre-cached images are. So the measure is not what the disk has but what it has below that line.
//! [`Space`] reads the numbers, [`verdict()`] compares them and reads nothing.

mod filesystem;
mod gc_threshold;
mod mount;
mod space_check;
mod space_json;

#[cfg(test)]
mod tests;

pub use filesystem::{Space, SpaceError};
pub use gc_threshold::{Threshold, ThresholdError};
pub use mount::Mount;
pub use space_check::{Cause, Check, Demand, Holds, NotEnoughSpace, Spaces, Verdict, verdict};
