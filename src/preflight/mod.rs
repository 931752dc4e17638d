//! Checks before the first download whether the plan fits on the disk.
//!
//! Above its image garbage collection threshold the kubelet removes images that no container uses, and pre-cached images are
//! such images. So only the space below that threshold counts. [`Space`] reads the numbers; [`check_space`] compares them and
//! reads nothing.

mod filesystem;
mod gc_threshold;
mod mount;
mod space_check;
mod space_json;

#[cfg(test)]
mod tests;

pub use filesystem::{FilesystemError, Space};
pub use gc_threshold::{Threshold, ThresholdError};
pub use mount::Mount;
pub use space_check::{
    Cause, Demand, FilesystemCheck, FilesystemUse, NotEnoughSpace, SpaceCheck, Spaces, check_space,
};
