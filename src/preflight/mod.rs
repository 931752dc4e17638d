//! Before the first blob: is there space for what the plan needs?
//!
//! A node whose image file system fills up beyond the kubelet's threshold loses images that nobody uses at the moment,
//! which is what pre-cached images are. So the measure is not what the disk has but what it has below that line.
//! [`Space`] reads the numbers, [`verdict()`] compares them and reads nothing.

mod document;
mod mount;
mod space;
mod threshold;
mod verdict;

#[cfg(test)]
mod tests;

pub use mount::Mount;
pub use space::{Space, SpaceError};
pub use threshold::{Threshold, ThresholdError};
pub use verdict::{Cause, Check, Demand, Holds, NotEnoughSpace, Spaces, Verdict, verdict};
