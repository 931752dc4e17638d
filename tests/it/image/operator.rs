//! Makes index images with small catalogs, and the images that these name.

use serde_json::{Value, json};

use super::{Compression, Format, Image, Layer, layer, node_architecture};

/// Path of all operators' images inside their registry.
pub(crate) const OPERATORS: &str = "operators/images";

/// An image of its own for each name.
pub(crate) fn operand(name: &str) -> Image {
    let lines = format!("file /{name} 0644 0:0 random=20000 seed={}", seed(name));
    let layers = vec![Layer::of(&lines, Compression::Gzip)];
    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {})
}

fn seed(name: &str) -> u64 {
    name.bytes()
        .fold(7, |sum, byte| (sum * 31 + u64::from(byte)) % 1_000_003)
}

/// `registry/operators/images@sha256:…` of [`operand`].
pub(crate) fn pull_spec(registry: &str, name: &str) -> String {
    format!("{registry}/{OPERATORS}@{}", operand(name).digest())
}

/// An `olm.package`.
pub(crate) fn package(name: &str, default_channel: &str) -> Value {
    json!({"schema": "olm.package", "name": name, "defaultChannel": default_channel})
}

/// An `olm.channel`; entries are `name`, `name<replaces` or `name<replaces+skips`.
pub(crate) fn channel(package: &str, name: &str, entries: &[&str]) -> Value {
    let entry = |text: &&str| {
        let (name, rest) = text.split_once('<').unwrap_or((text, ""));
        let (replaces, skips) = rest.split_once('+').unwrap_or((rest, ""));
        let mut entry = json!({"name": name});
        if !replaces.is_empty() {
            entry["replaces"] = replaces.into();
        }
        if !skips.is_empty() {
            entry["skips"] = skips.split(',').collect();
        }
        entry
    };
    let entries: Vec<Value> = entries.iter().map(entry).collect();
    json!({"schema": "olm.channel", "package": package, "name": name, "entries": entries})
}

/// An `olm.bundle` whose image is `image`, and that runs `related`; no image if it is empty.
pub(crate) fn bundle(package: &str, name: &str, image: &str, related: &[String]) -> Value {
    let related: Vec<Value> = related
        .iter()
        .map(|image| json!({"name": "", "image": image}))
        .collect();
    json!({"schema": "olm.bundle", "package": package, "name": name, "image": image, "relatedImages": related})
}

/// An image that holds a file-based catalog.
pub(crate) fn index(documents: &[Value]) -> Image {
    let text: String = documents.iter().map(|document| format!("{document}\n")).collect();
    index_of(
        "/configs",
        "catalog.json",
        text.as_bytes(),
        "operators.operatorframework.io.index.configs.v1",
    )
}

/// An image that holds a catalog in an SQLite database.
pub(crate) fn database_index(database: &[u8]) -> Image {
    let mut image = index_of(
        "/database",
        "index.db",
        database,
        "operators.operatorframework.io.index.database.v1",
    );
    image.name = "database".to_owned();
    image
}

fn index_of(directory: &str, file: &str, bytes: &[u8], label: &str) -> Image {
    let lines = format!("dir {directory} 0755 0:0\nfile {directory}/{file} 0644 0:0 bytes=catalog");
    let tar = layer::tar_of(&lines, &[("catalog", bytes)]);
    let layers = vec![Layer::of_tar(&tar, Compression::Gzip)];
    let place = match file {
        "index.db" => format!("{directory}/{file}"),
        _ => directory.to_owned(),
    };
    Image::build(
        "index",
        Format::Docker,
        node_architecture(),
        layers,
        |config, _| {
            config["config"]["Labels"][label] = place.as_str().into();
        },
    )
}
