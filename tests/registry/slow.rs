//! Downloads from slow and silent sources, with and without a faster source.

use std::net::TcpListener;
use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use serde_json::json;
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::oci::{Digest, Platform};
use spoke_precache::registry::RegistrySettings;

use crate::blobs::text;
use crate::fake::{Fake, Seen, serve_slowly, trickle};
use crate::{fetcher, noise, reference, registries, request, settings};

const KIND: &str = "application/octet-stream";
const MIB: usize = 1 << 20;

/// A mirror and its origin, both with the same blob.
struct Pair {
    mirror: Fake,
    origin: Fake,
    bytes: Bytes,
}

impl Pair {
    async fn new(size: usize) -> Self {
        let (mirror, origin, bytes) = (Fake::start().await, Fake::start().await, noise(size, 3));
        for fake in [&mirror, &origin] {
            fake.put_blob("a", &bytes);
        }
        Self {
            mirror,
            origin,
            bytes,
        }
    }

    fn settings(&self) -> RegistrySettings {
        let (origin, mirror) = (self.origin.host(), self.mirror.host());
        RegistrySettings {
            idle_timeout: Duration::from_secs(30),
            give_up_after: None,
            ..settings(&format!(
                "[[registry]]\nlocation = '{origin}'\ninsecure = true\n\
                 [[registry.mirror]]\nlocation = '{mirror}'\ninsecure = true\n"
            ))
        }
    }

    fn from(&self) -> Vec<String> {
        vec![format!("{}/a:1", self.origin.host())]
    }

    /// The first bytes of the ranges that both were asked for.
    fn starts(&self) -> [Vec<usize>; 2] {
        [&self.mirror, &self.origin].map(|fake| {
            let seen = fake.seen("/blobs/");
            seen.iter().map(|seen| seen.range_start().unwrap_or(0)).collect()
        })
    }
}

/// Answers requests for blobs with chunks of this size, ten times a second.
fn slow(fake: &Fake, bytes: &Bytes, piece: usize) {
    let bytes = bytes.clone();
    fake.fault(move |seen: &Seen| {
        let is_blob = seen.path.contains("/blobs/");
        is_blob.then(|| trickle(seen, KIND, &bytes, piece))
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trickling_mirror_is_left_for_the_origin_and_its_bytes_are_kept() {
    let pair = Pair::new(9 * MIB).await;
    slow(&pair.mirror, &pair.bytes, 1);
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, log) = fetcher(pair.settings(), dir.path());
    let cancel = Cancel::default();
    let blob = fetcher.fetch(request(&pair.bytes, &pair.from()), &cancel).await;
    assert_eq!(text(&blob.unwrap()), pair.bytes);
    assert_eq!(log.received(), pair.bytes.len() as u64, "nothing twice");
    let [mirror, origin] = pair.starts();
    assert_eq!(mirror, [0], "{origin:?}");
    assert!(origin[0] > 0, "{origin:?}");
    let why = log.retries();
    assert!(why[0].contains("going on with"), "{why:?}");

    // The next blob is not requested from the mirror again.
    let next = noise(MIB, 4);
    for fake in [&pair.mirror, &pair.origin] {
        fake.put_blob("a", &next);
    }
    fetcher
        .fetch(request(&next, &pair.from()), &cancel)
        .await
        .unwrap();
    assert_eq!(pair.starts()[0].len(), 1, "the mirror is not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_trickles_a_manifest_is_left() {
    let pair = Pair::new(1).await;
    let config = Bytes::from(
        json!({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": {"type": "layers", "diff_ids": []}})
            .to_string(),
    );
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": Digest::of(&config).to_string(),
            "size": config.len(),
        },
        "layers": [],
    });
    let manifest = Bytes::from(manifest.to_string());
    for fake in [&pair.mirror, &pair.origin] {
        fake.put_blob("a", &config);
        fake.put(
            "/v2/a/manifests/1",
            "application/vnd.oci.image.manifest.v1+json",
            manifest.clone(),
        );
    }
    pair.mirror.fault(move |seen| {
        Some(trickle(
            seen,
            "application/vnd.oci.image.manifest.v1+json",
            &manifest,
            1,
        ))
    });
    let (registries, log) = registries(pair.settings());
    let reference = reference(&pair.from()[0]);
    let known = |_: &Digest| None;
    let platform = Platform {
        os: "linux".into(),
        architecture: "amd64".into(),
        ..Platform::of_this_node()
    };
    let resolved = registries
        .resolve(&reference, &platform, &known, &Cancel::default())
        .await;
    assert!(resolved.is_ok(), "{:?}: {:?}", resolved.err(), log.retries());
    assert_eq!(pair.mirror.seen("").len(), 1, "not for the config either");
}

/// 20 kB/s each: the origin is tried, turns out no better, and the mirror is returned to for good.
#[tokio::test(flavor = "multi_thread")]
async fn connections_do_not_alternate_between_two_slow_sources() {
    let pair = Pair::new(700_000).await;
    for fake in [&pair.mirror, &pair.origin] {
        slow(fake, &pair.bytes, 2_000);
    }
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, log) = fetcher(pair.settings(), dir.path());
    let blob = fetcher
        .fetch(request(&pair.bytes, &pair.from()), &Cancel::default())
        .await;
    assert_eq!(text(&blob.unwrap()), pair.bytes);
    assert_eq!(log.received(), pair.bytes.len() as u64, "nothing twice");
    let [mirror, origin] = pair.starts();
    assert_eq!((mirror.len(), origin.len()), (2, 1), "{mirror:?} {origin:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_that_is_only_half_as_fast_is_kept() {
    let pair = Pair::new(8 * MIB).await;
    for (fake, pause) in [(&pair.mirror, 60), (&pair.origin, 30)] {
        let (bytes, pause) = (pair.bytes.clone(), Duration::from_millis(pause));
        fake.fault(move |seen| Some(serve_slowly(seen, KIND, &bytes, pause)));
    }
    let dir = tempfile::tempdir().unwrap();
    let (fetcher, _) = fetcher(pair.settings(), dir.path());
    let cancel = Cancel::default();
    let fetched = fetcher.fetch(request(&pair.bytes, &pair.from()), &cancel);
    fetched.await.unwrap();
    assert!(pair.starts()[1].is_empty(), "the origin is not asked");
}

/// The only source goes on, and its rate is reported.
#[tokio::test(flavor = "multi_thread")]
async fn a_single_source_that_trickles_is_kept_and_reported() {
    let (fake, bytes) = (Fake::start().await, noise(MIB, 3));
    fake.put_blob("a", &bytes);
    slow(&fake, &bytes, 1);
    let why = reported_wait(&fake.host(), &bytes, "sends only").await;
    assert!(why.contains("bytes a second"), "{why}");
    assert_eq!(fake.seen("/blobs/").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_accepts_and_does_not_answer_is_reported() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let why = reported_wait(&host, &noise(1000, 1), "no answer from").await;
    assert!(why.contains(&format!("no answer from `{host}` for ")), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_server_that_does_not_answer_is_reported_by_its_name() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = silent.local_addr().unwrap().to_string();
    let (fake, bytes) = (Fake::start().await, noise(1000, 1));
    fake.put_blob("a", &bytes);
    let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"fake\"");
    fake.fault(move |_| {
        let headers = [(header::WWW_AUTHENTICATE, challenge.clone())];
        Some((StatusCode::UNAUTHORIZED, headers).into_response())
    });
    let why = reported_wait(&fake.host(), &bytes, "no answer from").await;
    assert!(why.contains(&format!("no answer from `{host}`")), "{why}");
}

/// Downloads until a wait is reported whose reason contains `what`.
async fn reported_wait(host: &str, bytes: &Bytes, what: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let settings = RegistrySettings {
        idle_timeout: Duration::from_secs(30),
        ..settings(&crate::insecure(&[host]))
    };
    let (fetcher, log) = fetcher(settings, dir.path());
    let cancel = Cancel::default();
    let fetch = fetcher.fetch(request(bytes, &[format!("{host}/a:1")]), &cancel);
    let wait = async {
        for _ in 0..300 {
            if let Some(why) = log.waits().into_iter().find(|why| why.contains(what)) {
                cancel.stop(StopReason::Deadline);
                return why;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("nothing is reported: {:?}", log.waits());
    };
    tokio::join!(fetch, wait).1
}
