//! Describes where and when something is measured.

use std::fs;
use std::process::Command;

use anyhow::Context as _;

use crate::figures::Machine;
use crate::test_node::{self, TestNode};

/// The day, in UTC.
pub(crate) fn today() -> String {
    jiff::Timestamp::now().strftime("%F").to_string()
}

pub(crate) fn machine() -> anyhow::Result<Machine> {
    let processors = fs::read_to_string("/proc/cpuinfo")?;
    let model = processors
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(Machine {
        processor: model.map_or("an unknown processor", |(_, name)| name).to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?
            .trim()
            .to_owned(),
    })
}

/// The name and version of each contender.
pub(crate) fn programs() -> anyhow::Result<Vec<String>> {
    let ours = Command::new(test_node::product()).arg("--version").output()?;
    let world = TestNode::trusting(&[]);
    let skopeo = world.skopeo(&["--version"]).ok();
    let skopeo = skopeo.split(' ').nth(2).context("skopeo states no version")?;
    Ok(vec![
        String::from_utf8(ours.stdout)?.trim().to_owned(),
        format!("podman {}", world.podman_version().trim()),
        format!("skopeo {}", skopeo.trim()),
    ])
}
