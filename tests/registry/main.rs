//! Tests `registry`, `fetch` and `spool` together against a fake registry with faults, TLS servers and docker-registry.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod blobs;
mod connections;
mod corpus;
mod daemon;
mod delta_documents;
mod fake;
mod http2;
mod layouts;
mod login;
mod manifests;
mod media;
#[path = "../it/notice.rs"]
mod notice;
mod parallel_ranges;
mod proxies;
mod ranges;
mod referrers;
mod signature_files;
mod signatures;
mod skopeo;
mod slow;
mod throttle;
mod tls;
mod upload_faults;
mod uploads;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use spoke_precache::fetch::{BlobRequest, Fetcher};
use spoke_precache::oci::Reference;
use spoke_precache::registry::{ConfText, Registries, RegistrySettings, SystemRoots};
use spoke_precache::report::{Event, Observer};
use spoke_precache::spool::Spool;

/// An observer that keeps all events.
#[derive(Default)]
pub(crate) struct Log(Mutex<Vec<Event>>);

impl Observer for Log {
    fn observe(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }
}

impl Log {
    pub(crate) fn received(&self) -> u64 {
        let events = self.0.lock().unwrap();
        events
            .iter()
            .map(|event| {
                if let Event::BlobReceived { bytes, .. } = event {
                    *bytes
                } else {
                    0
                }
            })
            .sum()
    }

    /// The reasons for waiting.
    pub(crate) fn waits(&self) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let whys = events.iter().filter_map(|event| match event {
            Event::Waiting { why, .. } => Some(why.clone()),
            _ => None,
        });
        whys.collect()
    }

    pub(crate) fn retries(&self) -> Vec<String> {
        let events = self.0.lock().unwrap();
        let whys = events.iter().filter_map(|event| match event {
            Event::Retrying { why, .. } => Some(why.clone()),
            _ => None,
        });
        whys.collect()
    }
}

/// Settings without any trusted authority, and with short timeouts.
pub(crate) fn settings(registries_conf: &str) -> RegistrySettings {
    RegistrySettings {
        registries_conf: vec![ConfText {
            path: "registries.conf".into(),
            text: registries_conf.into(),
        }],
        system_roots: SystemRoots::Pem(Vec::new()),
        give_up_after: Some(Duration::from_secs(3)),
        idle_timeout: Duration::from_millis(500),
        ..RegistrySettings::default()
    }
}

/// A registries.conf that makes each host an insecure registry.
pub(crate) fn insecure(hosts: &[&str]) -> String {
    let table = |host: &&str| format!("[[registry]]\nlocation = '{host}'\ninsecure = true\n");
    hosts.iter().map(table).collect()
}

pub(crate) fn registries(settings: RegistrySettings) -> (Arc<Registries>, Arc<Log>) {
    let log = Arc::new(Log::default());
    (Arc::new(Registries::new(settings, log.clone()).unwrap()), log)
}

/// A fetcher with its own spool.
pub(crate) fn fetcher(settings: RegistrySettings, spool: &Path) -> (Fetcher, Arc<Log>) {
    let (registries, log) = registries(settings);
    let spool = Spool::open(spool).unwrap();
    let four = NonZeroUsize::new(4).unwrap();
    (Fetcher::new(registries, spool, log.clone(), four), log)
}

pub(crate) fn reference(text: &str) -> Reference {
    text.parse().unwrap()
}

pub(crate) fn request(bytes: &Bytes, from: &[String]) -> BlobRequest {
    BlobRequest {
        digest: spoke_precache::oci::Digest::of(bytes),
        size: bytes.len() as u64,
        connections: 1,
        images: from.iter().map(|name| reference(name)).collect(),
        is_optional: false,
        is_on_medium: false,
    }
}

/// Pseudo-random bytes, the same for each seed.
pub(crate) fn noise(length: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let bytes = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    });
    bytes.take(length).collect()
}
