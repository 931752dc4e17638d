//! Beside the hub's scripts: their bugs (talm-contract.md, section 8), and what they and we make of the same inputs.

mod bugs;
mod differential;
