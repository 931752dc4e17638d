//! Tests the container image, and the program started from it as TALM's Job starts it.
//!
//! The image holds what [`product`](crate::test_node::product) names: a static release build where `SPOKE_PRODUCT` gives one,
//! and otherwise the binary just built, whose loader and libraries are then laid beside it where it is started.

mod cgroup;
mod contents;
mod environment;
mod image_build;
mod licences;
mod limits;
mod mounts;
mod pod;
