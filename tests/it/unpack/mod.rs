//! Unpacks single layers: compared with podman, and malicious ones.

mod corpus;
mod differential;
mod entries;
mod hostile;
mod own_unpack;
mod podman_unpack;
mod random;
mod reread;
mod speed;
