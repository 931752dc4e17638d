//! Makes synthetic layers and releases that unpack like real ones: many small files, a few large ones, and content that
//! compresses like programs. The same sizes give the same bytes on every machine.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::image::layer;
use crate::image::release::{Release, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, node_architecture};

/// Path of the components inside their registry, as in module `release`.
const COMPONENTS: &str = crate::image::release::COMPONENTS;

/// Small files, one after the other; 8 KiB on average, like those of a base image.
const SMALL: [usize; 8] = [0, 300, 900, 2_000, 4_500, 9_000, 16_000, 32_800];
/// A third of a layer's bytes is in small files.
const SMALL_PART: usize = 3;
/// A binary.
const LARGE: usize = 4 << 20;
/// Small files in one directory.
const FILES_IN_DIRECTORY: usize = 40;

/// The tar of a layer with about `bytes` of content. `name` makes its paths differ from those of other layers.
pub(crate) fn tar(name: &str, bytes: usize, seed: u64) -> Vec<u8> {
    let mut lines = format!("dir /{name} 0755 0:0\n");
    let mut made = 0;
    for (number, size) in SMALL.iter().cycle().enumerate() {
        if made >= bytes / SMALL_PART {
            break;
        }
        let directory = number / FILES_IN_DIRECTORY;
        if number % FILES_IN_DIRECTORY == 0 {
            lines.push_str(&format!("dir /{name}/{directory} 0755 0:0\n"));
        }
        let seed = seed * 1_000_000 + number as u64;
        lines.push_str(&format!(
            "file /{name}/{directory}/{number} 0644 0:0 program={size} seed={seed}\n"
        ));
        made += size;
    }
    for number in 0.. {
        if made >= bytes {
            break;
        }
        let size = LARGE.min(bytes - made);
        let seed = seed * 1_000_000 + 500_000 + number;
        lines.push_str(&format!(
            "file /{name}/program-{number} 0755 0:0 program={size} seed={seed}\n"
        ));
        made += size;
    }
    layer::tar_of(&lines, &[])
}

/// A release for the registry at `registry`: a component for each `(name, bytes)` of `own`, with a layer of that many
/// bytes on top of a base layer of `base` bytes, which the release image has too.
pub(crate) fn release(registry: &str, base: usize, own: &[(&'static str, usize)]) -> Release {
    shaped(registry, &[base], own, 0)
}

/// The same with several bases, taken in turn, and between base and own layer one of `tiny` bytes, if that is not 0.
pub(crate) fn shaped(registry: &str, bases: &[usize], own: &[(&'static str, usize)], tiny: usize) -> Release {
    let layer = |name: &str, bytes, seed| Layer::of_tar(&tar(name, bytes, seed), Compression::Gzip);
    let bases: Vec<Layer> = bases
        .iter()
        .zip(1..)
        .map(|(bytes, seed)| layer("base", *bytes, seed))
        .collect();
    let component = |number: usize| {
        let (name, bytes) = own[number];
        let seed = 100 + 2 * number as u64;
        let mut layers = vec![bases[number % bases.len()].clone()];
        if tiny > 0 {
            layers.push(layer("etc", tiny, seed));
        }
        layers.push(layer(name, bytes, seed + 1));
        let image = Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {});
        (name, image)
    };
    let components: Vec<(&'static str, Image)> = in_parallel(own.len(), component);
    let pull_specs = components
        .iter()
        .map(|(name, image)| (*name, format!("{registry}/{COMPONENTS}@{}", image.digest())));
    let references = image_references(pull_specs).to_string();
    Release {
        release: release_image(&bases[0], &references),
        components,
        registry: registry.to_owned(),
    }
}

/// `make(0)`, `make(1)`, … `make(count - 1)`, on all cores, because compression is slow.
pub(crate) fn in_parallel<T: Send>(count: usize, make: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            let value = make(number);
            made.lock().expect("no panic").push((number, value));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, NonZero::get) {
            scope.spawn(work);
        }
    });
    let mut made = made.into_inner().expect("no panic");
    made.sort_by_key(|(number, _)| *number);
    made.into_iter().map(|(_, value)| value).collect()
}

/// The compressed bytes of all distinct layers of a release.
pub(crate) fn unique_bytes(release: &Release) -> u64 {
    let images = release.components.iter().map(|(_, image)| image);
    let layers = images.chain([&release.release]).flat_map(|image| &image.layers);
    let blobs: std::collections::HashMap<&str, u64> =
        layers.map(|layer| (layer.digest.as_str(), layer.size)).collect();
    blobs.values().sum()
}
