//! Creates deltas from one release to the next, on the hub: `delta create`.

pub mod layer_diff;
