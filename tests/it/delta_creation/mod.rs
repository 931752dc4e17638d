//! Creates deltas between made releases and checks what a registry or a layout then holds.

mod creation;
mod interruption;
mod releases;
