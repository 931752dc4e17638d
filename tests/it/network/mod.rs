//! What lies between a node and its registries at a site, with the programs that sites run: proxies, certificates, name
//! servers.

pub(crate) mod certificates;
mod dns;
mod high_latency;
mod proxies;
mod proxy_errors;
pub(crate) mod servers;
mod site;
