//! Everything that is tested from outside: the product against a registry that fails on command, with stock tools as the
//! oracle.
//!
//! One binary, so that it links once. `image`, `registry` and `link` are helpers that examples and benches include too;
//! `world`, `stock`, `failing`, `compare` and `needs` are for tests alone; the other modules are tests, one story each.
//! Tests that need root or a tool say loudly that they did not run; with `CI=true` that is a failure. `SPOKE_LONG=1` adds
//! what takes minutes, `SPOKE_STOCK_ROOT=$(.ci/stock-trixie)` takes the stock tools from another Debian.

#![allow(clippy::unwrap_used)]

mod compare;
mod failing;
mod image;
mod link;
mod needs;
mod operators;
mod registry;
mod stock;
mod store;
mod unpack;
mod world;

mod additional;
mod alongside;
mod applet;
mod catalog;
mod cluster;
mod container;
mod crash;
mod cut_off;
mod disk;
mod disk_errors;
mod disk_full;
mod documentation;
mod documents;
mod failing_spool;
mod faults;
mod forecast;
mod host_storage;
mod hostile;
mod imports;
mod instants;
mod leaving;
mod leftovers;
mod limit_rate;
mod logins;
mod manifests;
mod names;
mod network;
mod odd_json;
mod oracles;
mod page_cache;
mod pins;
mod power;
mod refusals;
mod release;
mod resume;
mod root_entry;
mod scale;
mod service;
mod settings;
mod talm;
mod verify;
mod waiting;
mod zoo;
