//! Writes deltas into an OCI layout, and copies them with skopeo into a registry and back.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use bytes::Bytes;
use serde_json::Value;
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::delta::artifact::DELTA_INDEX;
use spoke_precache::delta_creation::Destination;
use spoke_precache::oci::Digest;
use spoke_precache::oci_layout::{OciLayout, OciLayoutError};
use spoke_precache::registry::{RegistrySettings, referrers_tag};

use crate::daemon::{Daemon, PASSWORD, USER};
use crate::delta_documents::Documents;
use crate::skopeo::stock;
use crate::uploads::file;
use crate::{insecure, notice, reference, registries, settings};

async fn store(destination: &Destination, documents: &Documents) {
    let cancel = Cancel::default();
    for blob in &documents.blobs {
        let (digest, size) = (Digest::of(blob), blob.len() as u64);
        destination
            .put_blob(digest, size, file(blob), &cancel)
            .await
            .unwrap();
    }
    for (media_type, bytes) in documents.manifests() {
        destination
            .put_manifest(None, media_type, bytes.clone(), &cancel)
            .await
            .unwrap();
    }
}

/// The tags of a layout.
fn tags(path: &Path) -> Vec<String> {
    let index: Value = serde_json::from_slice(&fs::read(path.join("index.json")).unwrap()).unwrap();
    let entries = index["manifests"].as_array().unwrap().iter();
    let name = |entry: &Value| entry["annotations"]["org.opencontainers.image.ref.name"].clone();
    entries
        .map(|entry| name(entry).as_str().unwrap().to_owned())
        .collect()
}

/// The names of all files.
fn blobs(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path.join("blobs/sha256")).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
fn skopeo(arguments: &[&str]) -> Bytes {
    let output = Command::new("skopeo")
        .arg("--insecure-policy")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    output.stdout.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_copies_the_standard_artifact_to_a_registry_and_back() {
    if let Err(error) = Command::new("skopeo").arg("--version").output() {
        return notice::skip(&format!("no skopeo: {error}"));
    }
    let Some(daemon) = Daemon::start(false).await else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layout");
    let documents = Documents::new(1);
    let destination = Destination::Layout(OciLayout::open(&path).unwrap());
    store(&destination, &documents).await;
    let ((media_type, artifact), cancel) = (documents.manifests()[0], Cancel::default());
    let put = destination.put_manifest(Some("one"), media_type, artifact.clone(), &cancel);
    put.await.unwrap();
    let tag = referrers_tag(documents.subject());
    assert_eq!(tags(&path), [tag.as_str(), "one"]);

    let local = |path: &Path, tag: &str| format!("oci:{}:{tag}", path.display());
    assert_eq!(
        skopeo(&["inspect", "--raw", &local(&path, &tag)]),
        documents.index
    );
    let remote = format!("docker://{}/team/deltas:one", daemon.host);
    let login = format!("{USER}:{PASSWORD}");
    let to = ["--dest-tls-verify=false", "--dest-creds", &login];
    skopeo(&[&["copy"], &to[..], &[&local(&path, "one"), &remote]].concat());
    let back = local(&dir.path().join("back"), "one");
    let from = ["--src-tls-verify=false", "--src-creds", &login];
    skopeo(&[&["copy"], &from[..], &[&remote, &back]].concat());
    assert_eq!(skopeo(&["inspect", "--raw", &back]), documents.artifact);
}

/// skopeo 1.9 drops `artifactType` and `subject` of an index that it copies.
#[tokio::test(flavor = "multi_thread")]
async fn a_current_skopeo_copies_the_deltas_of_a_layout_to_where_spokes_find_them() {
    let Some(top) = std::env::var_os("SPOKE_STOCK_ROOT") else {
        return notice::print(
            "LEFT OUT",
            "this needs a current skopeo, which SPOKE_STOCK_ROOT may name",
        );
    };
    if let Err(why) = notice::root() {
        return notice::skip(&why);
    }
    let Some(daemon) = Daemon::start(false).await else {
        return;
    };
    let dir = daemon.certificates.0.path();
    let path = dir.join("layout");
    let documents = Documents::new(1);
    let destination = Destination::Layout(OciLayout::open(&path).unwrap());
    store(&destination, &documents).await;
    let tag = referrers_tag(documents.subject());
    let local = format!("oci:{}:{tag}", path.display());
    let remote = format!("docker://{}/team/deltas:{tag}", daemon.host);
    let login = format!("{USER}:{PASSWORD}");
    let to = ["--dest-tls-verify=false", "--dest-creds", &login];
    let copy = ["--insecure-policy", "copy", "--all"];
    stock(
        Path::new(&top),
        dir,
        &[&copy, &to[..], &[&local, &remote]].concat(),
    );

    let (registries, _) = registries(RegistrySettings {
        auth_files: vec![daemon.auth_file()],
        ..settings(&insecure(&[&daemon.host]))
    });
    let image = reference(&format!("{}/team/deltas", daemon.host));
    let cancel = Cancel::default();
    let found = registries.referrers(&image, documents.subject(), DELTA_INDEX, &cancel);
    let found = found.await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].digest, Digest::of(&documents.index));
    assert_eq!(
        found[0].annotations["io.spoke-precache.delta.from"],
        "registry.example/release:1"
    );

    // Deltas from another release join them.
    let upload = registries.upload(&image).unwrap();
    let other = String::from_utf8(documents.index.to_vec()).unwrap();
    let other = Bytes::from(other.replace("release:1\"", "release:2\""));
    let media_type = documents.manifests()[1].0;
    upload
        .put_manifest(None, media_type, other, &cancel)
        .await
        .unwrap();
    let found = registries.referrers(&image, documents.subject(), DELTA_INDEX, &cancel);
    assert_eq!(found.await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_is_continued_and_its_other_tags_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/layout");
    let documents = Documents::new(1);
    let destination = Destination::Layout(OciLayout::open(&path).unwrap());
    store(&destination, &documents).await;
    let (media_type, index) = documents.manifests()[1];
    let cancel = Cancel::default();
    let put = destination.put_manifest(Some("unfinished"), media_type, index.clone(), &cancel);
    put.await.unwrap();
    let before = (tags(&path), blobs(&path));
    for blob in &documents.blobs {
        assert!(before.1.contains(&Digest::of(blob).hex()));
    }

    // What a killed run left.
    let leftover = path.join(format!("blobs/sha256/{}.0.partial", "a".repeat(64)));
    fs::write(&leftover, "half").unwrap();
    fs::write(path.join("index.json.0.partial"), "{").unwrap();
    let destination = Destination::Layout(OciLayout::open(&path).unwrap());
    store(&destination, &documents).await;
    assert_eq!((tags(&path), blobs(&path)), before);
    assert!(!path.join("index.json.0.partial").exists());
    for name in ["unfinished".to_owned(), Digest::of(index).to_string()] {
        let content = destination.manifest(&name, &cancel).await.unwrap();
        assert_eq!(content.unwrap().bytes(), index);
    }
    assert_eq!(destination.manifest("other", &cancel).await.unwrap(), None);
    let absent = Digest::of(b"absent").to_string();
    assert_eq!(destination.manifest(&absent, &cancel).await.unwrap(), None);

    // A second pair with the same subject.
    let second = String::from_utf8(index.to_vec()).unwrap();
    let second = Bytes::from(second.replace("release:1\"", "release:2\""));
    let put = destination.put_manifest(None, media_type, second, &cancel);
    put.await.unwrap();
    let tag = referrers_tag(documents.subject());
    let both = destination.manifest(&tag, &cancel).await.unwrap().unwrap();
    let both: Value = serde_json::from_slice(both.bytes()).unwrap();
    assert_eq!(both["manifests"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layout_takes_no_wrong_content_and_no_other_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("layout");
    let layout = OciLayout::open(&path).unwrap();
    let cancel = Cancel::default();
    let wrong = layout.put_blob(Digest::of(b"right"), 5, file(b"wrong"), &cancel);
    let wrong = wrong.await.unwrap_err();
    assert!(matches!(wrong, OciLayoutError::WrongDigest { .. }), "{wrong}");
    let short = layout.put_blob(Digest::of(b"right"), 6, file(b"right"), &cancel);
    let short = short.await.unwrap_err();
    assert!(matches!(short, OciLayoutError::Io { .. }), "{short}");
    let stopped = Cancel::default();
    stopped.stop(StopReason::Deadline);
    let stopped = layout.put_blob(Digest::of(b"right"), 5, file(b"right"), &stopped);
    assert!(matches!(stopped.await.unwrap_err(), OciLayoutError::Stopped(_)));
    assert_eq!(blobs(&path), [""; 0]);

    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "").unwrap();
    let error = OciLayout::open(&other).unwrap_err().to_string();
    assert!(error.contains("is not an OCI image layout"), "{error}");
    fs::write(path.join("index.json"), "{").unwrap();
    let error = layout.manifest("x").unwrap_err().to_string();
    assert!(error.contains("index.json"), "{error}");
}
