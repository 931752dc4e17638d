//! What the targets that unpack share: a place where a bug costs nothing, and what must hold for every layer.

pub mod jail;
pub mod layer;
