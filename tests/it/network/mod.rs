//! What lies between a node and its registries at a site, with the programs that sites run: proxies, certificates, name
//! servers.

pub(crate) mod certificates;
mod far_away;
mod names;
pub(crate) mod programs;
mod proxies;
mod proxy_trouble;
mod site;
