//! Tests the network between a node and its registries with real proxies, certificates and name servers.

pub(crate) mod certificates;
mod dns;
mod high_latency;
mod proxies;
mod proxy_errors;
pub(crate) mod servers;
mod site;
