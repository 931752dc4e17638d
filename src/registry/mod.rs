//! Registries.

mod mirrors;
mod registries_conf;

pub use mirrors::PullSource;
pub use registries_conf::{ConfText, RegistriesConf, RegistriesConfError};
