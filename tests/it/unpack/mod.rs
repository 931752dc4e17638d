//! Unpacking one layer, compared with podman's, and hostile layers.

mod corpus;
mod differential;
mod entries;
mod hostile;
mod ours;
mod random;
mod reread;
mod speed;
mod theirs;
