//! Creates the deltas of a pair with the program, and reads what it pushed from the registry's directory.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::Context as _;
use serde_json::Value;
use spoke_precache::delta::LayerDelta;
use spoke_precache::delta::artifact::{DELTA_INDEX, DeltaArtifact, DeltaIndex};

use crate::image::release::RELEASE;
use crate::pairs::Content;
use crate::rig;
use crate::site::{REGISTRY, Site};
use crate::test_node::{TestNode, product};

/// The costs of one `delta create`.
pub(crate) struct Creation {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
    /// MiB
    pub(crate) memory: f64,
    report: Value,
}

/// A layer's delta, and the old images that it reads.
pub(crate) struct Delta {
    pub(crate) layer: LayerDelta,
    pub(crate) file: PathBuf,
    /// Digest of the manifest of the new image that it belongs to; others may have the layer too.
    pub(crate) image: String,
    /// Hexadecimal digests of their configs.
    pub(crate) sources: Vec<String>,
}

/// `delta create --push` over a cable, to a registry that has the directory `registry`.
pub(crate) fn create(content: &Content, registry: &Path, flags: &[&str]) -> anyhow::Result<Creation> {
    let site = Site::new(registry, None)?;
    let hub = TestNode::trusting(&[REGISTRY.to_owned()]);
    let (work, report) = (tempfile::tempdir()?, hub.out("creation.json"));
    let mut command = Command::new(product());
    command
        .args(["delta", "create", "--from", &content.old.by_digest()])
        .args(["--to", &content.new.by_digest(), "--push", &content.repository()])
        .args([
            "--progress",
            "never",
            "--log-level",
            "warn",
            "--output-format",
            "json",
        ])
        .args(flags)
        .arg("--host-root")
        .arg(hub.host())
        .arg("--work-dir")
        .arg(work.path())
        .stdout(File::create(&report)?)
        .process_group(0);
    let begin = Instant::now();
    let child = site
        .client()
        .within(|| command.spawn())
        .context("starting the program")?;
    let (memory, cpu) = rig::watch(child).context("`delta create`")?;
    Ok(Creation {
        wall: begin.elapsed().as_secs_f64(),
        cpu,
        memory,
        report: serde_json::from_reader(File::open(&report)?)?,
    })
}

impl Creation {
    /// Seconds that an image took, which the digest of its manifest names.
    pub(crate) fn seconds(&self, image: &str) -> Option<f64> {
        let images = self.report["indexes"][0]["images"].as_array()?;
        let is_it = |it: &&Value| {
            it["reference"]
                .as_str()
                .is_some_and(|reference| reference.ends_with(image))
        };
        images.iter().find(is_it)?["seconds"].as_f64()
    }
}

/// All deltas that a registry's directory has for the pair.
pub(crate) fn deltas(content: &Content, registry: &Path) -> anyhow::Result<Vec<Delta>> {
    let subject = content.new.release.digest().replace(':', "-");
    let tags = format!("docker/registry/v2/repositories/{RELEASE}/_manifests/tags");
    let referrers = registry.join(tags).join(subject).join("current/link");
    let referrers = fs::read_to_string(referrers).context("no artifact refers to the new release")?;
    let referrers: Value = serde_json::from_slice(&fs::read(blob(registry, &referrers))?)?;
    let descriptors = referrers["manifests"]
        .as_array()
        .context("no list of referrers")?;
    let index = descriptors.iter().find(|it| it["artifactType"] == DELTA_INDEX);
    let index = index.and_then(|index| index["digest"].as_str());
    let index = fs::read(blob(registry, index.context("no index of deltas")?))?;
    let mut deltas = Vec::new();
    for artifact in DeltaIndex::parse(&index)?.artifacts {
        let artifact = fs::read(blob(registry, &artifact.digest.to_string()))?;
        let artifact = DeltaArtifact::parse(&artifact)?;
        let sources: Vec<String> = artifact
            .sources
            .iter()
            .map(|source| source.config.hex())
            .collect();
        deltas.extend(artifact.layers.into_iter().map(|layer| Delta {
            file: blob(registry, &layer.blob.to_string()),
            layer,
            image: artifact.target.to_string(),
            sources: sources.clone(),
        }));
    }
    Ok(deltas)
}

/// The file of a blob with this digest.
fn blob(registry: &Path, digest: &str) -> PathBuf {
    let hex = digest.trim_start_matches("sha256:");
    registry
        .join("docker/registry/v2/blobs/sha256")
        .join(&hex[..2])
        .join(hex)
        .join("data")
}
