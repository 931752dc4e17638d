//! Tests what must not grow: memory with the size and number of layers, requests and time with what is present.

use std::io::Write as _;

use crate::image::layer::{program, tar_of};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// A quarter of what the Job in `manifests/` gives. A run without images has 20 MiB; one with two unpacking threads in all
/// their buffers, and with all downloads under way, 45 to 90, of which 20 are pages of a debug build's program.
const MEMORY: u64 = 128 << 20;
/// Images of a large release with its operators.
const MANY: usize = 200;

fn image(name: &str, layers: Vec<Layer>) -> Image {
    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {})
}

/// Pulls `images` into a new node by their digests.
fn run(images: &[Image]) -> (Registry, TestNode, Run) {
    let registry = Registry::start();
    for image in images {
        registry.push(&image.name, None, image);
    }
    let world = TestNode::trusting(&[registry.host()]);
    let names: Vec<String> = images
        .iter()
        .map(|image| registry.at(&image.name, &image.digest()))
        .collect();
    world.spec(&[("additionalImages", &names.join("\n"))]);
    let run = world.run(&[]).exits(0);
    (registry, world, run)
}

#[test]
fn what_is_there_takes_no_request() {
    needs!(root());
    let base = Layer::of("file /base 0644 0:0 random=2000", Compression::Gzip);
    let images: Vec<Image> = (0..MANY)
        .map(|n| {
            let own = Layer::of(&format!("file /own 0644 0:0 \"{n}\""), Compression::Gzip);
            image(&format!("many/{n}"), vec![base.clone(), own])
        })
        .collect();
    let (registry, world, first) = run(&images);
    assert!(first.memory < MEMORY, "{} bytes of memory: {first}", first.memory);
    registry.clear_log();
    let again = world.run(&[]).exits(0);
    assert!(registry.log().is_empty(), "{:#?}", registry.log());
    assert_eq!(again.total("imagesPresent"), MANY as u64, "{again}");
}

/// Every save of layers.json writes all of it, so that what a layer costs grows with the store. It must stay small
/// beside the layer's files.
#[test]
fn a_full_store_costs_little_more_than_an_empty_one() {
    needs!(root());
    let (images, files) = if long() { (200, 300) } else { (20, 30) };
    let registry = Registry::start();
    let world = TestNode::trusting(&[registry.host()]);
    for half in ["first", "second"] {
        let (mut names, mut base) = (Vec::new(), Vec::new());
        for number in 0..images {
            let layer = |depth: usize| {
                let line = |file| {
                    format!("file /{half}/{number}/{depth}/{file} 0644 0:0 random=200 seed={number}\n")
                };
                Layer::of(&(0..files).map(line).collect::<String>(), Compression::Gzip)
            };
            // Five new layers each, above those of the first image.
            let mut layers = base.clone();
            layers.extend((0..5).map(layer));
            let image = image(&format!("{half}/{number}"), layers.clone());
            registry.push(&image.name, None, &image);
            names.push(registry.at(&image.name, &image.digest()));
            if base.is_empty() {
                base = layers;
            }
        }
        world.spec(&[("additionalImages", &names.join("\n"))]);
        let run = world.run(&[]).exits(0);
        assert_eq!(run.total("layersPulled"), 5 * images, "{run}");
        let _ = writeln!(
            std::io::stderr(),
            "{half} {images} images, {} layers, {} files: {:?}, {} MB written, {} MB of memory",
            5 * images,
            5 * images * files,
            run.took,
            run.written / 1_000_000,
            run.memory >> 20
        );
    }
}

#[test]
fn memory_does_not_grow_with_a_layer() {
    needs!(root());
    // The same 16 MiB repeated: the window of zstd is 2 MiB at its usual level, that of gzip 32 KiB. Up to 1 GiB in long tests.
    let content = program(16 << 20, 1);
    let times = if long() { 64 } else { 8 };
    let lines = (0..times).map(|n| format!("file /{n} 0644 0:0 bytes=content\n"));
    let tar = tar_of(&lines.collect::<String>(), &[("content", &content)]);
    for compression in [Compression::Gzip, Compression::Zstd] {
        let layer = Layer::of_tar(&tar, compression);
        let (_, _, run) = run(&[image("large", vec![layer])]);
        assert!(run.memory < MEMORY, "{} bytes of memory: {run}", run.memory);
    }
}
