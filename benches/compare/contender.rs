//! Pulls the images with each tool in turn, and measures what that costs.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use crate::figures::Cost;
use crate::profile::Content;
use crate::site::{REGISTRY, Site};
use crate::test_node::{self, TestNode};
use crate::{rig, stock};

/// Seconds after which a contender is stopped.
const PATIENCE: &str = "3600";

/// A tool that pulls images and checks that they are present.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// A shell script that pulls the images `"$@"`, of which the first is the release image. `$agent` is this program,
    /// `$node` the root of the host, `$agent_args` more flags.
    pull: &'static str,
    /// A shell script that inspects each of them.
    look: &'static str,
}

const AGENT: &str = r#"exec "$agent" run --host-root "$node" --platform-image "$1" --log-level warn --progress never --image-gc-high-threshold 100 $agent_args"#;
const EXISTS: &str = r#"for image; do podman image exists "$image" || exit 1; done"#;

pub(crate) const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "spoke-precache",
        pull: AGENT,
        look: AGENT,
    },
    Contender {
        name: "podman pull, one by one",
        pull: r#"for image; do podman pull --quiet "$image" || exit 1; done"#,
        look: EXISTS,
    },
    Contender {
        name: "podman pull, 10 at a time",
        pull: r#"while [ $# -gt 0 ]; do
             pulls=
             for n in 1 2 3 4 5 6 7 8 9 10; do
               [ $# -gt 0 ] || break
               podman pull --quiet "$1" & pulls="$pulls $!"
               shift
             done
             for pull in $pulls; do wait "$pull" || exit 1; done
           done"#,
        look: EXISTS,
    },
    Contender {
        name: "skopeo copy, one by one",
        pull: r#"for image; do
             skopeo --insecure-policy copy --quiet "docker://$image" "containers-storage:$image" || exit 1
           done"#,
        look: r#"for image; do skopeo --insecure-policy inspect --raw "containers-storage:$image" || exit 1; done"#,
    },
];

pub(crate) fn measure(
    contender: &Contender,
    agent_args: &str,
    site: &Site,
    content: &Content,
) -> anyhow::Result<Cost> {
    let disk = rig::Disk::xfs()?;
    let world = TestNode::below(disk.path(), &[REGISTRY.to_owned()]);
    // The chroot with the tools of another Debian must contain this program too.
    let agent = world.out("spoke-precache");
    fs::copy(test_node::product(), &agent)?;
    let run = |script: &str| {
        let mut words = vec!["sh", "-c", script, "sh"];
        words.extend(content.images.iter().map(String::as_str));
        let mut command = world.tool_command_within(PATIENCE, &stock::top(), "pull", &words);
        command
            .env("agent", &agent)
            .env("agent_args", agent_args)
            .env("node", world.host())
            .stdout(Stdio::null())
            .process_group(0);
        let begin = Instant::now();
        let child = site
            .client()
            .within(|| command.spawn())
            .context("starting a shell")?;
        let (memory, cpu) = rig::watch(child)?;
        anyhow::Ok((begin, begin.elapsed().as_secs_f64(), cpu, memory))
    };
    rustix::fs::sync();
    let (received, written) = (site.received()?, disk.written()?);
    let (begin, wall, cpu, memory) = run(contender.pull)?;
    rustix::fs::syncfs(File::open(disk.path())?)?;
    let on_disk = begin.elapsed().as_secs_f64();
    let (received, written) = (site.received()? - received, disk.written()? - written);

    let stored = world
        .podman(&["images", "--quiet", "--no-trunc"])
        .ok()
        .lines()
        .count();
    ensure!(
        stored == content.images.len(),
        "{stored} of {} images are in the store",
        content.images.len()
    );
    let (_, again, ..) = run(contender.look)?;
    let mb = |bytes| bytes as f64 / 1e6;
    Ok(Cost {
        wall,
        on_disk,
        cpu,
        memory: Some(memory),
        received: Some(mb(received)),
        written: Some(mb(written)),
        again: Some(again),
    })
}
