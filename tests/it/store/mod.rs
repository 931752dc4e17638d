//! Tests the store's own interface, with podman and the kernel as the reference.

mod batch_commit;
mod commit;
mod damage;
mod old_image_files;
mod read;
mod records;
mod signatures;
mod tree;

use std::io::Cursor;
use std::os::fd::AsFd as _;

use spoke_precache::cancel::Cancel;
use spoke_precache::oci::{self, Content, ResolvedImage};
use spoke_precache::store::unpack::{UnpackLimits, unpack};
use spoke_precache::store::{ImageCommit, LayerCommit, Stage, StagedLayer, StorageConf, Store};
use spoke_precache::write_back::WriteQueue;

use crate::image::{Image, Images, Layer, List};
use crate::test_node::TestNode;

/// Three layers, each with a file of its own.
fn three_layers() -> Image {
    let text = "image three docker
        layer gzip
        dir  ./ 0750 0:0
        dir  /d 0755 0:0
        file /d/a 0644 0:0 \"a\"
        layer gzip
        file /b 0644 0:0 \"b\"
        layer gzip
        file /c 0644 0:0 \"c\"";
    Images::of(text, &[]).images.remove(0)
}

/// The store of `world`, made if need be.
pub(crate) fn store(world: &TestNode) -> Store {
    let store = Store::open(&world.graph_root(), &StorageConf::default()).unwrap();
    store.create_if_missing().unwrap();
    store
}

/// What a registry client makes of `image`, found through `list` if there is one.
pub(crate) fn resolved(image: &Image, list: Option<&List>) -> ResolvedImage {
    let list = list.map(|list| Content::new(list.bytes.clone()));
    let (manifest, config) = (image.manifest.clone(), image.config.clone());
    ResolvedImage::assemble(list, Content::new(manifest), Content::new(config)).unwrap()
}

fn stage(stage: &Stage, spec: oci::Layer, layer: &Layer) -> StagedLayer {
    let staging = stage.layer(spec).unwrap();
    let (diff, tar_split) = (staging.open_diff().unwrap(), staging.create_tar_split().unwrap());
    let limits = UnpackLimits::for_blob(layer.blob.len() as u64);
    let blob = Cursor::new(&layer.blob);
    let unpacked = unpack(
        blob,
        diff.as_fd(),
        &tar_split,
        limits,
        staging.write_queue(),
        &Cancel::default(),
    )
    .unwrap();
    staging.finish(unpacked).unwrap()
}

/// Stages and commits all of `image`.
pub(crate) fn put(store: &Store, image: &Image, list: Option<&List>, name: &str) {
    put_signed(store, image, list, name, Vec::new());
}

/// The same with signatures.
fn put_signed(store: &Store, image: &Image, list: Option<&List>, name: &str, signatures: Vec<Vec<u8>>) {
    let resolved = ResolvedImage {
        signatures,
        ..resolved(image, list)
    };
    let area = store.stage(&WriteQueue::off()).unwrap();
    let pairs = resolved.layers.iter().cloned().zip(&image.layers);
    let staged = pairs.map(|(spec, layer)| stage(&area, spec, layer)).collect();
    let layers = store.commit_layers(staged, &Cancel::default()).unwrap();
    assert!(
        !layers
            .iter()
            .any(|(_, commit)| matches!(commit, LayerCommit::ParentMissing(_)))
    );
    let commit = store.commit_image(&resolved, &name.parse().unwrap(), &Cancel::default());
    assert_eq!(commit.unwrap(), ImageCommit::Committed(resolved.id()));
}
