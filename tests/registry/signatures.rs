//! Downloads the signatures of images: sigstore attachments of a registry, and lookaside stores.

use std::fs;
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect};
use bytes::Bytes;
use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Digest, Platform};
use spoke_precache::registry::{ConfText, Kind, PullSource, Registries, RegistryError, RegistrySettings};
use spoke_precache::signature::{Signature, SigstoreSignature};

use crate::fake::Fake;
use crate::{Log, insecure, noise, reference, registries, settings};

const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";
const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const ANNOTATION: &str = "dev.cosignproject.cosign/signature";

/// The first byte of a compressed OpenPGP message, and anything.
const MESSAGE: &[u8] = b"\xa3message";

/// A registry, its mirror, and an empty host.
struct World {
    origin: Fake,
    mirror: Fake,
    host_root: tempfile::TempDir,
    manifest: Digest,
}

impl World {
    async fn new() -> Self {
        Self {
            origin: Fake::start().await,
            mirror: Fake::start().await,
            host_root: tempfile::tempdir().unwrap(),
            manifest: Digest::of(b"{}"),
        }
    }

    /// Without a mirror, and with this registries.d.
    fn settings(&self, registries_d: &str) -> RegistrySettings {
        self.settings_with(&insecure(&[&self.origin.host()]), registries_d)
    }

    fn settings_with(&self, registries_conf: &str, registries_d: &str) -> RegistrySettings {
        RegistrySettings {
            registries_d: vec![ConfText {
                path: "d.yaml".into(),
                text: registries_d.into(),
            }],
            host_root: self.host_root.path().into(),
            ..settings(registries_conf)
        }
    }

    fn mirrored(&self, registries_d: &str) -> RegistrySettings {
        let conf = format!(
            "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}/m'\n\
             insecure = true",
            self.origin.host(),
            self.mirror.host()
        );
        self.settings_with(&conf, registries_d)
    }

    fn name(&self) -> String {
        format!("{}/team/a@{}", self.origin.host(), self.manifest)
    }

    async fn signatures(
        &self,
        settings: RegistrySettings,
        source: Option<&PullSource>,
    ) -> (Result<Vec<Signature>, RegistryError>, Arc<Log>) {
        let (registries, log) = registries(settings);
        let image = reference(&self.name());
        let found = registries
            .signatures(&image, source, self.manifest, &Cancel::default())
            .await;
        (found, log)
    }

    async fn error(&self, registries_d: &str) -> RegistryError {
        let (found, _) = self.signatures(self.settings(registries_d), None).await;
        found.unwrap_err()
    }

    fn tag(&self) -> String {
        format!("sha256-{}.sig", self.manifest.hex())
    }

    /// Serves attachments: a payload with its annotation each.
    fn attach(&self, fake: &Fake, repository: &str, signatures: &[(&Bytes, &str)]) {
        let layers = signatures.iter().map(|(payload, annotation)| {
            fake.put_blob(repository, payload);
            layer(payload, payload.len(), annotation)
        });
        let path = format!("/v2/{repository}/manifests/{}", self.tag());
        fake.put(&path, IMAGE, manifest(layers.collect()));
    }

    fn store_path(&self, number: usize) -> String {
        format!("/s/team/a@sha256={}/signature-{number}", self.manifest.hex())
    }
}

fn layer(payload: &[u8], size: usize, annotation: &str) -> Value {
    json!({"mediaType": PAYLOAD, "digest": Digest::of(payload), "size": size,
        "annotations": {ANNOTATION: annotation}})
}

fn manifest(layers: Vec<Value>) -> String {
    let config = json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(b"config"),
        "size": 6});
    json!({"schemaVersion": 2, "mediaType": IMAGE, "config": config, "layers": layers}).to_string()
}

fn sigstore(payload: &Bytes, annotation: &str) -> Signature {
    Signature::Sigstore(SigstoreSignature {
        mime_type: PAYLOAD.into(),
        payload: payload.to_vec(),
        annotations: Some([(ANNOTATION.into(), annotation.into())].into()),
    })
}

const ATTACHMENTS: &str = "default-docker: {use-sigstore-attachments: true}";

#[tokio::test(flavor = "multi_thread")]
async fn attachments_are_read_from_the_mirror_that_answered() {
    let world = World::new().await;
    let config = Bytes::from(
        json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}})
            .to_string(),
    );
    let image = Bytes::from(
        json!({"schemaVersion": 2, "mediaType": IMAGE, "layers": [],
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(&config),
                "size": config.len()}})
        .to_string(),
    );
    let world = World {
        manifest: Digest::of(&image),
        ..world
    };
    let path = format!("/v2/m/team/a/manifests/{}", world.manifest);
    world.mirror.put(&path, IMAGE, image);
    world.mirror.put_blob("m/team/a", &config);
    let (one, two) = (noise(300, 1), noise(300, 2));
    let attached = [(&one, "first"), (&two, "second"), (&one, "third")];
    world.attach(&world.mirror, "m/team/a", &attached);
    // The key is the mirror's name: the origin's would turn them off.
    let registries_d = format!(
        "docker: {{'{}': {{use-sigstore-attachments: false}}, '{}/m': {{use-sigstore-attachments: true}}}}",
        world.origin.host(),
        world.mirror.host()
    );

    let (registries, _) = registries(world.mirrored(&registries_d));
    let (name, platform) = (
        reference(&world.name()),
        "linux/amd64".parse::<Platform>().unwrap(),
    );
    assert!(registries.has_signature_sources(&name));
    let cancel = Cancel::default();
    let resolved = registries
        .resolve(&name, &platform, &|_| None, &cancel)
        .await
        .unwrap();
    let source = resolved.source.expect("the mirror");
    assert_eq!(source.reference.domain(), world.mirror.host());
    let found = registries
        .signatures(&name, Some(&source), world.manifest, &cancel)
        .await;
    let expected = attached.map(|(payload, annotation)| sigstore(payload, annotation));
    assert_eq!(found.unwrap(), expected, "in the order of their manifest");
    assert_eq!(world.mirror.seen("").len(), 5, "each payload once");
    assert_eq!(world.origin.seen("").len(), 0);

    // Of an image that is in the store, the source is unknown; that of its manifest shows it.
    let (found, _) = world.signatures(world.mirrored(&registries_d), None).await;
    assert_eq!(found.unwrap(), expected);
    assert_eq!(world.mirror.seen("").len(), 9);
    assert_eq!(world.origin.seen("").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_requested_where_no_signature_can_be() {
    let world = World::new().await;
    let sigstore = world.host_root.path().join("var/lib/containers/sigstore");
    for step in ["no directory", "an empty directory", "another repository"] {
        match step {
            "no directory" => {}
            "an empty directory" => fs::create_dir_all(&sigstore).unwrap(),
            _ => fs::create_dir(sigstore.join("other")).unwrap(),
        }
        let (registries, _) = registries(world.mirrored(""));
        assert!(
            !registries.has_signature_sources(&reference(&world.name())),
            "{step}"
        );
        let (found, _) = world.signatures(world.mirrored(""), None).await;
        assert_eq!(found.unwrap(), [], "{step}");
    }
    assert_eq!((world.origin.seen("").len(), world.mirror.seen("").len()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_without_signatures_is_no_error() {
    let world = World::new().await;
    let d = format!(
        "default-docker: {{use-sigstore-attachments: true, lookaside: 'http://{}'}}",
        world.mirror.host()
    );
    let (found, log) = world.signatures(world.settings(&d), None).await;
    assert_eq!(found.unwrap(), []);
    assert_eq!(log.retries(), [""; 0]);
    assert_eq!(world.origin.seen(".sig").len(), 1);
    assert_eq!(world.mirror.seen("/signature-1").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn lookaside_signatures_come_before_attachments() {
    let world = World::new().await;
    let payload = noise(300, 1);
    world.attach(&world.origin, "team/a", &[(&payload, "x")]);
    for number in 1..=2 {
        let message = [MESSAGE, number.to_string().as_bytes()].concat();
        world.mirror.put(&world.store_path(number), "text/plain", message);
    }
    world.mirror.put(&world.store_path(4), "text/plain", MESSAGE);
    let d = format!(
        "default-docker: {{use-sigstore-attachments: true, lookaside: 'http://{}/s'}}",
        world.mirror.host()
    );
    let (found, _) = world.signatures(world.settings(&d), None).await;
    let simple = |number: &str| Signature::Simple([MESSAGE, number.as_bytes()].concat());
    let expected = [simple("1"), simple("2"), sigstore(&payload, "x")];
    assert_eq!(
        found.unwrap(),
        expected,
        "the third is missing, so the fourth is not read"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookaside_store_may_be_a_directory_of_the_host() {
    let world = World::new().await;
    for (d, directory) in [
        ("", "var/lib/containers/sigstore"),
        (
            "default-docker: {sigstore: 'file:///srv/my%20store'}",
            "srv/my store",
        ),
    ] {
        let of_image = format!("team/a@sha256={}", world.manifest.hex());
        let directory = world.host_root.path().join(directory).join(of_image);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("signature-1"), MESSAGE).unwrap();
        let (registries, _) = registries(world.settings(d));
        assert!(registries.has_signature_sources(&reference(&world.name())));
        let (found, _) = world.signatures(world.settings(d), None).await;
        assert_eq!(found.unwrap(), [Signature::Simple(MESSAGE.into())]);
        fs::create_dir(directory.join("signature-2")).unwrap();
        let error = world.error(d).await;
        assert!(error.to_string().ends_with("it is not a regular file"), "{error}");
    }
    assert_eq!(world.origin.seen("").len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn passing_failures_are_retried() {
    let world = World::new().await;
    let payload = noise(300, 1);
    world.attach(&world.origin, "team/a", &[(&payload, "x")]);
    world.mirror.put(&world.store_path(1), "text/plain", MESSAGE);
    for fake in [&world.origin, &world.mirror] {
        let seen = std::sync::Mutex::new(Vec::new());
        fake.fault(move |request| {
            let mut seen = seen.lock().unwrap();
            let is_first = !seen.contains(&request.path);
            seen.push(request.path.clone());
            is_first.then(|| StatusCode::BAD_GATEWAY.into_response())
        });
    }
    let d = format!(
        "default-docker: {{use-sigstore-attachments: true, lookaside: 'http://{}/s'}}",
        world.mirror.host()
    );
    let (found, log) = world.signatures(world.settings(&d), None).await;
    assert_eq!(
        found.unwrap(),
        [Signature::Simple(MESSAGE.into()), sigstore(&payload, "x")]
    );
    assert_eq!(log.retries().len(), 4, "{:?}", log.retries());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_attachments_are_refused() {
    let world = World::new().await;
    let path = format!("/v2/team/a/manifests/{}", world.tag());
    let payload = noise(300, 1);
    let blob = format!("/v2/team/a/blobs/{}", Digest::of(&payload));
    world.origin.put(&blob, "x/y", &b"something else"[..]);
    let large = noise((4 << 20) + 1, 2);
    world.origin.put_blob("team/a", &large);
    let four = layer(b"0", 4 << 20, "x");
    for (kind, body, expected, why) in [
        (
            "text/html",
            "<html>".into(),
            Kind::Malformed,
            "not an OCI image manifest",
        ),
        (IMAGE, "<html>".into(), Kind::Malformed, "cannot be read"),
        (
            IMAGE,
            " ".repeat((4 << 20) + 1),
            Kind::Malformed,
            "larger than 4194304 bytes",
        ),
        (
            IMAGE,
            manifest(vec![layer(b"0", 1, "x"); 129]),
            Kind::Malformed,
            "has 129 signatures",
        ),
        (
            IMAGE,
            manifest(vec![four.clone(); 5]),
            Kind::Malformed,
            "larger than 16777216 bytes",
        ),
        (
            IMAGE,
            manifest(vec![layer(&large, large.len(), "x")]),
            Kind::Malformed,
            "larger than 4194304 bytes",
        ),
        (
            IMAGE,
            manifest(vec![layer(&payload, payload.len(), "x")]),
            Kind::DigestMismatch,
            "the content has the digest",
        ),
        (IMAGE, manifest(vec![layer(b"1", 1, "x")]), Kind::NotFound, "404"),
    ] {
        world.origin.put(&path, kind, body);
        let error = world.error(ATTACHMENTS).await;
        assert_eq!(error.kind(), expected, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }

    for (status, kind) in [
        (StatusCode::FORBIDDEN, Kind::Unauthorized),
        (StatusCode::GONE, Kind::Network),
    ] {
        world.origin.fault(move |_| Some(status.into_response()));
        let error = world.error(ATTACHMENTS).await;
        assert_eq!(error.kind(), kind, "{error}");
    }
    let elsewhere = path.clone();
    world
        .origin
        .fault(move |_| Some(Redirect::temporary(&elsewhere).into_response()));
    let error = world.error(ATTACHMENTS).await;
    assert!(error.to_string().contains("more than 10 redirects"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_lookaside_stores_are_refused() {
    let world = World::new().await;
    let store = format!("http://{}/s", world.mirror.host());
    let d = format!("default-docker: {{lookaside: '{store}'}}");
    for (body, why) in [
        (Vec::new(), "empty signature"),
        (b"<html>Please log in".to_vec(), "0x3c"),
        (vec![0xa3; (4 << 20) + 1], "larger than 4194304 bytes"),
    ] {
        world.mirror.put(&world.store_path(1), "text/html", body);
        let error = world.error(&d).await;
        assert_eq!(error.kind(), Kind::Malformed, "{error}");
        let url = format!(
            "signature `{store}/team/a@sha256={}/signature-1`",
            world.manifest.hex()
        );
        assert!(
            error.to_string().starts_with(&url) && error.to_string().contains(why),
            "{error}"
        );
    }
    for status in [
        StatusCode::FORBIDDEN,
        StatusCode::UNAUTHORIZED,
        StatusCode::NO_CONTENT,
    ] {
        world.mirror.fault(move |_| Some(status.into_response()));
        let error = world.error(&d).await;
        assert!(matches!(error, RegistryError::Status { .. }), "{error}");
    }

    let before = world.mirror.seen("").len();
    world.mirror.fault(|_| Some(MESSAGE.into_response()));
    let error = world.error(&d).await.to_string();
    assert_eq!(
        error,
        format!(
            "lookaside store `{store}/team/a`: it has 128 or more signatures of one image, as if it never ended"
        )
    );
    assert_eq!(world.mirror.seen("").len() - before, 128);

    world.mirror.fault(|_| Some(vec![0xa3; 3 << 20].into_response()));
    let error = world.error(&d).await;
    assert!(
        matches!(error, RegistryError::TooLarge { .. }),
        "16 MiB in all: {error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stores_password_is_sent_to_it_and_never_shown() {
    let world = World::new().await;
    world.mirror.put(&world.store_path(1), "text/plain", MESSAGE);
    let d = format!(
        "default-docker: {{lookaside: 'http://user:hunter2@{}/s'}}",
        world.mirror.host()
    );
    let auth_file = world.host_root.path().join("auth.json");
    let auths = json!({"auths": {world.mirror.host(): {"username": "registry", "password": "secret"}}});
    fs::write(&auth_file, auths.to_string()).unwrap();
    let settings = RegistrySettings {
        auth_files: vec![auth_file],
        ..world.settings(&d)
    };
    let (found, _) = world.signatures(settings.clone(), None).await;
    assert_eq!(found.unwrap().len(), 1);
    for seen in world.mirror.seen("") {
        // `user:hunter2`
        assert_eq!(
            seen.header(header::AUTHORIZATION).unwrap(),
            "Basic dXNlcjpodW50ZXIy"
        );
    }
    world
        .mirror
        .fault(|_| Some(StatusCode::BAD_GATEWAY.into_response()));
    let (found, log) = world.signatures(settings, None).await;
    let shown = format!("{} {:?}", found.unwrap_err(), log.retries());
    assert!(shown.contains("502") && !shown.contains("hunter2"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unusable_registries_d_is_an_error() {
    let world = World::new().await;
    let error = world.error("default-docker: {lookaside: '/srv/store'}").await;
    assert_eq!(error.kind(), Kind::Local);
    assert!(
        error
            .to_string()
            .starts_with("`d.yaml`: `lookaside` of `default-docker` is not a URL"),
        "{error}"
    );
    let error = Registries::new(world.settings("}"), Arc::new(Log::default())).unwrap_err();
    assert_eq!(error.kind(), Kind::Local, "{error}");
}
