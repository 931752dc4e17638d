//! Pulls images in the format `zstd:chunked`, as skopeo makes them, on nodes that have the previous version: only the chunks of
//! changed files are downloaded, and the store is the one of a whole pull.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::compare::{compare, inconsistencies};
use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::{leave_out, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::stock;
use crate::test_node::{Run, TestNode};

const REPOSITORY: &str = "app";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const ANNOTATION: &str = "io.github.containers.zstd-chunked";

/// Files of the large layer, and those that differ between the versions.
const FILES: u64 = 40;
const CHANGED: [u64; 3] = [3, 20, 37];
const FILE_SIZE: u64 = 70_000;

/// A layer of files that do not compress; one of them has a hole of zeros.
fn image(version: u64) -> Image {
    let mut text = String::from("dir /d 0755 0:0\nfile /empty 0644 0:0\n");
    for number in 0..FILES {
        let seed = match CHANGED.contains(&number) {
            true => version * 1000 + number,
            false => number,
        };
        text += &format!(
            "file /d/f{number} 0644 {number}:0 random={FILE_SIZE} seed={seed} mtime=150000000{version}\n"
        );
    }
    text += "file /holes 0600 1:2 bytes=holes\nxattr user.note=\"new\"\nlink /d/hard -> /d/f1\nsymlink /link -> d/f2\n";
    let noise = |seed| crate::image::layer::random(100_000, seed);
    let holes = [noise(900), vec![0; 200_000], noise(900 + version)].concat();
    let large = crate::image::layer::tar_of(&text, &[("holes", &holes)]);
    let base = Layer::of("file /base 0644 0:0 \"base\"", Compression::Gzip);
    let layers = vec![base, Layer::of_tar(&large, Compression::None)];
    Image::build(REPOSITORY, Format::Oci, node_architecture(), layers, |_, _| {})
}

/// A blob in this format, and its layer's descriptor.
struct Chunked {
    manifest: Value,
    blob: Bytes,
}

impl Chunked {
    /// Lets skopeo compress the image of `registry` again.
    fn of(registry: &Registry, node: &TestNode, reference: &str) -> Self {
        let directory = node.host().join("var/lib/containers/chunked");
        let format = ["--dest-compress", "--dest-compress-format", "zstd:chunked"];
        let (from, to) = (format!("docker://{reference}"), "dir:/var/lib/containers/chunked");
        let copy = [&["copy", "--src-tls-verify=false"], &format[..], &[&*from, to]].concat();
        node.skopeo(&copy).ok();
        let manifest: Value =
            serde_json::from_slice(&fs::read(directory.join("manifest.json")).unwrap()).unwrap();
        for blob in manifest["layers"]
            .as_array()
            .unwrap()
            .iter()
            .chain([&manifest["config"]])
        {
            let digest = blob["digest"].as_str().unwrap();
            let bytes = fs::read(directory.join(digest.trim_start_matches("sha256:"))).unwrap();
            registry.content().put_blob(REPOSITORY, digest, bytes.into());
        }
        let digest = manifest["layers"][1]["digest"].as_str().unwrap();
        let blob = fs::read(directory.join(digest.trim_start_matches("sha256:")))
            .unwrap()
            .into();
        fs::remove_dir_all(directory).unwrap();
        Self { manifest, blob }
    }

    fn digest(&self) -> String {
        sha256(&self.blob)
    }

    /// Where the blob has these; the annotation begins with offset and length.
    fn position(&self, what: &str) -> Range<usize> {
        let text = self.manifest["layers"][1]["annotations"][format!("{ANNOTATION}.{what}")].as_str();
        let numbers: Vec<usize> = text
            .unwrap()
            .split(':')
            .map(|number| number.parse().unwrap())
            .collect();
        numbers[0]..numbers[0] + numbers[1]
    }

    /// Skopeo 1.9 writes no tar-split.
    fn has_tar_split(&self) -> bool {
        let annotations = &self.manifest["layers"][1]["annotations"];
        !annotations[format!("{ANNOTATION}.tarsplit-position")].is_null()
            && !self.toc()["tarSplitDigest"].is_null()
    }

    fn toc(&self) -> Value {
        let toc = &self.blob[self.position("manifest-position")];
        serde_json::from_slice(&zstd::decode_all(toc).unwrap()).unwrap()
    }

    /// The same layer with another TOC.
    fn with_toc(&self, toc: &Value) -> Self {
        let (toc, old) = (toc.to_string().into_bytes(), self.position("manifest-position"));
        let tar_split = &self.blob[self.position("tarsplit-position")];
        let compressed = zstd::encode_all(&toc[..], 0).unwrap();
        let frame = |bytes: &[u8]| {
            [
                &b"\x50\x2a\x4d\x18"[..],
                &(bytes.len() as u32).to_le_bytes(),
                bytes,
            ]
            .concat()
        };
        let blob = [
            &self.blob[..old.start - 8],
            &frame(&compressed),
            &frame(tar_split),
        ]
        .concat();
        let mut manifest = self.manifest.clone();
        let layer = &mut manifest["layers"][1];
        (layer["digest"], layer["size"]) = (json!(sha256(&blob)), json!(blob.len()));
        let tar_split_size = zstd::decode_all(tar_split).unwrap().len();
        let tar_split_start = old.start + compressed.len() + 8;
        layer["annotations"] = json!({
            format!("{ANNOTATION}.manifest-checksum"): sha256(&compressed),
            format!("{ANNOTATION}.manifest-position"): format!("{}:{}:{}:1", old.start, compressed.len(), toc.len()),
            format!("{ANNOTATION}.tarsplit-position"): format!("{tar_split_start}:{}:{tar_split_size}", tar_split.len()),
        });
        let blob = blob.into();
        Self { manifest, blob }
    }

    /// Stores it under a tag, and returns its name by digest.
    fn publish(&self, registry: &Registry, tag: &str) -> String {
        let bytes = Bytes::from(self.manifest.to_string());
        let digest = sha256(&bytes);
        let mut content = registry.content();
        content.put_blob(REPOSITORY, &self.digest(), self.blob.clone());
        for name in [tag, &digest] {
            content.put_manifest(REPOSITORY, name, MANIFEST, bytes.clone());
        }
        drop(content);
        registry.at(REPOSITORY, &digest)
    }
}

/// A registry with the new image, and a node with the old one.
struct Scene {
    registry: Registry,
    node: TestNode,
    chunked: Chunked,
    /// The new image by digest.
    name: String,
}

impl Scene {
    /// None if skopeo does not make the format that is read here.
    fn new() -> Option<Self> {
        let registry = Registry::start();
        for (tag, version) in [("old", 1), ("plain", 2)] {
            registry.push(REPOSITORY, Some(tag), &image(version));
        }
        let node = Self::node(&registry);
        let chunked = Chunked::of(
            &registry,
            &node,
            &format!("{}/{REPOSITORY}:plain", registry.host()),
        );
        if !chunked.has_tar_split() {
            leave_out("this skopeo writes no tar-split: SPOKE_STOCK_ROOT=$(.ci/stock-trixie)");
            return None;
        }
        let name = chunked.publish(&registry, "new");
        registry.clear_log();
        Some(Self {
            registry,
            node,
            chunked,
            name,
        })
    }

    /// A node with the old image.
    fn node(registry: &Registry) -> TestNode {
        let node = TestNode::trusting(&[registry.host()]);
        node.podman_pull(&format!("{}/{REPOSITORY}:old", registry.host()));
        node
    }

    fn blob(&self) -> String {
        self.chunked.digest()
    }

    /// Ranges of the large blob that were requested, each with the bytes that were sent.
    fn requests(&self) -> Vec<(Option<String>, u64)> {
        let log = self.registry.log().into_iter();
        let of_blob = log.filter(|access| access.path.ends_with(&self.blob()));
        of_blob
            .map(|access| (access.range.clone(), access.sent()))
            .collect()
    }

    fn sent(&self) -> u64 {
        self.requests().iter().map(|(_, sent)| sent).sum()
    }

    /// The compressed bytes of the changed files: all that has to be downloaded besides TOC and tar-split.
    fn changed_bytes(&self) -> u64 {
        let toc = self.chunked.toc();
        let entries = toc["entries"].as_array().unwrap().iter();
        let changed =
            |name: &str| CHANGED.iter().any(|number| name == format!("d/f{number}")) || name == "holes";
        let changed =
            entries.filter(|entry| entry["type"] == "reg" && changed(entry["name"].as_str().unwrap()));
        changed
            .map(|entry| entry["endOffset"].as_u64().unwrap() - entry["offset"].as_u64().unwrap())
            .sum()
    }

    fn metadata_bytes(&self) -> u64 {
        (self.position("tarsplit-position").end - self.position("manifest-position").start) as u64
    }

    fn position(&self, what: &str) -> Range<usize> {
        self.chunked.position(what)
    }

    fn spool(&self) -> Vec<PathBuf> {
        let directory = self.node.graph_root().with_file_name("spoke-precache");
        let names = fs::read_dir(directory)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let is_blob = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("sha256:");
        names.filter(is_blob).collect()
    }

    fn spooled_bytes(&self) -> u64 {
        let files = self
            .spool()
            .into_iter()
            .filter(|path| path.extension().is_some_and(|it| it == "partial"));
        files
            .map(|path| fs::metadata(path).map_or(0, |file| file.len()))
            .sum()
    }

    /// The file at `path` in the store's layers.
    fn stored(&self, path: &str) -> PathBuf {
        let layers = fs::read_dir(self.node.graph_root().join("overlay"))
            .unwrap()
            .flatten();
        let mut files = layers.map(|layer| layer.path().join("diff").join(path));
        files.find(|file| file.exists()).unwrap()
    }

    /// Fails unless the store is that of a whole pull, except for what records state about a blob that nobody saw.
    #[track_caller]
    fn is_whole(&self, run: &Run) {
        let theirs = Self::node(&self.registry);
        theirs.write("etc/containers/storage.conf", &whole_pulls());
        theirs.podman_pull(&self.name);
        let mut differences = compare(&self.node.graph_root(), &theirs.graph_root(), &[]);
        differences.retain(|line| !line.contains(" record compress"));
        assert!(differences.is_empty(), "{}\n{run}", differences.join("\n"));
        let wrong = inconsistencies(&self.node.graph_root());
        assert!(wrong.is_empty(), "{}\n{run}", wrong.join("\n"));
        assert_eq!(self.spool(), [] as [PathBuf; 0], "{run}");
    }
}

/// A storage.conf with which podman pulls whole blobs.
fn whole_pulls() -> String {
    "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n\
     graphroot = \"/var/lib/containers/storage\"\n\
     [storage.options.pull_options]\nenable_partial_images = \"false\"\n"
        .to_owned()
}

fn fallback_reason(run: &Run) -> &str {
    run.report["images"][0]["fallbackReason"]
        .as_str()
        .unwrap_or_default()
}

#[test]
fn only_the_chunks_of_changed_files_are_downloaded() {
    needs!(root(), stock());
    let Some(scene) = Scene::new() else { return };
    let planned = scene.node.plan(&["--image", &scene.name]).exits(0);
    scene.registry.clear_log();
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    let requests = scene.requests();
    assert!(
        requests.iter().all(|(range, _)| range.is_some()),
        "{requests:?}\n{run}"
    );
    // One for TOC and tar-split, one for each changed file; the file with a hole is near the end of the others.
    assert!((4..=6).contains(&requests.len()), "{requests:?}\n{run}");
    let (sent, needed) = (scene.sent(), scene.metadata_bytes() + scene.changed_bytes());
    assert!(
        sent <= needed + (64 << 10) * requests.len() as u64,
        "{sent} for {needed}\n{run}"
    );
    assert!(sent * 4 < scene.chunked.blob.len() as u64, "{sent}\n{run}");
    scene.is_whole(&run);
    // The base layer is in the store.
    assert_eq!(planned.total("bytesPlanned"), sent, "{planned}");
}

#[test]
fn a_file_of_the_node_that_changes_during_the_download_costs_no_byte_twice() {
    needs!(root(), stock());
    let Some(scene) = Scene::new() else { return };
    // The first request is for TOC and tar-split.
    scene
        .registry
        .fault(Fault::on(&scene.blob()).after(1).times(1).slow(20_000));
    let mut running = scene.node.start("run", &["--image", &scene.name]);
    let began = Instant::now();
    while scene.requests().len() < 2 {
        assert!(
            !running.has_ended() && began.elapsed() < Duration::from_secs(60),
            "no chunk is requested"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = scene.stored("d/f10");
    let mut content = fs::read(&file).unwrap();
    content[1000] ^= 1;
    fs::write(&file, content).unwrap();
    let run = running.wait().exits(0);
    assert!(fallback_reason(&run).contains("another digest"), "{run}");
    let (sent, whole) = (scene.sent(), scene.chunked.blob.len() as u64);
    assert_eq!(sent, whole, "{:?}\n{run}", scene.requests());
    // The old image is damaged, but not the new one.
    let wrong = inconsistencies(&scene.node.graph_root());
    assert!(
        wrong.iter().all(|line| line.contains("d/f10")),
        "{wrong:?}\n{run}"
    );
    assert_eq!(scene.spool(), [] as [PathBuf; 0], "{run}");
    let made = scene.registry.log().len();
    scene.node.verify(&["--image", &scene.name]).exits(0);
    assert_eq!(scene.registry.log().len(), made, "a verification asks nothing");
}

#[test]
fn a_file_that_is_damaged_before_is_downloaded() {
    needs!(root(), stock());
    let Some(scene) = Scene::new() else { return };
    let file = scene.stored("d/f10");
    let mut content = fs::read(&file).unwrap();
    content[1000] ^= 1;
    fs::write(&file, content).unwrap();
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    assert!(
        scene.sent() * 3 < scene.chunked.blob.len() as u64,
        "{:?}\n{run}",
        scene.requests()
    );
    assert_eq!(fallback_reason(&run), "", "{run}");
    scene.node.verify(&["--image", &scene.name]).exits(0);
}

#[test]
fn a_table_of_contents_that_states_wrong_digests_makes_no_layer() {
    needs!(root(), stock());
    let Some(mut scene) = Scene::new() else { return };
    let mut toc = scene.chunked.toc();
    let entries = toc["entries"].as_array_mut().unwrap();
    let digest_of = |entries: &[Value], name: &str| {
        let entry = entries
            .iter()
            .find(|entry| entry["name"] == name && entry["type"] == "reg");
        entry.unwrap()["digest"].clone()
    };
    // The content of a file is said to be that of another one, which the node has under this name.
    let path = scene.stored("d/f20");
    let old = sha256(&fs::read(path).unwrap());
    let new = digest_of(entries, "d/f20");
    let entry = entries.iter_mut().find(|entry| entry["digest"] == new);
    entry.unwrap()["digest"] = json!(old);
    scene.chunked = scene.chunked.with_toc(&toc);
    scene.name = scene.chunked.publish(&scene.registry, "wrong");
    scene.registry.clear_log();
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    assert!(fallback_reason(&run).contains("chunks of the blob"), "{run}");
    assert!(fallback_reason(&run).contains("does not match"), "{run}");
    scene.is_whole(&run);

    let mut toc = scene.chunked.toc();
    let entries = toc["entries"].as_array_mut().unwrap();
    let entry = entries.iter_mut().find(|entry| entry["name"] == "d/f3");
    entry.unwrap()["digest"] = json!(sha256(b"something else"));
    let node = std::mem::replace(&mut scene.node, Scene::node(&scene.registry));
    drop(node);
    scene.chunked = scene.chunked.with_toc(&toc);
    scene.name = scene.chunked.publish(&scene.registry, "wrong");
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    assert!(
        fallback_reason(&run).contains("the chunks of `d/f3` are wrong"),
        "{run}"
    );
    scene.is_whole(&run);
}

#[test]
fn a_registry_without_ranges_sends_the_whole_blob_once() {
    needs!(root(), stock());
    let Some(scene) = Scene::new() else { return };
    scene.registry.fault(Fault::on(&scene.blob()).ignore_range());
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    let requests = scene.requests();
    assert_eq!(requests.len(), 2, "TOC and blob: {requests:?}\n{run}");
    assert_eq!(requests[1].1, scene.chunked.blob.len() as u64, "{run}");
    scene.is_whole(&run);
}

#[test]
fn a_kill_costs_nothing_that_was_received() {
    needs!(root(), stock());
    let Some(scene) = Scene::new() else { return };
    scene.registry.fault(Fault::on(&scene.blob()).slow(160 << 10));
    let mut kills = 0;
    for bytes in [scene.metadata_bytes() + 20_000, scene.metadata_bytes() + 150_000] {
        let mut running = scene.node.start("run", &["--image", &scene.name]);
        let began = Instant::now();
        while scene.spooled_bytes() < bytes && !running.has_ended() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it does not come so far"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        running.signal(Signal::KILL);
        assert_eq!(running.wait().code, 1009);
        kills += 1;
    }
    scene.registry.end_faults();
    let run = scene.node.run(&["--image", &scene.name]).exits(0);
    let needed = scene.metadata_bytes() + scene.changed_bytes();
    let bound = needed + (64 << 10) * (6 + 4 * kills);
    assert!(
        scene.sent() <= bound,
        "{} of {bound}: {:?}\n{run}",
        scene.sent(),
        scene.requests()
    );
    scene.is_whole(&run);
}

/// Bytes against a whole pull, for an image with programs of some hundred MiB of which a tenth changes.
#[test]
fn a_large_image_with_few_changes_costs_its_changes() {
    needs!(root(), stock());
    if !crate::needs::long() {
        return leave_out("takes a minute: SPOKE_LONG=1");
    }
    let registry = Registry::start();
    let large = |version: u64| {
        let file = |number: u64| {
            let seed = if number.is_multiple_of(10) {
                version * 10_000 + number
            } else {
                number
            };
            let length = 20_000 + (number * 7919) % 400_000;
            format!(
                "file /d{}/f{number} 0755 0:0 program={length} seed={seed}\n",
                number % 50
            )
        };
        let dirs: String = (0..50)
            .map(|number| format!("dir /d{number} 0755 0:0\n"))
            .collect();
        let text = dirs + &(0..1500).map(file).collect::<String>();
        let layers = vec![Layer::of(&text, Compression::Gzip)];
        Image::build(REPOSITORY, Format::Oci, node_architecture(), layers, |_, _| {})
    };
    registry.push(REPOSITORY, Some("old"), &large(1));
    registry.push(REPOSITORY, Some("plain"), &large(2));
    let node = Scene::node(&registry);
    let layer = large(2).layers[0].blob.len();
    let top: &Path = &stock::top();
    let mut copy = node.tool_command_within(
        "300",
        top,
        "pull",
        &[
            "skopeo",
            "--insecure-policy",
            "copy",
            "--src-tls-verify=false",
            "--dest-compress",
            "--dest-compress-format",
            "zstd:chunked",
            &format!("docker://{}/{REPOSITORY}:plain", registry.host()),
            "dir:/var/lib/containers/chunked",
        ],
    );
    assert!(copy.status().unwrap().success());
    let directory = node.host().join("var/lib/containers/chunked");
    let bytes = Bytes::from(fs::read(directory.join("manifest.json")).unwrap());
    let manifest: Value = serde_json::from_slice(&bytes).unwrap();
    for part in [&manifest["config"], &manifest["layers"][0]] {
        let digest = part["digest"].as_str().unwrap();
        let blob = fs::read(directory.join(digest.trim_start_matches("sha256:"))).unwrap();
        registry.content().put_blob(REPOSITORY, digest, blob.into());
    }
    registry
        .content()
        .put_manifest(REPOSITORY, &sha256(&bytes), MANIFEST, bytes.clone());
    registry.clear_log();
    let run = node
        .run(&["--image", &registry.at(REPOSITORY, &sha256(&bytes))])
        .exits(0);
    let blob = manifest["layers"][0]["digest"].as_str().unwrap();
    let log = registry
        .log()
        .into_iter()
        .filter(|access| access.path.ends_with(blob));
    let (requests, sent) = log.fold((0, 0), |(count, sum), access| (count + 1, sum + access.sent()));
    let whole = manifest["layers"][0]["size"].as_u64().unwrap();
    crate::needs::note(&format!(
        "{sent} of {whole} bytes in {requests} requests ({layer} as gzip), {} MiB of memory, {:?}",
        run.memory >> 20,
        run.took
    ));
    assert!(sent * 4 < whole, "{sent} of {whole}\n{run}");
}
