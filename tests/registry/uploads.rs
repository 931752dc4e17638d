//! Uploads deltas and their documents to docker-registry, which has no referrers API, and to a registry that has it.

use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use spoke_precache::cancel::Cancel;
use spoke_precache::delta::Format;
use spoke_precache::delta::artifact::{DELTA_INDEX, DeltaArtifact, DeltaIndex};
use spoke_precache::oci::{Digest, MAX_MANIFEST_SIZE};
use spoke_precache::registry::{Kind, Referrer, Registries, RegistrySettings, Upload, referrers_tag};

use crate::daemon::Daemon;
use crate::delta_documents::Documents;
use crate::notice;
use crate::{insecure, noise, reference, registries, settings};

/// Where the blobs of deltas are. A new one for each run: the registry that the environment names keeps its content.
static REPOSITORY: LazyLock<String> = LazyLock::new(|| format!("team/deltas-{:016x}", rand::random::<u64>()));

pub(crate) fn file(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Uploads everything except the target image; returns whether the registry lists referrers itself.
pub(crate) async fn upload_all(upload: &Upload, documents: &Documents) -> bool {
    let cancel = Cancel::default();
    for blob in &documents.blobs {
        let (digest, size) = (Digest::of(blob), blob.len() as u64);
        upload.put_blob(digest, size, file(blob), &cancel).await.unwrap();
        assert!(upload.has_blob(digest, &cancel).await.unwrap());
    }
    let mut has_api = Vec::new();
    for (media_type, bytes) in documents.manifests() {
        let put = upload.put_manifest(None, media_type, bytes.clone(), &cancel);
        has_api.push(put.await.unwrap());
    }
    assert_eq!(has_api[0], has_api[1]);
    has_api[0]
}

async fn referrers(registries: &Registries, repository: &str, subject: Digest, kind: &str) -> Vec<Referrer> {
    let image = reference(repository).with_digest(subject);
    let cancel = Cancel::default();
    let list = registries.referrers(&image, subject, kind, &cancel).await;
    list.unwrap()
}

/// Uploads the documents and finds them again, as a spoke does.
async fn upload_and_discover(settings: RegistrySettings, host: &str) -> (Arc<Registries>, Upload, bool) {
    let (registries, _) = registries(settings);
    let repository = format!("{host}/{}", *REPOSITORY);
    let upload = registries.upload(&reference(&repository)).unwrap();
    let documents = Documents::new(1);
    let cancel = Cancel::default();
    let absent = Digest::of(b"absent");
    assert!(!upload.has_blob(absent, &cancel).await.unwrap());
    assert_eq!(
        upload.manifest("latest", &cancel).await.unwrap(),
        None,
        "before anything is pushed"
    );
    assert_eq!(
        referrers(&registries, &repository, documents.subject(), DELTA_INDEX).await,
        []
    );

    let has_api = upload_all(&upload, &documents).await;
    let found = referrers(&registries, &repository, documents.subject(), DELTA_INDEX).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].digest, Digest::of(&documents.index));
    assert_eq!(found[0].size, documents.index.len() as u64);
    assert_eq!(
        found[0].annotations["io.spoke-precache.delta.from"],
        "registry.example/release:1"
    );
    let index = registries
        .manifest_content(
            &reference(&repository),
            Some(found[0].digest),
            DeltaIndex::MAX_SIZE,
            &cancel,
        )
        .await
        .unwrap();
    assert_eq!(index.bytes(), &documents.index);
    let index = DeltaIndex::parse(index.bytes()).unwrap();
    assert_eq!(index.artifacts[0].target, documents.subject());
    let digest = Some(index.artifacts[0].digest);
    let artifact = registries
        .manifest_content(&reference(&repository), digest, DeltaArtifact::MAX_SIZE, &cancel)
        .await
        .unwrap();
    let artifact = DeltaArtifact::parse(artifact.bytes()).unwrap();
    assert_eq!(artifact.layers[0].blob, Digest::of(&documents.delta));
    assert_eq!(artifact.layers[0].target, Digest::of(&documents.layer));

    // Other programs list the standard artifact.
    let standard = Format::TarDiff.artifact_type();
    let found = referrers(&registries, &repository, documents.subject(), standard).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].digest, Digest::of(&documents.artifact));
    (registries, upload, has_api)
}

#[tokio::test(flavor = "multi_thread")]
async fn deltas_are_found_by_tag_in_a_registry_without_the_referrers_api() {
    let Some(daemon) = Daemon::start(true).await else {
        return;
    };
    let settings = RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ca_certificates: vec![daemon.certificates.pem("own.crt")],
        ..settings("")
    };
    let (registries, upload, has_api) = upload_and_discover(settings, &daemon.host).await;
    assert!(!has_api, "docker-registry 2.8 has no referrers API");
    let cancel = Cancel::default();

    // A second upload changes nothing.
    let documents = Documents::new(1);
    let tag = referrers_tag(documents.subject());
    let before = upload.manifest(&tag, &cancel).await.unwrap().unwrap();
    upload_all(&upload, &documents).await;
    let after = upload.manifest(&tag, &cancel).await.unwrap().unwrap();
    assert_eq!(before, after);

    // A tag, as unfinished work has one.
    let media_type = documents.manifests()[1].0;
    let index = documents.index.clone();
    upload
        .put_manifest(Some("unfinished"), media_type, index.clone(), &cancel)
        .await
        .unwrap();
    let tagged = upload.manifest("unfinished", &cancel).await.unwrap().unwrap();
    assert_eq!(tagged.bytes(), &index);
    let repository = format!("{}/{}:unfinished", daemon.host, *REPOSITORY);
    let by_tag = registries
        .manifest_content(&reference(&repository), None, MAX_MANIFEST_SIZE, &cancel)
        .await;
    assert_eq!(by_tag.unwrap().bytes(), &index);
}

#[tokio::test(flavor = "multi_thread")]
async fn deltas_are_found_by_the_referrers_api() {
    let Ok(host) = std::env::var("SPOKE_REFERRERS_REGISTRY") else {
        return notice::print(
            "LEFT OUT",
            "this needs a registry with the referrers API on plain HTTP, which SPOKE_REFERRERS_REGISTRY may name",
        );
    };
    let (_, upload, has_api) = upload_and_discover(settings(&insecure(&[&host])), &host).await;
    assert!(has_api);
    let tag = referrers_tag(Documents::new(1).subject());
    let tagged = upload.manifest(&tag, &Cancel::default()).await.unwrap();
    assert_eq!(tagged, None, "the registry lists referrers itself");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_writers_of_one_index_of_referrers_lose_nothing() {
    let Some(daemon) = Daemon::start(false).await else {
        return;
    };
    let settings = RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ..settings(&insecure(&[&daemon.host]))
    };
    let (registries, _) = registries(settings);
    let repository = format!("{}/{}", daemon.host, *REPOSITORY);
    let upload = registries.upload(&reference(&repository)).unwrap();
    let documents = Documents::new(1);
    upload_all(&upload, &documents).await;
    let media_type = documents.manifests()[1].0;
    let index = String::from_utf8(documents.index.to_vec()).unwrap();
    let mut pushes = tokio::task::JoinSet::new();
    for number in 2..10 {
        let other = Bytes::from(index.replace("release:1\"", &format!("release:{number}\"")));
        let upload = upload.clone();
        pushes.spawn(async move {
            let cancel = Cancel::default();
            upload.put_manifest(None, media_type, other, &cancel).await
        });
    }
    for pushed in pushes.join_all().await {
        pushed.unwrap();
    }
    let found = referrers(&registries, &repository, documents.subject(), DELTA_INDEX).await;
    assert_eq!(found.len(), 9);
    let standard = Format::TarDiff.artifact_type();
    let found = referrers(&registries, &repository, documents.subject(), standard).await;
    assert_eq!(found.len(), 1, "entries of other types stay");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_blob_is_streamed_to_a_registry_over_http2() {
    let Some(daemon) = Daemon::start(true).await else {
        return;
    };
    let settings = RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ca_certificates: vec![daemon.certificates.pem("own.crt")],
        ..settings("")
    };
    let (registries, log) = registries(settings);
    let upload = registries
        .upload(&reference(&format!("{}/{}", daemon.host, *REPOSITORY)))
        .unwrap();
    let (blob, cancel) = (noise(40_000_001, 5), Cancel::default());
    let digest = Digest::of(&blob);
    let put = upload.put_blob(digest, blob.len() as u64, file(&blob), &cancel);
    put.await.unwrap();
    assert!(upload.has_blob(digest, &cancel).await.unwrap());
    assert_eq!(log.retries(), [""; 0]);
    // The registry compares the digest.
    let wrong = Digest::of(b"another");
    let refused = upload.put_blob(wrong, blob.len() as u64, file(&blob), &cancel);
    let refused = refused.await.unwrap_err();
    assert!(refused.to_string().contains("DIGEST_INVALID"), "{refused}");
    let short = upload.put_blob(digest, blob.len() as u64 + 1, file(&blob), &cancel);
    let short = short.await.unwrap_err();
    assert_eq!(short.kind(), Kind::Local, "{short}");
}
