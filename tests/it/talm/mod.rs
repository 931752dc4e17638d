//! Compares the program with TALM's scripts.

mod bugs;
mod differential;
