//! Resolves references to images.

use std::sync::Mutex;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Redirect};
use bytes::Bytes;
use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{Content, Digest, Platform, ResolvedImage};
use spoke_precache::registry::{Kind, Registries, RegistryError};

use crate::fake::Fake;
use crate::{insecure, noise, reference, registries, settings};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const IMAGE: &str = "application/vnd.oci.image.manifest.v1+json";

/// A list with one image for amd64, and the fake registry that has them under `a:1`.
struct World {
    fake: Fake,
    list: Bytes,
    manifest: Bytes,
    config: Bytes,
}

fn bytes(value: &Value) -> Bytes {
    value.to_string().into()
}

impl World {
    async fn new() -> Self {
        let (fake, layer) = (Fake::start().await, noise(100, 1));
        let config = bytes(
            &json!({"created": "2024-01-01T00:00:00Z", "architecture": "amd64", "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(&layer)]}}),
        );
        let manifest = bytes(&json!({"schemaVersion": 2, "mediaType": IMAGE,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": Digest::of(&config),
                "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": Digest::of(&layer),
                "size": layer.len()}]}));
        let list = bytes(&json!({"schemaVersion": 2, "mediaType": INDEX,
            "manifests": [{"mediaType": IMAGE, "digest": Digest::of(&manifest), "size": manifest.len(),
                "platform": {"os": "linux", "architecture": "amd64"}}]}));
        let world = Self {
            fake,
            list,
            manifest,
            config,
        };
        world.serve(&world.fake);
        world
    }

    fn serve(&self, fake: &Fake) {
        fake.put("/v2/a/manifests/1", INDEX, self.list.clone());
        for (content, kind) in [(&self.list, INDEX), (&self.manifest, IMAGE)] {
            fake.put(
                &format!("/v2/a/manifests/{}", Digest::of(content)),
                kind,
                content.clone(),
            );
        }
        fake.put_blob("a", &self.config);
    }

    async fn resolve(&self, registries: &Registries, name: &str) -> Result<ResolvedImage, RegistryError> {
        let nothing = |_: &Digest| None;
        let platform = "linux/amd64".parse::<Platform>().unwrap();
        let name = reference(&format!("{}/{name}", self.fake.host()));
        let resolved = registries
            .resolve(&name, &platform, &nothing, &Cancel::default())
            .await;
        resolved.map(|resolved| resolved.image)
    }

    fn registries(&self) -> std::sync::Arc<Registries> {
        registries(settings(&insecure(&[&self.fake.host()]))).0
    }

    async fn error(&self) -> RegistryError {
        self.resolve(&self.registries(), "a:1").await.unwrap_err()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_is_resolved_through_the_index_to_manifest_and_config() {
    let world = World::new().await;
    let image = world.resolve(&world.registries(), "a:1").await.unwrap();
    assert_eq!(image.list.unwrap().bytes(), &world.list);
    assert_eq!(image.manifest.bytes(), &world.manifest);
    assert_eq!(image.config.bytes(), &world.config);
    let seen = world.fake.seen("");
    assert_eq!(seen.len(), 3);
    let accept = seen[0].header(header::ACCEPT).unwrap();
    assert!(
        accept.contains(INDEX) && accept.contains("manifest.v2+json"),
        "{accept}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_has_a_name() {
    let world = World::new().await;
    let host = world.fake.host().replace("127.0.0.1", "localhost");
    let (registries, _) = registries(settings(&insecure(&[&host])));
    let (nothing, platform) = (|_: &Digest| None, "linux/amd64".parse::<Platform>().unwrap());
    let resolve = |name: String| {
        let (registries, platform) = (&registries, &platform);
        async move {
            registries
                .resolve(&reference(&name), platform, &nothing, &Cancel::default())
                .await
        }
    };
    let resolved = resolve(format!("{host}/a:1")).await.unwrap();
    assert_eq!(resolved.image.layers.len(), 1);
    assert_eq!(resolved.source.unwrap().reference.domain(), host);
    let error = resolve("nowhere.invalid/a:1".into()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Network, "names may come back: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn known_content_is_not_requested() {
    let world = World::new().await;
    let contents = [&world.list, &world.manifest, &world.config].map(|bytes| Content::new(bytes.clone()));
    let asked = Mutex::new(Vec::new());
    let known = |digest: &Digest| {
        asked.lock().unwrap().push(*digest);
        contents
            .iter()
            .find(|content| content.digest() == *digest)
            .cloned()
    };
    let name = reference(&format!("{}/a@{}", world.fake.host(), contents[0].digest()));
    let platform = "linux/amd64".parse::<Platform>().unwrap();
    let registries = world.registries();
    let resolved = registries
        .resolve(&name, &platform, &known, &Cancel::default())
        .await
        .unwrap();
    assert_eq!(resolved.image.layers.len(), 1);
    assert_eq!(resolved.source, None);
    assert_eq!(*asked.lock().unwrap(), contents.each_ref().map(Content::digest));
    assert_eq!(world.fake.seen("").len(), 0);

    // A store that lies about its content is not believed.
    let liar = |_: &Digest| Some(Content::new(Bytes::from_static(b"{}")));
    let resolved = registries
        .resolve(&name, &platform, &liar, &Cancel::default())
        .await
        .unwrap();
    assert_eq!(resolved.image.config.bytes(), &world.config);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_with_wrong_content_is_skipped() {
    let world = World::new().await;
    let mirror = Fake::start().await;
    world.serve(&mirror);
    mirror.put(
        &format!("/v2/a/manifests/{}", Digest::of(&world.manifest)),
        IMAGE,
        &b"{}"[..],
    );
    mirror.put(
        &format!("/v2/a/blobs/{}", Digest::of(&world.config)),
        "x/y",
        vec![b' '; 9 << 20],
    );
    let conf = format!(
        "[[registry]]\nlocation = '{}'\ninsecure = true\n[[registry.mirror]]\nlocation = '{}'\ninsecure = true",
        world.fake.host(),
        mirror.host()
    );
    let (registries, log) = registries(settings(&conf));
    let image = world.resolve(&registries, "a:1").await.unwrap();
    assert_eq!(
        (image.manifest.bytes(), image.config.bytes()),
        (&world.manifest, &world.config)
    );
    assert_eq!((mirror.seen("").len(), world.fake.seen("").len()), (3, 2));
    let whys = log.retries().join("\n");
    assert!(
        whys.contains("the content has the digest") && whys.contains("is larger than"),
        "{whys}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_unusable_manifest_has_its_kind_of_error() {
    let world = World::new().await;
    let error = world.resolve(&world.registries(), "a:2").await.unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound, "{error}");

    world
        .fake
        .put("/v2/a/manifests/1", INDEX, vec![b' '; (4 << 20) + 1]);
    let error = world.error().await;
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");

    world.fake.put(
        "/v2/a/manifests/1",
        "text/html",
        &b"<html>Please log in to the hotel's network"[..],
    );
    assert_eq!(world.error().await.kind(), Kind::Malformed);

    let schema1 = r#"{"schemaVersion":1,"fsLayers":[]}"#;
    world.fake.put(
        "/v2/a/manifests/1",
        "application/vnd.docker.distribution.manifest.v1+prettyjws",
        schema1,
    );
    let error = world.error().await;
    assert!(
        error.to_string().contains("schema 1") && error.kind() == Kind::Malformed,
        "{error}"
    );

    let arm = String::from_utf8_lossy(&world.list).replace("amd64", "arm64");
    world.fake.put("/v2/a/manifests/1", INDEX, arm);
    let error = world.error().await;
    assert_eq!(error.kind(), Kind::NoSuchPlatform);
    assert!(
        error
            .to_string()
            .ends_with("no image for `linux/amd64`; it has: linux/arm64"),
        "{error}"
    );

    world.fake.put("/v2/a/manifests/1", IMAGE, world.list.clone());
    assert_eq!(world.error().await.kind(), Kind::Malformed);

    world
        .fake
        .fault(|_| Some(StatusCode::BAD_GATEWAY.into_response()));
    let error = world.error().await;
    assert_eq!(error.kind(), Kind::Network);
    assert!(
        error.to_string().starts_with("gave up after 3 seconds"),
        "{error}"
    );

    world
        .fake
        .fault(|_| Some(Redirect::temporary("ftp://elsewhere/").into_response()));
    let error = world.error().await;
    assert!(
        matches!(
            error,
            RegistryError::GaveUp { .. } | RegistryError::Transport { .. }
        ),
        "{error}"
    );
}

/// A mirror for tags only must also give the manifests that its lists name, or a site without another way out is stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_for_tags_serves_all_of_the_image() {
    let world = World::new().await;
    let conf = format!(
        "[[registry]]\nlocation = 'origin.invalid'\nblocked = true\n[[registry.mirror]]\nlocation = '{}'\n\
         insecure = true\npull-from-mirror = 'tag-only'",
        world.fake.host()
    );
    let (registries, _) = registries(settings(&conf));
    let nothing = |_: &Digest| None;
    let platform = "linux/amd64".parse::<Platform>().unwrap();
    let resolve = |name| {
        let (registries, platform) = (&registries, &platform);
        async move {
            registries
                .resolve(&reference(name), platform, &nothing, &Cancel::default())
                .await
        }
    };
    let resolved = resolve("origin.invalid/a:1").await.unwrap();
    assert_eq!(resolved.image.layers.len(), 1);
    let digest = format!("origin.invalid/a@{}", Digest::of(&world.list));
    assert_eq!(resolve(&digest).await.unwrap_err().kind(), Kind::Refused);
}

/// A payload or a bundle may name one; what Docker would make of it is not what CRI-O would.
#[test]
fn a_name_without_a_registry_is_refused() {
    let (registries, _) = registries(settings(""));
    let error = registries.sources(&reference("busybox:1")).unwrap_err();
    assert_eq!(error.kind(), Kind::Malformed);
    assert_eq!(error.to_string(), "`busybox:1` names no registry");
}
