//! Pulls images whose layers are in the store already, on other parents or under another compression: nothing of them is
//! downloaded, and the result is what podman pulls.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::compare::{compare, inconsistencies, record_array};
use crate::image::samples::{EMPTY_XATTR, STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::image::{Compression, Format, Image, Images, Layer, node_architecture};
use crate::needs::{needs, note};
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;
use crate::verify::layer_ids;

/// The upper layer of all images is the same; `gzip` and `zstd` have the same layers.
const IMAGES: &str = r#"
image old oci
layer gzip
file /old 0644 0:0 random=30000 seed=1
layer gzip
dir  /d 0755 0:0
file /d/same 0644 1:2 random=300000 seed=2

image gzip oci
layer gzip
file /new 0644 0:0 random=40000 seed=3
layer gzip
dir  /d 0755 0:0
file /d/same 0644 1:2 random=300000 seed=2

image zstd oci
layer zstd
file /new 0644 0:0 random=40000 seed=3
layer zstd
dir  /d 0755 0:0
file /d/same 0644 1:2 random=300000 seed=2
"#;

struct Scene {
    registry: Registry,
    images: Images,
    node: TestNode,
}

impl Scene {
    /// A node without images.
    fn empty() -> Self {
        let (registry, images) = (Registry::start(), Images::of(IMAGES, &[]));
        registry.push_all(&images);
        let node = TestNode::trusting(&[registry.host()]);
        Self {
            registry,
            images,
            node,
        }
    }

    /// A node with `old`.
    fn new() -> Self {
        let scene = Self::empty();
        scene
            .node
            .run(&["--image", &scene.registry.tagged("old")])
            .exits(0);
        scene.registry.clear_log();
        scene
    }

    /// The upper layer of an image.
    fn upper(&self, name: &str) -> &Layer {
        &self.images.image(name).layers[1]
    }

    /// The directory of the upper layer of `old`.
    fn donor(&self) -> PathBuf {
        let id = &layer_ids(self.images.image("old"))[1];
        self.node.graph_root().join("overlay").join(id).join("diff")
    }

    /// Blobs of layers that were requested, each once.
    fn requested(&self) -> BTreeSet<String> {
        let requests = self.registry.layer_requests().into_iter();
        let digest = |path: String| path.rsplit('/').next().unwrap_or_default().to_owned();
        requests.map(|access| digest(access.path)).collect()
    }

    /// Digests of the blobs of an image's layers.
    fn blobs(&self, name: &str, layers: std::ops::Range<usize>) -> BTreeSet<String> {
        let layers = self.images.image(name).layers[layers].iter();
        layers.map(|layer| layer.digest.clone()).collect()
    }

    /// The record of the upper layer of an image.
    fn record(&self, node: &TestNode, name: &str) -> serde_json::Map<String, serde_json::Value> {
        let id = &layer_ids(self.images.image(name))[1];
        let records = record_array(&node.graph_root().join("overlay-layers/layers.json"));
        records.into_iter().find(|record| record["id"] == **id).unwrap()
    }
}

#[track_caller]
fn check(problems: Vec<String>) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_layer_in_the_store_on_other_parents_is_not_downloaded_under_any_compression() {
    needs!(root(), stock());
    for name in ["gzip", "zstd"] {
        let scene = Scene::new();
        let image = ["--image", &scene.registry.tagged(name)];
        let plan = scene
            .node
            .plan(&[&image[..], &["--output", "json"]].concat())
            .exits(0);
        let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
        let saved = scene.upper(name).size;
        assert_eq!(plan["totals"]["layersFromStore"], 1, "{plan:#}");
        assert_eq!(plan["totals"]["bytesFromStore"], saved, "{plan:#}");
        let layers = &plan["images"][0]["layers"];
        assert_eq!(layers[1]["storedLayer"], layer_ids(scene.images.image("old"))[1]);
        assert_eq!(plan["totals"]["bytesToFetch"], layers[0]["size"], "{plan:#}");
        let text = scene.node.plan(&image).exits(0);
        text.says("copied:    1 of the layers from others in the store, which saves 0.3 MiB");
        scene.registry.clear_log();
        let run = scene.node.run(&image).exits(0);
        assert_eq!(scene.requested(), scene.blobs(name, 0..1), "{run}");
        assert_eq!(
            (run.total("layersFromStore"), run.total("bytesFromStore")),
            (1, saved),
            "{run}"
        );
        assert_eq!(run.total("bytesFetched"), layers[0]["size"], "{run}");
        run.says("copied:    1 layer from others in the store, which saved 0.3 MiB");
        check(inconsistencies(&scene.node.graph_root()));
        scene
            .node
            .verify(&[&image[..], &["--image", &scene.registry.tagged("old")]].concat())
            .exits(0);
    }
}

/// podman copies a layer if the store has it from the same blob, and otherwise downloads it. Its copy differs from ours in
/// what is recorded of the blob.
#[test]
fn a_copied_layer_is_the_one_that_podman_has() {
    needs!(root(), stock());
    for (top, name) in tops()
        .into_iter()
        .flat_map(|top| ["gzip", "zstd"].map(|name| (top.clone(), name)))
    {
        let scene = Scene::new();
        let theirs = TestNode::trusting(&[scene.registry.host()]);
        for image in ["old", name] {
            scene.registry.clear_log();
            theirs
                .podman_of(&top, &["pull", "--quiet", &scene.registry.tagged(image)])
                .ok();
        }
        let by_podman = scene.requested().contains(&scene.upper(name).digest);
        let name_of_image = scene.registry.tagged(name);
        scene.node.run(&["--image", &name_of_image]).exits(0);
        let mut differences = compare(&scene.node.graph_root(), &theirs.graph_root(), &[]);
        let fields = ["compressed-diff-digest", "compressed-size", "compression"];
        let record = |node: &TestNode| {
            let record = scene.record(node, name);
            fields.map(|field| record.get(field).map(ToString::to_string))
        };
        let (our, their) = (record(&scene.node), record(&theirs));
        note(&format!(
            "{name}, podman of `{}`: downloaded {by_podman}, records {their:?}, we {our:?}",
            top.display()
        ));
        let blob = scene.upper(name);
        let known = [
            format!("\"{}\"", blob.digest),
            blob.size.to_string(),
            "2".to_owned(),
        ]
        .map(Some);
        // The old layer's record names this blob of gzip. Only a manifest that nobody authenticates names that of zstd.
        match name {
            "gzip" => assert_eq!(our, known),
            _ => assert_eq!(our, [None, None, None]),
        }
        differences.retain(|line| !line.contains(" record compress"));
        check(differences);
        // podman is content with it.
        let archive = scene.node.out("image.tar");
        let save = [
            "save",
            "--quiet",
            "--format",
            "oci-archive",
            "-o",
            archive.to_str().unwrap(),
        ];
        scene
            .node
            .podman_of(&top, &[&save[..], &[&name_of_image]].concat())
            .ok();
        let check = scene.node.podman_of(&top, &["system", "check", "--quick"]);
        if check.stdout.contains("system check") || check.is_ok() {
            check.ok();
        }
        scene.registry.clear_log();
        scene.node.empty_blob_info_cache();
        scene
            .node
            .podman_of(&top, &["pull", "--quiet", &name_of_image])
            .ok();
        note(&format!(
            "podman requests {:?} when it pulls again",
            scene.requested()
        ));
        scene
            .node
            .podman_of(&top, &["rmi", &scene.registry.tagged("old")])
            .ok();
        scene.node.verify(&["--image", &name_of_image]).exits(0);
    }
}

/// Every kind of entry, from layers that podman and we have stored.
#[test]
fn sample_images_on_another_base_are_copied_like_podman_pulls_them() {
    needs!(root(), stock());
    let registry = Registry::start();
    let base = Layer::of("file /base-of-all 0644 0:0 random=1000 seed=9", Compression::Gzip);
    let (mut names, mut wrong, mut empty_xattr) = (Vec::new(), Vec::new(), Vec::new());
    let samples = sample_images(b"no program");
    for sample in &samples.images {
        if sample.layers.is_empty() || sample.architecture != node_architecture() {
            continue;
        }
        let layers = sample
            .layers
            .iter()
            .map(|layer| Layer::of_tar(&layer.tar(), Compression::Zstd));
        let layers: Vec<Layer> = std::iter::once(base.clone()).chain(layers).collect();
        let moved = Image::build(&sample.name, Format::Oci, &sample.architecture, layers, |_, _| {});
        registry.push(&sample.name, Some("old"), sample);
        registry.push(&sample.name, Some("moved"), &moved);
        let tagged = |tag| format!("{}/{}:{tag}", registry.host(), sample.name);
        names.push((tagged("old"), tagged("moved")));
        let ids = layer_ids(sample).into_iter().chain(layer_ids(&moved));
        if STOCK_TAR_SPLIT_IS_WRONG.contains(&sample.name.as_str()) {
            wrong.extend(ids);
        } else if sample.name == EMPTY_XATTR {
            empty_xattr.extend(ids);
        }
    }
    let [ours, mixed, theirs] = [(), (), ()].map(|()| TestNode::trusting(&[registry.host()]));
    let images = |moved: bool| -> Vec<&str> {
        let names = names.iter().map(|(old, new)| if moved { new } else { old });
        names.flat_map(|name| ["--image", name]).collect()
    };
    ours.run(&images(false)).exits(0);
    for (old, new) in &names {
        mixed.podman_pull(old);
        theirs.podman_pull(old);
        theirs.podman_pull(new);
    }
    registry.clear_log();
    let run = ours.run(&images(true)).exits(0);
    assert_eq!(
        registry.layer_requests().len(),
        registry.requests_of(&base.digest),
        "{run}"
    );
    let all = run.report["images"].as_array().into_iter().flatten();
    assert!(
        all.clone().all(|image| image["fallbackReason"].is_null()),
        "{run}"
    );
    // Layers whose tar-split podman wrote wrongly are downloaded.
    registry.clear_log();
    let run = mixed.run(&images(true)).exits(0);
    note(&format!(
        "from podman's layers: {} downloaded",
        registry.layer_requests().len() - 1
    ));
    assert!(registry.layer_requests().len() < names.len() / 2, "{run}");
    for node in [&ours, &mixed] {
        let mut differences = compare(&node.graph_root(), &theirs.graph_root(), &wrong);
        differences.retain(|line| !line.contains(" record compress"));
        if theirs.podman_version().starts_with("4.") {
            let of_xattr = |line: &String| {
                empty_xattr
                    .iter()
                    .any(|id| line.starts_with(&format!("layer {id} tree user")))
            };
            differences.retain(|line| !of_xattr(line));
        }
        check(differences);
    }
    check(inconsistencies(&ours.graph_root()));
    ours.verify(&images(true)).exits(0);
}

#[test]
fn a_stored_layer_that_is_damaged_is_not_used() {
    needs!(root());
    for (damage, reason) in [
        ("content", "d/same"),
        ("length", "d/same"),
        ("file", "d/same"),
        ("tar-split", "tar-split"),
        ("no tar-split", "its files or its tar-split are missing"),
        ("other tar-split", "does not match"),
        ("link", "d"),
    ] {
        let scene = Scene::new();
        let file = scene.donor().join("d/same");
        let ids = layer_ids(scene.images.image("old"));
        let tar_split = |id: &str| {
            scene
                .node
                .graph_root()
                .join(format!("overlay-layers/{id}.tar-split.gz"))
        };
        match damage {
            "content" => {
                let mut bytes = fs::read(&file).unwrap();
                bytes[200_000] ^= 1;
                fs::write(&file, bytes).unwrap();
            }
            "length" => fs::write(&file, [0; 100]).unwrap(),
            "file" => fs::remove_file(&file).unwrap(),
            "tar-split" => fs::write(tar_split(&ids[1]), [0x1f, 0x8b, 8, 0, 1, 2, 3]).unwrap(),
            "no tar-split" => fs::remove_file(tar_split(&ids[1])).unwrap(),
            "other tar-split" => {
                // A whole layer, but not the one of the record.
                fs::copy(tar_split(&ids[0]), tar_split(&ids[1])).unwrap();
                let other = scene.donor().join("../../").join(&ids[0]).join("diff/old");
                fs::copy(other, scene.donor().join("old")).unwrap();
            }
            _ => {
                fs::rename(scene.donor().join("d"), scene.node.out("d")).unwrap();
                std::os::unix::fs::symlink(scene.node.out("d"), scene.donor().join("d")).unwrap();
            }
        }
        let image = ["--image", &scene.registry.tagged("zstd")];
        let run = scene.node.run(&image).exits(0);
        assert_eq!(scene.requested(), scene.blobs("zstd", 0..2), "{damage}: {run}");
        assert_eq!(run.total("layersFromStore"), 0, "{damage}: {run}");
        let said = run.report["images"][0]["fallbackReason"]
            .as_str()
            .unwrap_or_default();
        assert!(
            said.starts_with("cannot use the layer ") && said.contains(reason),
            "{damage}: {said}"
        );
        scene.node.verify(&image).exits(0);
    }
}

/// As where the image is removed while its layer is read.
#[test]
fn a_stored_layer_that_cannot_be_read_is_downloaded() {
    needs!(root(), strace());
    let scene = Scene::new();
    let image = ["--image", &scene.registry.tagged("gzip")];
    for error in ["EIO", "ENOENT", "ESTALE"] {
        let inject = format!("inject=openat2:error={error}:when=1+");
        let path = scene.donor();
        let options = ["-P", path.to_str().unwrap(), "-e", "trace=openat2", "-e", &inject];
        let run = scene
            .node
            .start_with_faults(&options, "run", &image)
            .wait()
            .exits(0);
        let run = run.says("cannot use the layer ");
        assert_eq!(scene.requested(), scene.blobs("gzip", 0..2), "{error}: {run}");
        scene.node.podman(&["rmi", &scene.registry.tagged("gzip")]).ok();
        scene.registry.clear_log();
    }
}

#[test]
fn two_images_with_one_content_under_two_compressions_are_one_download() {
    needs!(root());
    for (first, second, downloads) in [("gzip", "zstd", 2), ("old", "zstd", 3), ("zstd", "old", 3)] {
        let scene = Scene::empty();
        let names = [first, second].map(|name| scene.registry.tagged(name));
        let images = ["--image", &names[0], "--image", &names[1]];
        let run = scene.node.run(&images).exits(0);
        assert_eq!(scene.requested().len(), downloads, "{first} {second}: {run}");
        assert_eq!(run.total("bytesFetched"), run.total("bytesPlanned"), "{run}");
        check(inconsistencies(&scene.node.graph_root()));
        scene.node.verify(&images).exits(0);
    }
}

/// A docker-archive has the layers' tars, and not the blobs that the manifest lists.
#[test]
fn the_layers_of_a_docker_archive_are_unpacked_from_it() {
    needs!(root(), stock());
    for is_damaged in [false, true] {
        let scene = Scene::empty();
        let name = scene.registry.tagged("gzip");
        let theirs = TestNode::trusting(&[scene.registry.host()]);
        theirs.podman_pull(&name);
        let archive = theirs.out("archive.tar");
        let path = archive.to_str().unwrap();
        let save = ["save", "--quiet", "--format", "docker-archive", "-o", path, &name];
        theirs.podman(&save).ok();
        if is_damaged {
            let mut bytes = fs::read(&archive).unwrap();
            let content = crate::image::layer::random(300_000, 2);
            let start = bytes.windows(64).position(|window| window == &content[..64]);
            bytes[start.unwrap() + 1000] ^= 1;
            fs::write(&archive, bytes).unwrap();
        }
        scene.registry.clear_log();
        let image = ["--image", &name[..], "--blobs-from", path];
        let plan = scene.node.plan(&image).exits(0);
        assert!(plan.stdout.contains(&format!("from `{path}`")), "{plan}");
        let run = scene.node.run(&image).exits(0);
        let upper = scene.blobs("gzip", 1..2);
        match is_damaged {
            false => assert_eq!(scene.requested(), BTreeSet::new(), "{run}"),
            true => assert_eq!(scene.requested(), upper, "{run}"),
        }
        assert_eq!(run.total("bytesFetched") == 0, !is_damaged, "{run}");
        assert!(run.total("bytesFromMedia") > 40_000, "{run}");
        let mut differences = compare(&scene.node.graph_root(), &theirs.graph_root(), &[]);
        differences.retain(|line| !line.contains(" record compress"));
        check(differences);
        scene.node.verify(&["--image", &name]).exits(0);
    }
}
