//! Measures the duration of runs over a link: a node with the old release pulls the new one, with deltas and without.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::image::release::Release;
use crate::link::Quality;
use crate::pairs::Content;
use crate::rig;
use crate::site::{REGISTRY, Site};
use crate::test_node::{TestNode, product};

/// The costs of one run.
pub(crate) struct Run {
    pub(crate) wall: f64,
    pub(crate) cpu: f64,
    /// MiB
    pub(crate) memory: f64,
    /// Bytes of the network device.
    pub(crate) received: u64,
}

/// Pulls the old release over a cable, then measures a run for the new one over the link. The registry has the directory
/// `registry`.
pub(crate) fn run(
    content: &Content,
    registry: &Path,
    quality: Quality,
    flags: &[&str],
) -> anyhow::Result<Run> {
    let disk = rig::Disk::xfs()?;
    let node = TestNode::below(disk.path(), &[REGISTRY.to_owned()]);
    pull(&node, &Site::new(registry, None)?, &content.old, &["--no-deltas"]).context("the old release")?;
    let site = Site::new(registry, Some(quality))?;
    let run = pull(&node, &site, &content.new, flags).context("the new release")?;
    let stored = node
        .podman(&["images", "--quiet", "--no-trunc"])
        .ok()
        .lines()
        .count();
    let both = content.old.components.len() + content.new.components.len() + 2;
    ensure!(stored == both, "{stored} of {both} images are in the store");
    Ok(run)
}

fn pull(node: &TestNode, site: &Site, release: &Release, flags: &[&str]) -> anyhow::Result<Run> {
    let mut command = Command::new(product());
    command
        .arg("run")
        .arg("--host-root")
        .arg(node.host())
        .args(["--platform-image", &release.by_digest()])
        .args(["--progress", "never", "--log-level", "error"])
        .args(["--image-gc-high-threshold", "100"])
        .args(flags)
        .stdout(Stdio::null())
        .process_group(0);
    rustix::fs::sync();
    let (received, begin) = (site.received()?, Instant::now());
    let child = site
        .client()
        .within(|| command.spawn())
        .context("starting the program")?;
    let (memory, cpu) = rig::watch(child)?;
    Ok(Run {
        wall: begin.elapsed().as_secs_f64(),
        cpu,
        memory,
        received: site.received()? - received,
    })
}
