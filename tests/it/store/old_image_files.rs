//! Tests which files of old images a delta can read, and what the record of a layer that it made states.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use spoke_precache::cancel::Cancel;
use spoke_precache::delta::{DeltaSource, SourceError, Sources};
use spoke_precache::store::unpack::SpaceBudget;
use spoke_precache::store::{OldImageFiles, StorageConf, Store};
use spoke_precache::write_back::WriteQueue;

use super::{put, resolved, stage, store};
use crate::image::{Compression, Format, Image, Images, Layer, node_architecture};
use crate::needs::needs;
use crate::test_node::TestNode;

const IMAGES: &str = r#"
image old oci
layer gzip
dir     /d 0755 0:0
file    /d/hidden 0644 0:0 "hidden"
file    /d/changed 0644 0:0 "before"
file    /d/kept 0600 5:5 "kept"
dir     /opaque 0755 0:0
file    /opaque/below 0644 0:0 "below"
dir     /usr/lib 0755 0:0
file    /usr/lib/a 0644 0:0 "a"
symlink /lib -> usr/lib
symlink /absolute -> /usr/lib
symlink /out -> ../../../../../../../../../../etc
symlink /link -> usr/lib/a
link    /hard -> /usr/lib/a 0644 0:0
char    /null 1:3 0666
fifo    /pipe 0644 0:0
layer zstd
whiteout /d/hidden
file     /d/changed 0644 0:0 "after"
opaque   /opaque
file     /opaque/above 0644 0:0 "above"

image other docker
layer none
file /d/kept 0644 0:0 "other"
"#;

const OBJECT: &str = "sysroot/ostree/repo/objects/ab/cd.file";

/// A node with both images, and an ostree repository with one object.
struct Scene {
    node: TestNode,
    store: Arc<Store>,
    images: Images,
}

impl Scene {
    fn new() -> Self {
        let (node, images) = (TestNode::trusting(&[]), Images::of(IMAGES, &[]));
        let store = store(&node);
        for image in &images.images {
            put(&store, image, None, &format!("localhost/{}:1", image.name));
        }
        node.write("ostree/repo/objects/ab/cd.file", "object");
        node.write("ostree/repo/secret", "secret");
        symlink(
            "../../secret",
            node.host().join("ostree/repo/objects/ab/link.file"),
        )
        .unwrap();
        Self {
            store: Arc::new(store),
            node,
            images,
        }
    }

    /// The files of these images, as a delta numbers them; `ostree:NAME` has an ostree commit.
    fn files(&self, names: &[&str]) -> OldImageFiles {
        let source = |name: &&str| {
            let (name, ostree_commit) = match name.strip_prefix("ostree:") {
                Some(name) => (name, Some("0".repeat(64))),
                None => (*name, None),
            };
            let image = self.images.images.iter().find(|image| image.name == name);
            let id = image.map_or("f".repeat(64), Image::id);
            DeltaSource {
                config: format!("sha256:{id}").parse().unwrap(),
                ostree_commit,
            }
        };
        let sources: Vec<DeltaSource> = names.iter().map(source).collect();
        let (inventory, stage) = (
            self.store.inventory().unwrap(),
            Arc::new(self.store.stage(&WriteQueue::off()).unwrap()),
        );
        let objects = self.node.host().join("ostree/repo/objects");
        let budget = Arc::new(SpaceBudget::new(self.node.graph_root(), u64::MAX, 0));
        OldImageFiles::new(
            Arc::clone(&self.store),
            &inventory,
            stage,
            budget,
            &objects,
            &sources,
        )
    }
}

/// The content, or why there is none.
fn read(files: &OldImageFiles, image: usize, path: &[u8]) -> String {
    match files.open(image, path) {
        Ok(file) => {
            let mut buffer = [0; 20];
            let read = file.read_at(&mut buffer, 0).unwrap();
            String::from_utf8_lossy(&buffer[..read]).into_owned()
        }
        Err(SourceError::Missing(_)) => "missing".to_owned(),
        Err(error @ SourceError::Host { .. }) => panic!("{error}"),
    }
}

#[test]
fn a_delta_reads_the_regular_files_that_a_container_sees_and_nothing_else() {
    needs!(root());
    let scene = Scene::new();
    let files = scene.files(&["old", "other", "gone", "ostree:gone", "ostree:other"]);
    let (long, deep) = (vec![b'x'; 300], b"d/".repeat(1000));
    for (image, path, expected) in [
        (0, &b"d/kept"[..], "kept"),
        (0, b"./d//kept", "kept"),
        (0, b"d/changed", "after"),
        (0, b"d/hidden", "missing"),
        (0, b"opaque/above", "above"),
        (0, b"opaque/below", "missing"),
        (0, b"usr/lib/a", "a"),
        (0, b"hard", "a"),
        // A tar may name a file through a symlink to a directory, but no file by a symlink.
        (0, b"lib/a", "a"),
        (0, b"absolute/a", "a"),
        (0, b"link", "missing"),
        (0, b"out/hostname", "missing"),
        (0, b"out/passwd", "missing"),
        (0, b"../../../../../../etc/passwd", "missing"),
        (0, b"/etc/passwd", "missing"),
        (0, b"null", "missing"),
        (0, b"pipe", "missing"),
        (0, b"d", "missing"),
        (0, b"d/kept/x", "missing"),
        (0, b"", "missing"),
        (0, b"d/\0", "missing"),
        (0, b"d/\xff", "missing"),
        (0, &long, "missing"),
        (0, &deep, "missing"),
        (1, b"d/kept", "other"),
        (0, b"d/kept", "kept"),
        (2, b"d/kept", "missing"),
        (3, b"d/kept", "missing"),
        (5, b"d/kept", "missing"),
        (usize::MAX, b"d/kept", "missing"),
        // The node's own objects, only for an image that has them too.
        (3, OBJECT.as_bytes(), "object"),
        (4, OBJECT.as_bytes(), "object"),
        (4, b"d/kept", "other"),
        (2, OBJECT.as_bytes(), "missing"),
        (3, b"sysroot/ostree/repo/secret", "missing"),
        (3, b"sysroot/ostree/repo/objects/../secret", "missing"),
        (3, b"sysroot/ostree/repo/objects/ab/link.file", "missing"),
        (3, b"sysroot/ostree/repo/objects/ab", "missing"),
        (3, b"sysroot/ostree/repo/objects", "missing"),
        (3, b"sysroot/ostree/repo/objects/ab/none.file", "missing"),
    ] {
        assert_eq!(
            read(&files, image, path),
            expected,
            "{image} {}",
            path.escape_ascii()
        );
    }
}

/// The kubelet removes unused images when it likes.
#[test]
fn an_image_that_is_removed_meanwhile_is_missing() {
    needs!(root(), stock());
    let scene = Scene::new();
    let files = scene.files(&["old", "other"]);
    assert_eq!(read(&files, 1, b"d/kept"), "other");
    for image in ["old", "other"] {
        scene.node.podman(&["rmi", &format!("localhost/{image}:1")]).ok();
    }
    assert_eq!(read(&files, 0, b"d/kept"), "missing");
    assert_eq!(read(&files, 1, b"d/kept"), "missing");
    fs::remove_dir_all(scene.node.host().join("ostree")).unwrap();
    assert_eq!(
        read(&scene.files(&["ostree:gone"]), 0, OBJECT.as_bytes()),
        "missing"
    );
}

#[test]
fn an_image_of_an_additional_store_is_a_source_too() {
    needs!(root());
    let scene = Scene::new();
    let more = scene.node.host().join("var/lib/containers/more");
    fs::rename(scene.node.graph_root(), &more).unwrap();
    let conf = StorageConf {
        additional_image_stores: vec![more],
        ..StorageConf::default()
    };
    let store = Store::open(&scene.node.graph_root(), &conf).unwrap();
    store.create_if_missing().unwrap();
    let scene = Scene {
        store: Arc::new(store),
        ..scene
    };
    let files = scene.files(&["old"]);
    assert_eq!(read(&files, 0, b"d/changed"), "after");
    assert_eq!(read(&files, 0, b"d/hidden"), "missing");
}

#[test]
fn a_scratch_file_has_no_name_and_is_on_the_disk_of_the_store() {
    needs!(root());
    let scene = Scene::new();
    let file = scene.files(&[]).scratch_file(1).unwrap();
    let metadata = file.file().metadata().unwrap();
    let disk = fs::metadata(scene.node.graph_root()).unwrap().dev();
    assert_eq!((metadata.nlink(), metadata.len(), metadata.dev()), (0, 0, disk));
}

/// Nobody has seen the blob: a false manifest could name one of another image, which would get this layer then.
#[test]
fn the_record_of_a_layer_from_a_delta_names_its_blob_only_if_the_manifest_is_authenticated() {
    needs!(root());
    let tar = Layer::of("file /a 0644 0:0 \"a\"", Compression::None).blob;
    for (compression, number) in [
        (Compression::Gzip, json!(2)),
        (Compression::Zstd, json!(4)),
        (Compression::None, Value::Null),
    ] {
        let layer = Layer::of_tar(&tar, compression);
        let (digest, size) = (layer.digest.clone(), layer.size);
        let image = Image::build("a", Format::Oci, node_architecture(), vec![layer], |_, _| {});
        let spec = resolved(&image, None).layers.remove(0);
        // What a delta makes is a bare tar.
        let made = Layer::of_tar(&tar, Compression::None);
        for is_authenticated in [true, false] {
            let node = TestNode::trusting(&[]);
            let store = store(&node);
            let area = store.stage(&WriteQueue::off()).unwrap();
            let staged = stage(&area, spec.clone(), &made).with_unseen_blob(is_authenticated);
            store.commit_layers(vec![staged], &Cancel::default()).unwrap();
            let record = record(&node.graph_root());
            let expected = match is_authenticated {
                true => [json!(digest), json!(size), number.clone()],
                false => [Value::Null, Value::Null, Value::Null],
            };
            let found =
                ["compressed-diff-digest", "compressed-size", "compression"].map(|key| record[key].clone());
            assert_eq!(found, expected, "{compression:?}");
            let found = ["diff-digest", "diff-size", "uidset"].map(|key| record[key].clone());
            assert_eq!(found, [json!(spec.diff_id()), json!(tar.len()), json!([0])]);
        }
    }
}

fn record(graph_root: &Path) -> Value {
    let records = fs::read(graph_root.join("overlay-layers/layers.json")).unwrap();
    serde_json::from_slice::<Vec<Value>>(&records).unwrap().remove(0)
}
