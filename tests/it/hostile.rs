//! A registry that lies and images made to harm: refused, bounded, and nothing outside of the store is touched.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;

use crate::compare::{census, compare};
use crate::image::release::{RELEASE, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, layer, node_architecture, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::world::World;

/// What `--give-up-after` is told where trouble is taken for transient.
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
fn left_nothing(world: &World) {
    let mut wrong = census(&world.graph_root());
    let images =
        fs::read_to_string(world.graph_root().join("overlay-images/images.json")).unwrap_or_default();
    if !["", "[]"].contains(&images.trim()) {
        wrong.push(format!("there is an image: {images}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn lies_of_a_manifest_or_config_are_seen() {
    needs!(root());
    let claim = |change: fn(&mut Layer)| {
        let mut layer = ordinary(1);
        change(&mut layer);
        layer
    };
    let none = |_: &mut Value, _: &mut Value| {};
    let cases = [
        (
            "a layer has another digest",
            image(vec![claim(|layer| layer.digest = sha256(b"another"))], none),
        ),
        (
            "a layer has another diffID",
            image(vec![claim(|layer| layer.diff_id = sha256(b"another"))], none),
        ),
    ];
    for (what, image) in cases {
        let registry = Registry::start();
        registry.push("hostile", Some("latest"), &image);
        let world = World::trusting(&[registry.host()]);
        let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
        assert_eq!(run.code, 6, "{what}: {run}");
        left_nothing(&world);
    }
}

/// The bytes are those that the digest names, so no mirror is to blame and none has better ones.
#[test]
fn an_image_that_is_bad_although_its_digests_match_is_unexpected_content() {
    needs!(root());
    let claim = |change: fn(&mut Layer)| {
        let mut layer = ordinary(1);
        change(&mut layer);
        layer
    };
    let none = |_: &mut Value, _: &mut Value| {};
    let bytes = layer::random(5000, 1);
    let no_gzip = Layer::of_blob(bytes.clone().into(), sha256(&bytes), Compression::Gzip);
    let no_tar = Layer::of_tar(&bytes, Compression::Gzip);
    let cases = [
        (
            "a layer is longer than the manifest says",
            image(vec![claim(|layer| layer.size -= 1)], none),
        ),
        (
            "a layer is shorter than the manifest says",
            image(vec![claim(|layer| layer.size += 1)], none),
        ),
        ("a layer is no gzip", image(vec![no_gzip], none)),
        ("a layer is no tar", image(vec![no_tar], none)),
    ];
    for (what, image) in cases {
        let registry = Registry::start();
        registry.push("hostile", Some("latest"), &image);
        let world = World::trusting(&[registry.host()]);
        let run = world.run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat());
        assert_eq!(run.code, 5, "{what}: {run}");
        left_nothing(&world);
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
        let world = World::trusting(&[registry.host()]);
        let run = world.run(&["--image", &registry.tagged("hostile")]);
        assert!([1, 5, 6].contains(&run.code), "{run}");
        left_nothing(&world);
    }
}

#[test]
fn other_bytes_than_the_digest_says_are_never_stored() {
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
        let world = World::trusting(&[registry.host()]);
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
    let world = World::trusting(&[registry.host()]);
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
        let world = World::trusting(&[registry.host()]);
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
        let world = World::trusting(&[registry.host()]);
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
    let world = World::trusting(&[registry.host()]);
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

/// Bytes that a run may have below the host root while it works on a bomb, in any test.
const BOMBED: u64 = 4 << 30;

/// Runs until the end, or until the disk is in danger.
fn defused(what: &str, registry: &Registry) {
    let world = World::trusting(&[registry.host()]);
    let mut run = world.start("run", &["--image", &registry.tagged("hostile")]);
    while !run.has_ended() {
        let written = bytes_below(&world.host());
        // `run` is killed by being dropped.
        assert!(written < BOMBED, "{what}: {written} bytes are written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let run = run.wait();
    assert!([1, 3, 5, 6].contains(&run.code), "{what}: {run}");
    assert!(run.took < BOUNDED, "{what}: {run}");
    left_nothing(&world);
}

/// 10 MB of gzip that inflate to 10 GB of zeros: as the rest of a tar, and as one file.
#[test]
fn a_gzip_bomb_is_stopped_before_it_fills_the_disk() {
    needs!(root());
    let zeros = crate::image::gzip(&vec![0; 64 << 20]);
    let file = layer::tar_of("file /zeros 0644 0:0 size=10737418240\neof 0", &[]);
    for (what, first) in [("after the end", &[0_u8; 1024][..]), ("in a file", &file)] {
        let first = crate::image::gzip(first);
        let whole = [&first[..], &zeros.repeat(160)].concat();
        // Nobody hashes 10 GB for this; the diffID is wrong, and it must not come to that.
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
    needs!(root());
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

/// Bytes that the files below `directory` take on the disk, as far as they can be read.
fn bytes_below(directory: &Path) -> u64 {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
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
            World::trusting(&[registry.host()]),
            World::trusting(&[registry.host()]),
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
        let wrong = census(&ours.graph_root());
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
    let world = World::trusting(&[registry.host()]);
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
    assert!(census(&world.graph_root()).is_empty());
}

#[test]
fn a_redirect_in_a_circle_ends() {
    needs!(root());
    let registry = Registry::start();
    registry.push("hostile", Some("latest"), &image(vec![ordinary(1)], |_, _| {}));
    registry.fault(Fault::on("/blobs/").redirect(&registry.host()));
    let world = World::trusting(&[registry.host()]);
    let run = world
        .run(&[&["--image", &registry.tagged("hostile")], &GIVE_UP[..]].concat())
        .exits(1);
    assert!(run.took < BOUNDED, "{run}");
    left_nothing(&world);
}
