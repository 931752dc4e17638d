//! Fetches blobs that media have, rightly or wrongly, beside a registry.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::fetch::{BlobRequest, Fetcher};
use spoke_precache::media::{Media, MediumPath};
use spoke_precache::oci::{Digest, Platform};
use spoke_precache::registry::{ConfText, Registries, RegistrySettings};
use spoke_precache::report::Event;
use spoke_precache::spool::{Spool, VerifiedBlob};

use crate::blobs::{World, text};
use crate::fake::Fake;
use crate::{Log, insecure, reference, request, settings};

const MIB: usize = 1 << 20;

/// An OCI layout.
struct Layout {
    path: PathBuf,
    tags: Vec<Value>,
}

impl Layout {
    fn new(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        let layout = Self {
            path,
            tags: Vec::new(),
        };
        layout.write_index();
        layout
    }

    fn write_index(&self) {
        let index = json!({"schemaVersion": 2, "manifests": self.tags});
        fs::write(self.path.join("index.json"), index.to_string()).unwrap();
    }

    fn put(&self, digest: Digest, content: &[u8]) -> Digest {
        fs::write(self.path.join("blobs/sha256").join(digest.hex()), content).unwrap();
        digest
    }

    fn put_json(&self, document: &Value) -> (Digest, usize) {
        let text = document.to_string();
        (self.put(Digest::of(text.as_bytes()), text.as_bytes()), text.len())
    }

    /// A manifest or an index with this name.
    fn put_tagged(&mut self, name: &str, document: &Value) -> Digest {
        let (digest, size) = self.put_json(document);
        self.tags.push(json!({
            "mediaType": document["mediaType"],
            "digest": digest.to_string(),
            "size": size,
            "annotations": {"org.opencontainers.image.ref.name": name},
        }));
        self.write_index();
        digest
    }
}

/// Media, each with what its file of the blob contains.
fn media(world: &World, contents: &[&[u8]]) -> Vec<PathBuf> {
    let digest = Digest::of(&world.bytes);
    let medium = |(number, content): (usize, &&[u8])| {
        let layout = Layout::new(world.dir.path().join(format!("medium-{number}")));
        layout.put(digest, content);
        layout.path
    };
    contents.iter().enumerate().map(medium).collect()
}

/// What happened in a fetch.
struct Fetched {
    blob: VerifiedBlob,
    fetcher: Fetcher,
    log: Arc<Log>,
}

impl Fetched {
    /// Copied bytes by the number of the medium.
    fn copied(&self, medium: usize) -> u64 {
        let name = format!("/medium-{medium}");
        let events = self.log.0.lock().unwrap();
        let bytes = events.iter().filter_map(|event| match event {
            Event::BlobCopied { medium, bytes, .. } if medium.ends_with(&name) => Some(*bytes),
            _ => None,
        });
        bytes.sum()
    }

    /// What failed, without the digest and what is done instead.
    fn failures(&self) -> Vec<String> {
        let events = self.log.0.lock().unwrap();
        let failures = events.iter().filter_map(|event| match event {
            Event::MediumFailed { medium, reason } => {
                let number = medium.rsplit('-').next()?;
                let (_, reason) = reason.split_once("`: ")?;
                Some(format!("{number}: {}", reason.split(';').next()?))
            }
            _ => None,
        });
        failures.collect()
    }
}

/// The spool after a run that fetched the beginning of the blob, or what was believed to be it.
fn spooled(world: &World, begin: &[u8]) {
    let spool = Spool::open(&world.dir.path().join("spool")).unwrap();
    let size = world.bytes.len() as u64;
    let mut partial = spool.partial(&Digest::of(&world.bytes), size).unwrap();
    partial.write(begin).unwrap();
}

fn with_media(settings: RegistrySettings, media: &[PathBuf]) -> (Arc<Registries>, Arc<Log>) {
    let paths: Vec<MediumPath> = media.iter().map(MediumPath::named).collect();
    let (media, warnings) = Media::open(&paths, &Cancel::default()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    let log = Arc::new(Log::default());
    let registries = Registries::new(settings, log.clone()).unwrap();
    (Arc::new(registries.with_media(Arc::new(media))), log)
}

async fn fetch(world: &World, media: &[PathBuf]) -> Fetched {
    let (registries, log) = with_media(settings(&insecure(&[&world.fake.host()])), media);
    let spool = Spool::open(&world.dir.path().join("spool")).unwrap();
    let fetcher = Fetcher::new(registries, spool, log.clone(), std::num::NonZeroUsize::MIN);
    let request = BlobRequest {
        is_on_medium: true,
        ..request(&world.bytes, &world.from())
    };
    let blob = fetcher.fetch(request, &Cancel::default()).await.unwrap();
    assert_eq!(text(&blob), world.bytes);
    Fetched { blob, fetcher, log }
}

#[tokio::test]
async fn a_blob_on_a_medium_is_copied_and_no_registry_is_asked() {
    let world = World::new(3 * MIB + 7).await;
    let media = media(&world, &[&world.bytes]);
    let fetched = fetch(&world, &media).await;
    assert_eq!(world.fake.seen("").len(), 0);
    assert_eq!(fetched.copied(0), fetched.blob.size());
    assert_eq!((fetched.log.received(), fetched.fetcher.received()), (0, 0));
    assert_eq!(fetched.fetcher.take_not_on_media(), 0);
    assert_eq!(fetched.failures(), [""; 0]);
}

#[tokio::test]
async fn what_the_spool_has_is_not_copied_again() {
    let world = World::new(2 * MIB).await;
    spooled(&world, &world.bytes[..MIB]);
    let media = media(&world, &[&world.bytes]);
    assert_eq!(fetch(&world, &media).await.copied(0), MIB as u64);
    assert_eq!(world.fake.seen("").len(), 0);
}

#[tokio::test]
async fn wrong_bytes_of_an_earlier_run_are_not_the_fault_of_the_medium() {
    let world = World::new(2 * MIB).await;
    spooled(&world, &[0; MIB]);
    let media = media(&world, &[&world.bytes]);
    let fetched = fetch(&world, &media).await;
    assert_eq!(fetched.copied(0), 3 * MIB as u64);
    assert_eq!((world.fake.seen("").len(), fetched.failures()), (0, vec![]));
}

#[tokio::test]
async fn a_medium_with_wrong_bytes_is_followed_by_the_next_one() {
    let world = World::new(2 * MIB).await;
    let mut wrong = world.bytes.to_vec();
    wrong[MIB] ^= 1;
    let media = media(&world, &[&wrong, &world.bytes[..MIB], &world.bytes]);
    let fetched = fetch(&world, &media).await;
    assert_eq!(world.fake.seen("").len(), 0);
    assert_eq!(fetched.copied(2), 2 * MIB as u64);
    let found = Digest::of(&wrong);
    assert_eq!(
        fetched.failures(),
        [
            format!("0: its bytes have the digest {found}"),
            format!("1: it has {MIB} bytes, and the manifest states {}", 2 * MIB),
        ]
    );
}

#[tokio::test]
async fn without_a_right_medium_the_registry_sends_the_blob() {
    let world = World::new(2 * MIB).await;
    let mut wrong = world.bytes.to_vec();
    wrong[0] ^= 1;
    let media = media(&world, &[&wrong]);
    let fetched = fetch(&world, &media).await;
    assert_eq!(world.starts(), [None]);
    assert_eq!(fetched.log.received(), 2 * MIB as u64);
    assert_eq!(fetched.fetcher.take_not_on_media(), 2 * MIB as u64);
    assert_eq!(fetched.fetcher.take_not_on_media(), 0);
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

#[tokio::test]
async fn an_image_with_signatures_and_referrers_on_a_medium_needs_no_request() {
    let (fake, dir) = (Fake::start().await, tempfile::tempdir().unwrap());
    let mut layout = Layout::new(dir.path().join("medium"));
    let platform: Platform = "linux/amd64".parse().unwrap();
    let config = json!({
        "os": "linux", "architecture": "amd64", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"tar").to_string()]},
    });
    let (config, config_size) = layout.put_json(&config);
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.to_string(), "size": config_size},
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": Digest::of(b"blob").to_string(), "size": 4,
        }],
    });
    let (manifest, _) = layout.put_json(&manifest);
    let repository = format!("{}/a", fake.host());
    let image = reference(&format!("{repository}@{manifest}"));
    // Signatures in both forms.
    let payload = layout.put(Digest::of(b"payload"), b"payload");
    layout.put_tagged(
        &format!("{repository}:sha256-{}.sig", manifest.hex()),
        &json!({
            "schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": config.to_string(), "size": config_size},
            "layers": [{
                "mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": payload.to_string(), "size": 7,
                "annotations": {"dev.cosignproject.cosign/signature": "c2ln"},
            }],
        }),
    );
    let lookaside = layout
        .path
        .join(format!("lookaside/{repository}@sha256={}", manifest.hex()));
    fs::create_dir_all(&lookaside).unwrap();
    fs::write(lookaside.join("signature-1"), b"\x90simple").unwrap();
    let kind = "application/vnd.example.kind";
    let referrer = Digest::of(b"referrer");
    layout.put_tagged(
        &format!("{repository}:sha256-{}", manifest.hex()),
        &json!({
            "schemaVersion": 2, "mediaType": INDEX,
            "manifests": [{"mediaType": MANIFEST, "digest": referrer.to_string(), "size": 3, "artifactType": kind}],
        }),
    );

    let with_attachments = |on: bool| RegistrySettings {
        registries_d: vec![ConfText {
            path: "a.yaml".into(),
            text: format!("default-docker:\n  use-sigstore-attachments: {on}\n"),
        }],
        ..settings(&insecure(&[&fake.host()]))
    };
    let (registries, _) = with_media(with_attachments(true), &[layout.path.clone()]);
    let cancel = Cancel::default();
    let resolved = registries
        .resolve(&image, &platform, &|_| None, &cancel)
        .await
        .unwrap();
    assert_eq!(
        (resolved.image.manifest.digest(), resolved.source),
        (manifest, None)
    );
    assert_eq!(registries.media_signatures(&image, manifest).await.len(), 2);
    let referrers = registries
        .referrers(&image, manifest, kind, &cancel)
        .await
        .unwrap();
    assert_eq!(
        referrers.iter().map(|it| it.digest).collect::<Vec<_>>(),
        [referrer]
    );
    let (registries, _) = with_media(with_attachments(false), &[layout.path]);
    assert_eq!(
        registries.media_signatures(&image, manifest).await.len(),
        1,
        "attachments are off"
    );
    assert_eq!(fake.seen("").len(), 0);
}
