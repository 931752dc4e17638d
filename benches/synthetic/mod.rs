//! Layers and releases that look like real ones to whoever unpacks them: many small files, a few large ones, and content
//! that compresses as programs do. The same sizes give the same bytes on every machine.

use crate::image::layer;
use crate::image::release::{Release, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, node_architecture};

/// Path of the components inside their registry, as in module `release`.
const COMPONENTS: &str = crate::image::release::COMPONENTS;

/// Small files, one after the other; 8 KiB on average, like those of a base image.
const SMALL: [usize; 8] = [0, 300, 900, 2_000, 4_500, 9_000, 16_000, 32_800];
/// The part of a layer's bytes that is in small files: a third.
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
    let layer = |name: &str, bytes, seed| Layer::of_tar(&tar(name, bytes, seed), Compression::Gzip);
    let base = layer("base", base, 1);
    let components = own.iter().zip(2..).map(|((name, bytes), seed)| {
        let layers = vec![base.clone(), layer(name, *bytes, seed)];
        let image = Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {});
        (*name, image)
    });
    let components: Vec<(&'static str, Image)> = components.collect();
    let pull_specs = components
        .iter()
        .map(|(name, image)| (*name, format!("{registry}/{COMPONENTS}@{}", image.digest())));
    let references = image_references(pull_specs).to_string();
    Release {
        release: release_image(&base, &references),
        components,
        registry: registry.to_owned(),
    }
}

/// Bytes of all different layers of a release, as they travel.
pub(crate) fn unique_bytes(release: &Release) -> u64 {
    let images = release.components.iter().map(|(_, image)| image);
    let layers = images.chain([&release.release]).flat_map(|image| &image.layers);
    let blobs: std::collections::HashMap<&str, u64> =
        layers.map(|layer| (layer.digest.as_str(), layer.size)).collect();
    blobs.values().sum()
}
