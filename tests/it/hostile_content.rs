//! Pulls malicious images and from a registry with false content: they are refused, bounded, and change nothing outside the
//! store.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use sha2::Digest as _;

use crate::compare::{compare, inconsistencies};
use crate::disk_full::Disk;
use crate::image::release::{RELEASE, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, layer, node_architecture, sha256};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, TestNode};

/// Ends runs whose errors count as transient.
const GIVE_UP: [&str; 2] = ["--give-up-after", "2s"];
/// Nothing in here may take longer in one run.
const BOUNDED: Duration = Duration::from_secs(60);

fn image(layers: Vec<Layer>, edit: impl Fn(&mut Value, &mut Value)) -> Image {
    Image::build("hostile", Format::Docker, node_architecture(), layers, edit)
}

fn ordinary(seed: u64) -> Layer {
    Layer::of(
        &format!("dir /d 0755 0:0\nfile /d/f 0644 0:0 random=30000 seed={seed}"),
        Compression::Gzip,
    )
}

/// Nothing of `image` is visible and the store is sound.
fn left_nothing(world: &TestNode) {
    let mut wrong = inconsistencies(&world.graph_root());
    let images =
        fs::read_to_string(world.graph_root().join("overlay-images/images.json")).unwrap_or_default();
    if !["", "[]"].contains(&images.trim()) {
        wrong.push(format!("there is an image: {images}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// An ordinary layer with a false claim about it.
fn claim(change: fn(&mut Layer)) -> Layer {
    let mut layer = ordinary(1);
    change(&mut layer);
    layer
}

/// Leaves a manifest and a config as they are.
fn unchanged(_: &mut Value, _: &mut Value) {}

/// Pulls `image` into a new store: the run ends with `code`, and nothing of the image is in the store.
fn pull_fails_with(code: i32, what: &str, image: &Image) -> Run {
    let registry = Registry::start();
    registry.push("hostile", Some("latest"), image);
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
    assert_eq!(run.code, code, "{what}: {run}");
    left_nothing(&world);
    run
}

#[test]
fn a_false_digest_or_diff_id_is_detected() {
    needs!(root());
    let cases = [
        (
            "a layer has another digest",
            image(vec![claim(|layer| layer.digest = sha256(b"another"))], unchanged),
        ),
        (
            "a layer has another diffID",
            image(vec![claim(|layer| layer.diff_id = sha256(b"another"))], unchanged),
        ),
    ];
    for (what, image) in cases {
        pull_fails_with(6, what, &image);
    }
}

/// The bytes are those that the digest names, so no mirror is to blame and none has better ones.
#[test]
fn an_image_that_is_bad_although_its_digests_match_is_unexpected_content() {
    needs!(root());
    let bytes = layer::random(5000, 1);
    let no_gzip = Layer::of_blob(bytes.clone().into(), sha256(&bytes), Compression::Gzip);
    let no_tar = Layer::of_tar(&bytes, Compression::Gzip);
    let cases = [
        (
            "a layer is longer than the manifest says",
            image(vec![claim(|layer| layer.size -= 1)], unchanged),
        ),
        (
            "a layer is shorter than the manifest says",
            image(vec![claim(|layer| layer.size += 1)], unchanged),
        ),
        ("a layer is no gzip", image(vec![no_gzip], unchanged)),
        ("a layer is no tar", image(vec![no_tar], unchanged)),
    ];
    for (what, image) in cases {
        let run = pull_fails_with(5, what, &image);
        let last = run.stdout.lines().last().unwrap();
        assert!(last.ends_with("another run will not help"), "{what}: {run}");
        assert!(!run.stdout.contains("mirror"), "{what}: {run}");
    }
}

#[test]
fn a_config_with_more_or_fewer_diff_ids_is_refused() {
    needs!(root());
    for edit in [
        |config: &mut Value, _: &mut Value| config["rootfs"]["diff_ids"] = Value::Array(Vec::new()),
        |config: &mut Value, _: &mut Value| {
            let first = config["rootfs"]["diff_ids"][0].clone();
            config["rootfs"]["diff_ids"].as_array_mut().unwrap().push(first);
        },
        |config: &mut Value, _: &mut Value| config["rootfs"]["diff_ids"][0] = "sha256:short".into(),
        |config: &mut Value, _: &mut Value| *config = Value::String("no config".into()),
    ] {
        let registry = Registry::start();
        registry.push("hostile", Some("latest"), &image(vec![ordinary(1)], edit));
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&["--image", &registry.tagged("hostile")]);
        assert!([1, 5, 6].contains(&run.code), "{run}");
        left_nothing(&world);
    }
}

#[test]
fn bytes_that_differ_from_their_digest_are_never_stored() {
    needs!(root());
    let good = image(vec![ordinary(1)], |_, _| {});
    let other = image(vec![ordinary(2)], |_, _| {});
    let config = sha256(&good.config);
    for (what, path, bytes) in [
        (
            "manifest",
            format!("/manifests/{}", good.digest()),
            other.manifest.clone(),
        ),
        ("config", format!("/blobs/{config}"), other.config.clone()),
        (
            "layer",
            format!("/blobs/{}", good.layers[0].digest),
            other.layers[0].blob.clone(),
        ),
    ] {
        let registry = Registry::start();
        registry.push("hostile", None, &good);
        registry.fault(
            Fault::on(&path)
                .replace(bytes)
                .header("Content-Type", &good.media_type),
        );
        let world = TestNode::trusting(&[registry.host()]);
        let name = registry.at("hostile", &good.digest());
        let run = world.run(&[&["--image", &name], &GIVE_UP[..]].concat());
        assert_eq!(run.code, 6, "another {what}: {run}");
        left_nothing(&world);
    }
}

/// The header is the server's opinion; the digest is that of the bytes.
#[test]
fn the_servers_digest_header_is_not_believed() {
    needs!(root(), stock());
    let registry = Registry::start();
    let image = image(vec![ordinary(1)], |_, _| {});
    registry.push("hostile", Some("latest"), &image);
    registry.fault(Fault::on("/manifests/").header("Docker-Content-Digest", &sha256(b"a lie")));
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("hostile");
    let run = world.run(&["--image", &name]);
    if run.code == 0 {
        assert_eq!(
            world
                .podman(&["image", "inspect", "--format", "{{.Digest}}", &name])
                .ok(),
            image.digest()
        );
    } else {
        assert_eq!(run.code, 6, "{run}");
        left_nothing(&world);
    }
}

#[test]
fn garbage_is_refused() {
    needs!(root());
    let random = layer::random(100_000, 9);
    let garbage = |bytes: Vec<u8>, compression| {
        let diff_id = sha256(&bytes);
        image(
            vec![Layer::of_blob(bytes.into(), diff_id, compression)],
            |_, _| {},
        )
    };
    let tar = layer::tar_of("file /a 0644 0:0 random=50000 seed=1", &[]);
    let mut broken_gzip = crate::image::gzip(&tar);
    let middle = broken_gzip.len() / 2;
    broken_gzip[middle] ^= 0xff;
    let cut_gzip = crate::image::gzip(&tar)[..middle].to_vec();
    for (what, image) in [
        ("random bytes", garbage(random.clone(), Compression::Gzip)),
        (
            "random bytes in gzip",
            garbage(crate::image::gzip(&random), Compression::Gzip),
        ),
        (
            "a gzip with a wrong byte",
            garbage(broken_gzip, Compression::Gzip),
        ),
        ("half a gzip", garbage(cut_gzip, Compression::Gzip)),
        ("half a tar", garbage(tar[..20_000].to_vec(), Compression::None)),
    ] {
        let registry = Registry::start();
        registry.push("hostile", Some("latest"), &image);
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
        assert_eq!(run.code, 5, "{what}: {run}");
        left_nothing(&world);
    }
    for manifest in [
        &b""[..],
        b"garbage",
        b"[]",
        b"{}",
        b"{\"schemaVersion\": 2}",
        &random,
    ] {
        let registry = Registry::start();
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        registry
            .content()
            .put_manifest("hostile", "latest", media_type, Bytes::copy_from_slice(manifest));
        let world = TestNode::trusting(&[registry.host()]);
        let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
        assert!([1, 5, 6].contains(&run.code), "{run}");
        left_nothing(&world);
    }
}

#[test]
fn an_endless_manifest_is_not_read_to_its_end() {
    needs!(root());
    let registry = Registry::start();
    let spaces = Bytes::from(vec![b' '; 200_000_000]);
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    registry
        .content()
        .put_manifest("hostile", "latest", media_type, spaces);
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
    assert_ne!(run.code, 0, "{run}");
    let most = registry
        .log()
        .iter()
        .map(crate::registry::log::Access::sent)
        .max()
        .unwrap_or(0);
    // Sockets hold a few megabytes beyond what was read.
    assert!(most < 50_000_000, "{most} bytes were taken: {run}");
}

/// Runs on a small disk: the layer is refused before the disk is full, and an ordinary image beside it is pulled.
fn defused(what: &str, registry: &Registry) {
    registry.push("ordinary", Some("latest"), &image(vec![ordinary(1)], |_, _| {}));
    let world = TestNode::trusting(&[registry.host()]);
    let _disk = Disk::mount(&world, "xfs");
    let (bad, good) = (registry.tagged("hostile"), registry.tagged("ordinary"));
    let run = world.run(&["--image", &bad, "--image", &good]).exits(3);
    let run = run.says("not enough disk space for this layer").says("hint: ");
    assert!(!run.stderr.contains("the disk is full"), "{what}: {run}");
    assert_eq!(run.images("failed"), [&bad], "{what}: {run}");
    assert_eq!(run.images("pulled"), [&good], "{what}: {run}");
    assert!(run.took < BOUNDED, "{what}: {run}");
    let wrong = inconsistencies(&world.graph_root());
    assert!(wrong.is_empty(), "{what}: {}", wrong.join("\n"));
}

/// 10 MB of gzip that inflate to 10 GB of zeros: as the rest of a tar, and as one file.
#[test]
fn a_gzip_bomb_is_stopped_before_it_fills_the_disk() {
    needs!(root(), xfs());
    let zeros = crate::image::gzip(&vec![0; 64 << 20]);
    let file = layer::tar_of("file /zeros 0644 0:0 size=10737418240\neof 0", &[]);
    for (what, first) in [("after the end", &[0_u8; 1024][..]), ("in a file", &file)] {
        let first = crate::image::gzip(first);
        let whole = [&first[..], &zeros.repeat(160)].concat();
        // The diffID is false, because hashing 10 GB takes too long here; the run must fail before it compares it.
        let mut layer = Layer::of_blob(Bytes::new(), sha256(b"unknown"), Compression::Gzip);
        (layer.digest, layer.size) = (sha256(&whole), whole.len() as u64);
        let digest = layer.digest.clone();
        let registry = Registry::start();
        registry.push("hostile", Some("latest"), &image(vec![layer], |_, _| {}));
        registry.content().put_blob("hostile", &digest, whole.into());
        defused(what, &registry);
    }
}

/// A tar of 2 KB whose one file is 60 GB of holes; podman writes them all.
#[test]
fn a_sparse_bomb_is_stopped_before_it_fills_the_disk() {
    needs!(root(), xfs());
    for format in ["0.0", "0.1", "1.0"] {
        let lines = format!("sparse /disk {format} size=64424509440 at=0:begin at=64424509000:end");
        let registry = Registry::start();
        registry.push(
            "hostile",
            Some("latest"),
            &image(vec![Layer::of(&lines, Compression::Gzip)], |_, _| {}),
        );
        defused(format, &registry);
    }
}

/// Zeros of which a thousandth or less travels: more than any ratio allows to a layer, and good all the same.
#[test]
fn five_gibibytes_of_zeros_are_pulled_if_there_is_space() {
    needs!(root());
    const GIB: u64 = 1 << 30;
    // Always more than one, which small blobs were once limited to.
    let length = if long() { 5 * GIB } else { GIB + GIB / 4 };
    for compression in [Compression::Zstd, Compression::Gzip] {
        if compression == Compression::Gzip && !long() {
            continue;
        }
        let registry = Registry::start();
        // Docker's media types have no zstd.
        let layers = vec![zeros(length, compression)];
        let image = Image::build("hostile", Format::Oci, node_architecture(), layers, |_, _| {});
        registry.push("hostile", Some("latest"), &image);
        let args = ["--image", &registry.tagged("hostile")];
        let world = TestNode::trusting(&[registry.host()]);
        let plan = world.plan(&[&args[..], &["--output", "json"]].concat()).exits(0);
        let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
        let planned = plan["totals"]["unpackedEstimate"].as_u64().unwrap();
        match compression {
            // What the length wraps to, and said to be the least.
            Compression::Gzip => {
                assert_eq!(plan["totals"]["unpackedAtLeast"], planned);
                assert!((GIB..2 * GIB).contains(&planned), "{planned}");
                world.plan(&args).exits(0).says("at least 1.0 GiB");
            }
            // A smaller blob is not worth asking.
            _ => assert!(planned >= length || !long(), "{planned}"),
        }
        let run = world.run(&args).exits(0);
        let files = fs::read_dir(world.graph_root().join("overlay"))
            .unwrap()
            .flatten();
        let sizes = files.filter_map(|layer| fs::metadata(layer.path().join("diff/zeros")).ok());
        assert_eq!(sizes.map(|file| file.len()).sum::<u64>(), length, "{run}");
    }
}

/// A layer with one file of zeros, made without its tar in memory.
fn zeros(length: u64, compression: Compression) -> Layer {
    let header = layer::tar_of(&format!("file /zeros 0644 0:0 size={length}\neof 0"), &[]);
    let block = vec![0; 1 << 20];
    let mut tar = sha2::Sha256::new();
    let mut write = |out: &mut dyn Write| {
        let blocks = std::iter::repeat_n(&block[..], usize::try_from(length >> 20).unwrap());
        for bytes in [&header[..]].into_iter().chain(blocks).chain([&block[..1024]]) {
            tar.update(bytes);
            out.write_all(bytes).unwrap();
        }
    };
    let blob = match compression {
        Compression::Gzip => {
            let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            write(&mut out);
            out.finish().unwrap()
        }
        _ => {
            let mut out = zstd::Encoder::new(Vec::new(), 3).unwrap();
            out.set_pledged_src_size(Some(length + header.len() as u64 + 1024))
                .unwrap();
            write(&mut out);
            out.finish().unwrap()
        }
    };
    let diff_id = format!("sha256:{}", hex(&tar.finalize()));
    Layer::of_blob(blob.into(), diff_id, compression)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every way out of a layer's directory. What podman unpacks we unpack, to the same tree; what it refuses we may refuse.
/// Nothing outside may change.
#[test]
fn no_tar_reaches_outside_of_its_layer() {
    needs!(root(), stock());
    for lines in [
        "file ../../../../../../../../../../OUT/canary 0644 0:0 \"overwritten\"",
        "file //OUT/canary 0644 0:0 \"overwritten\"",
        "file OUT/../../../../../../../../OUT/canary 0644 0:0 \"overwritten\"",
        "symlink /escape -> /OUT\nfile /escape/canary 0644 0:0 \"overwritten\"",
        "symlink /escape -> ../../../../../../../../../../OUT\nfile /escape/canary 0644 0:0 \"overwritten\"",
        "symlink /escape -> /OUT\nwhiteout /escape/canary",
        "symlink /escape -> /OUT\nopaque /escape",
        "symlink /escape -> /OUT\ndir /escape 0777 1:1",
        "symlink /escape -> /OUT\ndir /escape/ 0777 1:1\nfile /escape/canary 0644 0:0 \"overwritten\"",
        "symlink /canary -> /OUT/canary\nfile /canary 0644 0:0 \"overwritten\"",
        "symlink /canary -> /OUT/canary\nlink /hard -> /canary 0777 1:1",
        "link /hard -> /../../../../../../../../OUT/canary",
        "link /hard -> //OUT/canary 0777 1:1",
        "symlink /escape -> /OUT\nlink /hard -> /escape/canary 0777 1:1",
        "whiteout ../../../../../../../../../OUT/canary",
        "file /..  0644 0:0 \"x\"",
        "file /.wh... 0644 0:0 \"x\"",
        "file /.wh.. 0644 0:0 \"x\"",
        "file /.wh. 0644 0:0 \"x\"",
        "file /d/.wh... 0644 0:0 \"x\"",
        "dir /.. 0777 1:1",
        "dir / 0777 1:1",
        "symlink / -> /OUT\nfile /canary 0644 0:0 \"overwritten\"",
        "symlink ./ -> /OUT\nfile /canary 0644 0:0 \"overwritten\"",
        "symlink /a -> b\nsymlink /b -> a\nfile /a/x 0644 0:0 \"a loop\"",
        "dir /d 0755 0:0\nsymlink /d -> /OUT\nfile /d/canary 0644 0:0 \"overwritten\"",
        "char /dev/mem 1:1 0666\nfile /dev/mem 0644 0:0 \"no device is written to\"",
        "block /sda 254:0 0666\nlink /sda2 -> /sda",
        "fifo /pipe 0644\nfile /pipe 0644 0:0 \"nobody waits for a reader\"",
    ] {
        let registry = Registry::start();
        let (ours, theirs) = (
            TestNode::trusting(&[registry.host()]),
            TestNode::trusting(&[registry.host()]),
        );
        let out = ours.out("");
        let lines = lines.replace("OUT", out.to_str().unwrap().trim_matches('/'));
        let canary = ours.out("canary");
        fs::write(&canary, "alive").unwrap();
        let before = fs::symlink_metadata(&canary).unwrap();

        registry.push(
            "hostile",
            Some("latest"),
            &image(vec![Layer::of(&lines, Compression::Gzip)], |_, _| {}),
        );
        let name = registry.tagged("hostile");
        let run = ours.run(&["--image", &name]);
        assert_eq!(fs::read_to_string(&canary).unwrap(), "alive", "{lines}: {run}");
        let after = fs::symlink_metadata(&canary).unwrap();
        assert_eq!(
            (before.mode(), before.uid(), before.nlink(), before.mtime_nsec()),
            (after.mode(), after.uid(), after.nlink(), after.mtime_nsec()),
            "{lines}: {run}"
        );
        assert!([0, 1, 5, 6].contains(&run.code), "{lines}: {run}");
        let wrong = inconsistencies(&ours.graph_root());
        assert!(wrong.is_empty(), "{lines}:\n{}\n{run}", wrong.join("\n"));

        let pulled = theirs.podman(&["pull", "--quiet", &name]);
        assert!(run.code == 0 || !pulled.is_ok(), "{lines}: {run}\n{pulled}");
        if pulled.is_ok() {
            let differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
            let differences: Vec<String> = differences
                .into_iter()
                .filter(|line| !line.contains(" tar-split "))
                .collect();
            assert!(differences.is_empty(), "{lines}\n{}", differences.join("\n"));
        }
    }
}

#[test]
fn a_thousand_tags_of_one_image_are_one_image() {
    needs!(root());
    let registry = Registry::start();
    let component = image(vec![ordinary(1)], |_, _| {});
    registry.push("component", None, &component);
    let pull_spec = registry.at("component", &component.digest());
    let names: Vec<String> = (0..1000).map(|n| format!("tag-{n}")).collect();
    let references = image_references(names.iter().map(|name| (name.as_str(), pull_spec.clone())));
    registry.push(
        RELEASE,
        Some("4"),
        &release_image(&ordinary(2), &references.to_string()),
    );
    let world = TestNode::trusting(&[registry.host()]);
    let run = world
        .run(&["--platform-image", &format!("{}/{RELEASE}:4", registry.host())])
        .exits(0);
    assert!(run.took < BOUNDED, "{run}");
    let asked = registry
        .log()
        .iter()
        .filter(|access| access.path.contains("/component/manifests/"))
        .count();
    assert_eq!(asked, 1, "the manifest was asked for {asked} times");
    assert!(inconsistencies(&world.graph_root()).is_empty());
}

#[test]
fn a_redirect_in_a_circle_ends() {
    needs!(root());
    let registry = Registry::start();
    registry.push("hostile", Some("latest"), &image(vec![ordinary(1)], |_, _| {}));
    registry.fault(Fault::on("/blobs/").redirect(&registry.host()));
    let world = TestNode::trusting(&[registry.host()]);
    let run = world
        .run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat())
        .exits(8);
    assert!(run.took < BOUNDED, "{run}");
    left_nothing(&world);
}
