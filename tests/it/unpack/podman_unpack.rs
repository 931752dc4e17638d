//! Unpacks a layer with podman, as an image with one layer.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;

use crate::image::{Format, Image, Layer, node_architecture};
use crate::registry::Registry;
use crate::test_node::TestNode;

/// A node where podman pulls one layer after the other.
pub(super) struct Podman {
    registry: Registry,
    world: TestNode,
    count: AtomicUsize,
}

/// A layer as podman unpacked it.
pub(super) struct Theirs {
    pub(super) diff: PathBuf,
    pub(super) tar_split: Vec<u8>,
    pub(super) record: Value,
    tar_split_path: PathBuf,
    image: String,
}

impl Podman {
    pub(super) fn new() -> Self {
        let registry = Registry::start();
        let world = TestNode::trusting(&[registry.host()]);
        Self {
            registry,
            world,
            count: AtomicUsize::new(0),
        }
    }

    /// Pulls an image with this single layer with podman; the error is podman's message.
    pub(super) fn pull(&self, layer: &Layer) -> Result<Theirs, String> {
        let id = layer.diff_id["sha256:".len()..].to_owned();
        let name = format!("layer/{}", self.count.fetch_add(1, Ordering::Relaxed));
        let image = Image::build(
            &name,
            Format::Oci,
            node_architecture(),
            vec![layer.clone()],
            |_, _| {},
        );
        self.registry.push(&name, Some("latest"), &image);
        let image = self.registry.tagged(&name);
        let answer = self.world.podman(&["pull", "--quiet", &image]);
        if !answer.is_ok() {
            return Err(answer.stderr.trim().to_owned());
        }
        let root = self.world.graph_root();
        let records = fs::read(root.join("overlay-layers/layers.json")).unwrap();
        let records: Vec<Value> = serde_json::from_slice(&records).unwrap();
        let record = records.into_iter().find(|record| record["id"] == *id);
        let tar_split_path = root.join("overlay-layers").join(format!("{id}.tar-split.gz"));
        Ok(Theirs {
            diff: root.join("overlay").join(&id).join("diff"),
            tar_split: fs::read(&tar_split_path).unwrap(),
            record: record.unwrap(),
            tar_split_path,
            image,
        })
    }

    /// Saves the image of a layer with podman, with this tar-split for its layer; the error is podman's message.
    pub(super) fn save_with(&self, layer: &Theirs, tar_split: &[u8]) -> Result<(), String> {
        fs::write(&layer.tar_split_path, tar_split).unwrap();
        let archive = self.world.out("saved.tar");
        let args = ["save", "--quiet", "-o", archive.to_str().unwrap(), &layer.image];
        let answer = self.world.podman(&args);
        let _ = fs::remove_file(archive);
        if answer.is_ok() {
            return Ok(());
        }
        Err(answer.stderr.trim().to_owned())
    }
}
