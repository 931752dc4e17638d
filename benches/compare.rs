//! `cargo bench --bench compare -- --rounds 5`: this program beside the tools that people use today.
//!
//! A docker-registry on loopback holds a synthetic release. Each contender in turn brings the same images into an empty
//! store on a freshly made XFS, as a node has it, for several rounds; the table has medians with the least and the most.
//!
//! Needs root, for loop mounts and stores, and podman, skopeo, docker-registry and mkfs.xfs (`tests/run` installs them).
//! The image of the file system lies below `TMPDIR` and takes some GB. Figures of a machine that does something else at
//! the same time are worth little.
//!
//! What is counted: `wall` until the contender ends, `on disk` until a sync after that has ended too, `CPU` user and
//! system time of all its processes (but not the registry's), `memory` the largest sum of their resident sets, looked at
//! every [`rig::GLANCE`].
#![allow(dead_code, clippy::print_stdout)]

#[path = "../tests/it/image/mod.rs"]
mod image;
#[path = "../tests/it/registry/mod.rs"]
mod registry;
mod rig;
#[path = "../tests/it/stock/mod.rs"]
mod stock;
mod synthetic;
#[path = "../tests/it/world.rs"]
mod world;

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use stock::docker_registry::DockerRegistry;
use world::World;

/// Bytes in the files of the layer that all images share.
const BASE: usize = 40 << 20;
/// The images, and the bytes in the files of the layer that each has of its own.
const OWN: [(&str, usize); 12] = [
    ("cli", 40 << 20),
    ("cluster-version-operator", 6 << 20),
    ("console", 20 << 20),
    ("coredns", 10 << 20),
    ("etcd", 32 << 20),
    ("haproxy-router", 8 << 20),
    ("hyperkube", 40 << 20),
    ("kube-proxy", 12 << 20),
    ("machine-config-operator", 24 << 20),
    ("oauth-server", 4 << 20),
    ("ovn-kubernetes", 28 << 20),
    ("pod", 2 << 20),
];

/// A name, and a shell script that brings in the images `"$@"`, of which the first is the release image. `$agent` is this
/// program, `$node` the root of the host.
const CONTENDERS: [(&str, &str); 4] = [
    (
        "spoke-precache",
        r#"exec "$agent" run --host-root "$node" --platform-image "$1" --log-level warn --progress never"#,
    ),
    (
        "podman pull, one by one",
        r#"for image; do podman pull --quiet "$image" || exit 1; done"#,
    ),
    (
        "podman pull, 10 at a time",
        r#"while [ $# -gt 0 ]; do
             pulls=
             for n in 1 2 3 4 5 6 7 8 9 10; do
               [ $# -gt 0 ] || break
               podman pull --quiet "$1" & pulls="$pulls $!"
               shift
             done
             for pull in $pulls; do wait "$pull" || exit 1; done
           done"#,
    ),
    (
        "skopeo copy, one by one",
        r#"for image; do
             skopeo --insecure-policy copy --quiet "docker://$image" "containers-storage:$image" || exit 1
           done"#,
    ),
];

/// What one contender took in one round: seconds until it ended and until all was on disk, seconds of CPU, MiB.
struct Cost([f64; 4]);

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let rounds = words.iter().position(|word| word == "--rounds");
    let Some(rounds) = rounds.and_then(|at| words.get(at + 1)) else {
        println!("SKIPPED: it takes minutes; `cargo bench --bench compare -- --rounds 5`");
        return Ok(());
    };
    let rounds: usize = rounds.parse().context("--rounds NUMBER")?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "loop mounts and stores need root"
    );

    let registry = DockerRegistry::start();
    let release = synthetic::release(&registry.host(), BASE, &OWN);
    rig::fill(&registry, &release);
    let components = release.components.iter().map(|(name, _)| release.component(name));
    let images: Vec<String> = [release.by_digest()].into_iter().chain(components).collect();
    println!(
        "{} images, {:.0} MB of different layers, {rounds} rounds",
        images.len(),
        synthetic::unique_bytes(&release) as f64 / 1e6
    );

    let mut costs: [Vec<Cost>; CONTENDERS.len()] = Default::default();
    for round in 1..=rounds {
        for ((name, script), costs) in CONTENDERS.iter().zip(&mut costs) {
            let cost = measure(script, &registry.host(), &images).context(*name)?;
            println!("round {round}: {name}: {:.2} s", cost.0[0]);
            costs.push(cost);
        }
    }
    print_table(&costs);
    Ok(())
}

fn measure(script: &str, registry: &str, images: &[String]) -> anyhow::Result<Cost> {
    let disk = rig::Disk::xfs()?;
    let world = World::below(disk.path(), &[registry.to_owned()]);
    let mut words = vec!["sh", "-c", script, "sh"];
    words.extend(images.iter().map(String::as_str));
    let mut command = world.tool_command(&stock::top(), "pull", &words);
    command
        .env("agent", world::product())
        .env("node", world.host())
        .stdout(Stdio::null())
        .process_group(0);
    rustix::fs::sync();

    let begin = Instant::now();
    let child = command.spawn().context("starting a shell")?;
    let (memory, cpu) = rig::watch(child)?;
    let wall = begin.elapsed().as_secs_f64();
    rustix::fs::syncfs(File::open(disk.path())?)?;
    let on_disk = begin.elapsed().as_secs_f64();

    let stored = world
        .podman(&["images", "--quiet", "--no-trunc"])
        .ok()
        .lines()
        .count();
    ensure!(
        stored == images.len(),
        "{stored} of {} images are in the store",
        images.len()
    );
    Ok(Cost([wall, on_disk, cpu, memory]))
}

fn print_table(costs: &[Vec<Cost>]) {
    let titles = ["wall s", "on disk s", "CPU s", "memory MiB"];
    let columns = titles.map(|title| format!("{title:>28}"));
    println!("\n{:<27}{}", "", columns.concat());
    for ((name, _), rows) in CONTENDERS.iter().zip(costs) {
        let columns = (0..titles.len()).map(|column| {
            let ((median, least, most), (ours, ..)) = (spread(rows, column), spread(&costs[0], column));
            let range = format!("{least:.1}–{most:.1}");
            format!("{median:>8.1} {range:>12} {:>5.1}×", median / ours)
        });
        println!("{name:<27}{}", columns.collect::<String>());
    }
}

/// Median, least and most of a column.
fn spread(rows: &[Cost], column: usize) -> (f64, f64, f64) {
    let mut values: Vec<f64> = rows.iter().map(|cost| cost.0[column]).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}
