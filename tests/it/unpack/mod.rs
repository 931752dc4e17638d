//! Unpacking one layer, compared with podman's, and hostile layers.

mod corpus;
mod differential;
mod entries;
mod hostile;
mod own_unpack;
mod podman_unpack;
mod random;
mod reread;
mod speed;
