//! Creates deltas from one release to the next, on the hub: `delta create`.

mod destination;
pub mod layer_diff;
mod oci_layout;

pub use destination::{Destination, DestinationError};
pub use oci_layout::{OciLayout, OciLayoutError};
