//! The crate oci-delta applies the standard artifact of `delta create`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::image::{Compression, Format, Image, Layer, layer, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::TestNode;

const STANDARD: &str = "application/vnd.io.github.containers.oci-delta.v1";

/// Builds `tests/peers/oci-delta`.
fn peer() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oci-delta-peer");
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/peers/oci-delta/Cargo.toml");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--locked", "--quiet", "--manifest-path", manifest])
        .env("CARGO_TARGET_DIR", &target)
        .status();
    assert!(
        built.expect("cargo can be started").success(),
        "building {manifest}"
    );
    target.join("debug/oci-delta-peer")
}

/// Numbered lines, of which `changed` differs.
fn lines(count: u32, changed: u32) -> Vec<u8> {
    let line = |number| match number {
        _ if number == changed => "another line\n".to_owned(),
        _ => format!("line {number} of {count}\n"),
    };
    (0..count).map(line).collect::<String>().into_bytes()
}

/// A layer of files.
fn layer_of(files: &[(&str, Vec<u8>)]) -> Layer {
    let line = |(path, _): &(&str, Vec<u8>)| format!("file /{path} 0644 0:0 bytes={path}\n");
    let text: String = files.iter().map(line).collect();
    let named: Vec<(&str, &[u8])> = files
        .iter()
        .map(|(path, content)| (*path, &content[..]))
        .collect();
    Layer::of_tar(&layer::tar_of(&text, &named), Compression::Gzip)
}

fn image(layers: &[&[(&str, Vec<u8>)]]) -> Image {
    let layers = layers.iter().map(|files| layer_of(files)).collect();
    Image::build("image", Format::Oci, "amd64", layers, |_, _| {})
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// One layer has a changed, a moved and an empty file, the other one is not new.
#[test]
fn the_crate_oci_delta_makes_the_same_layer_from_the_standard_artifact() {
    needs!(openssl_headers());
    let registry = Registry::start();
    let host = TestNode::trusting(&[registry.host()]);
    let base = [("base", lines(9_000, 0))];
    let old = [("changed", lines(20_000, 0)), ("moved", lines(700, 0))];
    let new = [
        ("changed", lines(20_000, 12_345)),
        ("new", lines(700, 0)),
        ("copied", lines(9_000, 0)),
        ("empty", Vec::new()),
    ];
    let images = [image(&[&base, &old]), image(&[&base, &new])];
    let references = [0, 1].map(|version: usize| {
        registry.push("app", None, &images[version]);
        registry.at("app", &images[version].digest())
    });
    let (layout, work) = (host.out("layout"), host.out("work"));
    let [layout_arg, work_arg] = [&layout, &work].map(|path| path.to_str().unwrap());
    let args = [
        "--image",
        &references[0],
        &references[1],
        "--output",
        layout_arg,
        "--work-dir",
        work_arg,
    ];
    let run = host.start("delta create", &args).wait().exits(0);

    let blob = |digest: &str| {
        layout
            .join("blobs/sha256")
            .join(digest.trim_start_matches("sha256:"))
    };
    let listed = read(&layout.join("index.json"));
    let indexes = listed["manifests"].as_array().unwrap();
    let artifacts = indexes.iter().flat_map(|index| {
        let index = read(&blob(index["digest"].as_str().unwrap()));
        index["manifests"].as_array().unwrap().clone()
    });
    let artifact = artifacts
        .into_iter()
        .find(|artifact| artifact["artifactType"] == STANDARD)
        .unwrap_or_else(|| panic!("no standard artifact: {run}"));
    let (tree, output) = (host.out("tree"), host.out("made"));
    for directory in [&tree, &output] {
        fs::create_dir(directory).unwrap();
    }
    for (path, content) in base.iter().chain(&old) {
        fs::write(tree.join(path), content).unwrap();
    }
    let applied = Command::new(peer())
        .arg(&layout)
        .arg(artifact["digest"].as_str().unwrap())
        .args([&tree, &output])
        .output()
        .unwrap();
    assert!(
        applied.status.success(),
        "{}",
        String::from_utf8_lossy(&applied.stderr)
    );
    let diff_id = &images[1].layers[1].diff_id;
    let made = diff_id.trim_start_matches("sha256:");
    assert_eq!(String::from_utf8_lossy(&applied.stdout), format!("{made}\n"));
    assert_eq!(&sha256(&fs::read(output.join(made)).unwrap()), diff_id);
}
