//! A registry with a release and operators, and a machine that exports them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::image::operator::{OPERATORS, bundle, channel, index, operand, package, pull_spec};
use crate::image::release::{EXCLUDE, Release};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// The images of the operator.
const OPERANDS: [&str; 2] = ["ptp-bundle", "ptp-daemon"];

/// Bytes of each layer of the release.
const LAYER: usize = 50_000;

/// What an export needs.
pub(super) struct Site {
    pub(super) registry: Registry,
    pub(super) machine: TestNode,
    pub(super) release: Release,
}

impl Site {
    /// A release of which one image is excluded, an operator, and an additional image by tag.
    pub(super) fn new() -> Self {
        let registry = Registry::start();
        let release = Release::build(&registry.host(), LAYER);
        registry.push_release(&release);
        for name in OPERANDS {
            registry.push(OPERATORS, None, &operand(name));
        }
        let spec = |name: &str| pull_spec(&registry.host(), name);
        let catalog = index(&[
            package("ptp", "stable"),
            channel("ptp", "stable", &["ptp.v1"]),
            bundle("ptp", "ptp.v1", &spec("ptp-bundle"), &[spec("ptp-daemon")]),
        ]);
        registry.push("operators/index", None, &catalog);
        let layers = vec![Layer::of(
            "file /extra 0644 0:0 random=20000 seed=5",
            Compression::Gzip,
        )];
        let extra = Image::build("extra", Format::Oci, node_architecture(), layers, |_, _| {});
        registry.push("tools/extra", Some("latest"), &extra);
        let machine = TestNode::trusting(&[registry.host()]);
        machine.spec(&[
            ("platform.image", &release.by_digest()),
            (
                "operators.indexes",
                &registry.at("operators/index", &catalog.digest()),
            ),
            ("operators.packagesAndChannels", "ptp:stable"),
            ("additionalImages", &registry.tagged("tools/extra")),
            ("excludePrecachePatterns", EXCLUDE),
        ]);
        Self {
            registry,
            machine,
            release,
        }
    }

    pub(super) fn output(&self, name: &str) -> PathBuf {
        self.machine.out(name)
    }

    /// The arguments of an export to `output`, whose work directory is on the same file system.
    pub(super) fn args(&self, output: &Path) -> Vec<String> {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let work = self.machine.out("work");
        let words = ["--work-dir", path(&work), "--output", path(output), "--platform"];
        let mut words: Vec<String> = words.iter().map(ToString::to_string).collect();
        words.push(format!("linux/{architecture}"));
        words
    }

    pub(super) fn export(&self, output: &Path, further: &[&str]) -> Run {
        let args = self.args(output);
        let args: Vec<&str> = args
            .iter()
            .map(String::as_str)
            .chain(further.iter().copied())
            .collect();
        self.machine.start("export", &args).wait()
    }
}

pub(super) fn path(path: &Path) -> &str {
    path.to_str().expect("paths of tests are UTF-8")
}

/// A document of an export.
pub(super) fn json(path: &Path) -> Value {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).expect("JSON")
}

/// The references of an export's images, and the digest of each.
pub(super) fn images(output: &Path) -> BTreeMap<String, String> {
    let document = json(&output.join("spoke-precache.json"));
    let images = document["images"].as_array().expect("images").iter();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    images
        .map(|image| (text(&image["reference"]), text(&image["digest"])))
        .collect()
}

/// Every file below a directory, by its path in it.
pub(super) fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut found, mut pending) = (BTreeMap::new(), vec![directory.to_owned()]);
    while let Some(next) = pending.pop() {
        for entry in fs::read_dir(&next).expect("a directory") {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => pending.push(path),
                false => {
                    let content = fs::read(&path).expect("a file");
                    let inside = path.strip_prefix(directory).expect("it is below").to_owned();
                    found.insert(inside, content);
                }
            }
        }
    }
    found
}

/// Digests of the blobs in a directory, each of which has to be whole.
pub(super) fn whole_blobs(output: &Path) -> BTreeSet<String> {
    let directory = output.join("blobs/sha256");
    let Ok(entries) = fs::read_dir(directory) else {
        return BTreeSet::new();
    };
    let files = entries.map(|entry| entry.expect("an entry").path());
    files
        .filter(|path| path.extension().is_none())
        .map(|path| {
            let digest = crate::image::sha256(&fs::read(&path).expect("a blob"));
            let name = path.file_name().expect("a name").to_string_lossy();
            assert_eq!(digest, format!("sha256:{name}"), "a blob is complete or absent");
            digest
        })
        .collect()
}
