//! Creates deltas between made releases and checks what a registry or a layout then holds.

mod application;
mod creation;
mod interruption;
mod releases;

pub(crate) use releases::TinyRelease;
