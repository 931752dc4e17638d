//! Compares the estimates of `plan` with what a run then does.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::image::layer::tar_of;
use crate::image::{Compression, Format, Image, Layer, node_architecture, sha256};
use crate::needs::{leave_out, long, needs, note};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, TestNode};

/// Of what is foretold of the disk, issue 6.
const TRUE_WITHIN: f64 = 0.05;

/// Small files of a layer, one after the other; 8 KiB on average, like those of a base image.
const SMALL: [usize; 8] = [0, 300, 900, 2_000, 4_500, 9_000, 16_000, 32_800];

/// A tar of about `bytes`: a quarter of it small files, the rest a program and what compresses to nothing or not at all,
/// so that no usual ratio foretells it.
fn tar(name: &str, bytes: usize, rest: &str) -> Vec<u8> {
    let (small, third) = (bytes / 4, bytes * 3 / 8);
    let mut lines = format!("dir /{name} 0755 0:0\nfile /{name}/program 0755 0:0 program={third}\n");
    lines.push_str(&format!("file /{name}/rest 0644 0:0 {rest}={third}\n"));
    let mut made = 0;
    for (number, size) in SMALL.iter().cycle().enumerate() {
        if made >= small {
            break;
        }
        lines.push_str(&format!(
            "file /{name}/{number} 0644 0:0 program={size} seed={number}\n"
        ));
        made += size;
    }
    tar_of(&lines, &[])
}

fn image(name: &str, layers: Vec<Layer>) -> Image {
    Image::build(name, Format::Oci, node_architecture(), layers, |_, _| {})
}

/// A layer whose blob contains the length of its tar, in each compression.
fn layer(tar: &[u8], compression: Compression) -> Layer {
    match compression {
        // As a whole: a stream does not know its length when it begins.
        Compression::Zstd => {
            let blob = zstd::bulk::compress(tar, 3).unwrap();
            Layer::of_blob(blob.into(), sha256(tar), compression)
        }
        other => Layer::of_tar(tar, other),
    }
}

/// A node that wants `images` of `registry`.
fn node(registry: &Registry, images: &[Image]) -> TestNode {
    let world = TestNode::trusting(&[registry.host()]);
    want(&world, registry, images);
    world
}

fn want(world: &TestNode, registry: &Registry, images: &[Image]) {
    for image in images {
        registry.push(&image.name, None, image);
    }
    let names: Vec<String> = images
        .iter()
        .map(|image| registry.at(&image.name, &image.digest()))
        .collect();
    world.spec(&[("additionalImages", &names.join("\n"))]);
}

fn planned(run: &Run, total: &str) -> u64 {
    let document: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    document["totals"][total].as_u64().unwrap()
}

fn du(path: &Path) -> u64 {
    let du = Command::new("du")
        .args(["-s", "--block-size=1"])
        .arg(path)
        .output();
    let text = String::from_utf8(du.unwrap().stdout).unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// Requests for the few bytes of a blob with the length of its tar.
fn lengths_asked(registry: &Registry) -> usize {
    let asked = registry.layer_requests();
    asked.iter().filter(|access| access.sent() < 100).count()
}

#[test]
fn a_run_matches_its_plan() {
    needs!(root());
    let base = layer(&tar("base", 9_000_000, "zeros"), Compression::Gzip);
    let images: Vec<Image> = [
        ("gzip", "random", Compression::Gzip),
        ("zstd", "zeros", Compression::Zstd),
        ("none", "random", Compression::None),
    ]
    .map(|(name, rest, compression)| {
        let own = layer(&tar(name, 6_000_000, rest), compression);
        let tiny = layer(&tar(&format!("{name}-etc"), 3_000, rest), compression);
        image(name, vec![base.clone(), tiny, own])
    })
    .into();
    let registry = Registry::start();
    let world = node(&registry, &images);

    let plan = world.plan(&["-o", "json"]).exits(0);
    let asked = registry.layer_requests();
    let (blobs, foretold) = (planned(&plan, "bytesToFetch"), planned(&plan, "unpackedEstimate"));
    // The large ones that are compressed; the base once.
    assert_eq!(asked.len(), 3, "{asked:#?}");
    assert!(
        asked.iter().map(|access| access.sent()).sum::<u64>() < 100,
        "{asked:#?}"
    );
    let text = world.plan(&[]).exits(0);
    assert!(text.stdout.contains("unpacked:  about "), "{text}");

    registry.clear_log();
    let run = world.run(&[]).exits(0);
    assert_eq!(run.total("bytesFetched"), blobs, "{run}");
    // There is enough space, so no length is requested.
    assert_eq!(lengths_asked(&registry), 0, "{:#?}", registry.layer_requests());
    let took = du(&world.graph_root());
    let error = foretold as f64 / took as f64 - 1.0;
    note(&format!(
        "{foretold} bytes foretold, {took} taken up: {:+.1} %; {} of it by a usual ratio",
        error * 100.0,
        planned(&plan, "unpackedGuessed")
    ));
    assert!(
        error.abs() < TRUE_WITHIN,
        "{foretold} foretold, {took} taken up: {plan}"
    );
}

/// Blobs of 20 layers, and the estimate without known lengths.
struct Guess {
    registry: Registry,
    world: TestNode,
    blobs: u64,
    guess: u64,
}

impl Guess {
    fn new() -> Self {
        let layers = (0..20).map(|seed| {
            Layer::of(
                &format!("file /{seed} random=100000 seed={seed}"),
                Compression::Gzip,
            )
        });
        let images = [image("many", layers.collect())];
        let registry = Registry::start();
        let world = node(&registry, &images);
        let blobs = images[0].layers.iter().map(|layer| layer.size).sum();
        // As in `plan/estimate.rs`.
        let guess = images[0].layers.iter().map(|layer| {
            let tar = layer.size * 57 / 20;
            tar * 104 / 100 + (24 << 10)
        });
        Self {
            blobs,
            guess: guess.sum(),
            registry,
            world,
        }
    }
}

#[test]
fn a_registry_that_gives_no_parts_is_asked_once_and_nothing_fails() {
    needs!(root());
    let Guess {
        registry,
        world,
        blobs,
        guess,
    } = Guess::new();
    for (name, fault, at_most) in [
        ("all of it", Fault::on("/blobs/").ignore_range(), 1),
        ("416", Fault::on("/blobs/").refuse_range(), 1),
        ("another range", Fault::on("/blobs/").shift_range(1), 1),
        ("an error", Fault::on("/blobs/").status(500), 20),
        (
            "429",
            Fault::on("/blobs/").status(429).header("Retry-After", "9"),
            20,
        ),
        ("a cut", Fault::on("/blobs/").cut(2), 20),
    ] {
        registry.end_faults();
        // The config comes first, and as it should.
        registry.fault(Fault::on("/blobs/").times(1));
        registry.fault(fault);
        registry.clear_log();
        let plan = world.plan(&["-o", "json"]).exits(0);
        let asked = registry.layer_requests();
        assert!(
            (1..=at_most).contains(&asked.len()),
            "{name}: {} requests",
            asked.len()
        );
        assert_eq!(planned(&plan, "bytesToFetch"), blobs, "{name}");
        assert_eq!(planned(&plan, "unpackedEstimate"), guess, "{name}");
        assert_eq!(planned(&plan, "unpackedGuessed"), guess, "{name}");
        assert!(!plan.stderr.contains("WARN"), "{name}: {plan}");
    }
    registry.end_faults();
    let plan = world.plan(&["-o", "json"]).exits(0);
    assert!(planned(&plan, "unpackedEstimate") < guess / 2, "{plan}");
    assert_eq!(planned(&plan, "unpackedGuessed"), 0, "{plan}");
}

#[test]
fn a_length_that_cannot_be_is_not_believed() {
    needs!(root());
    let content = Layer::of("file /a random=200000 seed=1", Compression::Gzip);
    let lie = |tail: [u8; 4]| {
        let mut blob = content.blob.to_vec();
        let at = blob.len() - 4;
        blob[at..].copy_from_slice(&tail);
        Layer::of_blob(blob.into(), content.diff_id.clone(), Compression::Gzip)
    };
    // Nothing, a file of several, and more than any layer may become: 4 GiB.
    for tail in [[0; 4], [0, 0, 1, 0], [0xff; 4]] {
        let images = [image("liar", vec![lie(tail)])];
        let registry = Registry::start();
        let world = node(&registry, &images);
        let plan = world.plan(&["-o", "json"]).exits(0);
        assert_eq!(
            planned(&plan, "unpackedGuessed"),
            planned(&plan, "unpackedEstimate"),
            "{tail:?}: {plan}"
        );
        assert!(planned(&plan, "unpackedEstimate") < 1_000_000, "{tail:?}: {plan}");
    }
}

#[test]
fn the_length_of_a_tar_is_read_from_a_blob_in_the_spool() {
    needs!(root());
    let blob = Layer::of("file /a random=300000 seed=1", Compression::Gzip);
    let images = [image("spooled", vec![blob.clone()])];
    let registry = Registry::start();
    let world = node(&registry, &images);
    let spool = world.host().join("var/lib/containers/spoke-precache");
    fs::create_dir_all(&spool).unwrap();
    fs::write(spool.join(&blob.digest), &blob.blob).unwrap();
    let plan = world.plan(&["-o", "json"]).exits(0);
    assert!(
        registry.layer_requests().is_empty(),
        "{:#?}",
        registry.layer_requests()
    );
    assert_eq!(planned(&plan, "unpackedGuessed"), 0, "{plan}");
    assert_eq!(planned(&plan, "bytesToFetch"), 0, "{plan}");
}

/// By the usual ratio it would become 57 MB, and with its blob 77; of the 72 MB of the disk it takes 41.
#[test]
fn what_only_seems_not_to_fit_is_pulled() {
    needs!(root());
    let image = image(
        "dense",
        vec![Layer::of("file /a random=20000000 seed=1", Compression::Gzip)],
    );
    let registry = Registry::start();
    let world = TestNode::trusting(&[registry.host()]);
    want(&world, &registry, std::slice::from_ref(&image));
    let (file, at) = (world.out("disk"), world.host().join("var/lib/containers"));
    fs::File::create(&file).unwrap().set_len(80 << 20).unwrap();
    for (program, args, paths) in [
        ("mkfs.ext4", &["-q", "-F", "-m", "0"][..], &[&file][..]),
        ("mount", &["-o", "loop"], &[&file, &at]),
    ] {
        let status = Command::new(program).args(args).args(paths).status();
        assert!(status.unwrap().success(), "{program}");
    }
    let disk = rustix::fs::statvfs(&at).unwrap();
    let free = disk.f_bavail * disk.f_frsize;
    assert!((45_000_000..77_000_000).contains(&free), "{free} bytes are free");
    let run = world.run(&[]).exits(0);
    assert_eq!(lengths_asked(&registry), 1, "{run}");
    // The plan that is made again then is the same one.
    assert_eq!(run.total("bytesPlanned"), image.layers[0].size, "{run}");
    assert_eq!(run.total("bytesFetched"), image.layers[0].size, "{run}");
    assert_eq!(run.stderr.matches("to download").count(), 1, "{run}");
}

#[test]
fn a_run_reports_the_time_left_and_that_it_misses_the_deadline() {
    needs!(root());
    if !long() {
        return leave_out("the rate is known after 10 s; SPOKE_LONG=1 asks for it");
    }
    let own = Layer::of("file /a random=20000000 seed=1", Compression::Gzip);
    let images = [image("slow", vec![own.clone()])];
    let registry = Registry::start();
    registry.fault(Fault::on(&own.digest).slow(500_000));
    let world = node(&registry, &images);
    let run = world.run(&["--deadline", "15s"]).exits(124);
    run.says(" MiB left to download: about ")
        .says("at this rate the run misses its deadline");
}
