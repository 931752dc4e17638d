//! Makes the medium: a file system of its own with the images as an OCI layout, or with a tar of it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use crate::image::sha256;
use crate::profile::Content;
use crate::rig::Disk;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A form of the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Directory,
    Tar,
}

/// The medium, mounted.
pub(crate) struct Medium {
    disk: Disk,
    form: Form,
}

impl Medium {
    /// Writes the images. The layout names them `image-0`, `image-1`, ….
    pub(crate) fn new(form: Form, content: &Content) -> anyhow::Result<Self> {
        let medium = Self {
            disk: Disk::xfs()?,
            form,
        };
        match form {
            Form::Directory => write_layout(&medium.path(), content)?,
            Form::Tar => write_tar(&medium.path(), content)?,
        }
        rustix::fs::syncfs(File::open(medium.disk.path())?)?;
        Ok(medium)
    }

    /// The path for `--blobs-from`.
    pub(crate) fn path(&self) -> PathBuf {
        match self.form {
            Form::Directory => self.disk.path().join("layout"),
            Form::Tar => self.disk.path().join("layout.tar"),
        }
    }

    /// Major and minor number of its block device.
    pub(crate) fn device(&self) -> anyhow::Result<(u32, u32)> {
        let device = rustix::fs::stat(self.disk.path())?.st_dev;
        Ok((rustix::fs::major(device), rustix::fs::minor(device)))
    }
}

/// Writes a layout elsewhere, and a tar of it.
fn write_tar(tar: &Path, content: &Content) -> anyhow::Result<()> {
    let layout = tempfile::tempdir()?;
    write_layout(layout.path(), content)?;
    let status = Command::new("tar")
        .args(["--create", "--file"])
        .arg(tar)
        .arg("--directory")
        .arg(layout.path())
        .args(["oci-layout", "index.json", "blobs"])
        .status()?;
    ensure!(status.success(), "tar: {status}");
    Ok(())
}

/// Copies the blobs from docker-registry's directory, and writes the index.
fn write_layout(layout: &Path, content: &Content) -> anyhow::Result<()> {
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let storage = content.dir.join("docker/registry/v2/blobs/sha256");
    for group in fs::read_dir(&storage).with_context(|| storage.display().to_string())? {
        for blob in fs::read_dir(group?.path())? {
            let blob = blob?;
            fs::copy(blob.path().join("data"), blobs.join(blob.file_name()))?;
        }
    }
    // skopeo and podman find only manifests of OCI's type by name, so there is one beside each of the release, with the same
    // config and layers.
    let descriptor = |(number, image): (usize, &String)| -> anyhow::Result<Value> {
        let (_, digest) = image
            .split_once("@sha256:")
            .context("an image without a digest")?;
        let mut manifest: Value = serde_json::from_slice(&fs::read(blobs.join(digest))?)?;
        manifest["mediaType"] = MANIFEST.into();
        manifest["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
        for layer in manifest["layers"].as_array_mut().context("no layers")? {
            layer["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
        }
        let manifest = manifest.to_string();
        let digest = sha256(manifest.as_bytes());
        fs::write(blobs.join(digest.trim_start_matches("sha256:")), &manifest)?;
        Ok(json!({
            "mediaType": MANIFEST,
            "digest": digest,
            "size": manifest.len(),
            "annotations": {"org.opencontainers.image.ref.name": format!("image-{number}")},
        }))
    };
    let manifests: Vec<Value> = content
        .images
        .iter()
        .enumerate()
        .map(descriptor)
        .collect::<Result<_, _>>()?;
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion": "1.0.0"}"#)?;
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    fs::write(layout.join("index.json"), index.to_string())?;
    Ok(())
}
