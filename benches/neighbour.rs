//! Measures how a run slows another program that syncs the same disk: `cargo bench --bench neighbour -- --rounds 3`.
//!
//! The neighbour writes as etcd does: it appends a few KiB to a log of its own on the file system of the store, waits for
//! `fdatasync`, and pauses. etcd recommends a 99th percentile below 10 ms, and loses its leader when
//! heartbeats wait for hundreds of milliseconds. How long each `fdatasync` took is measured alone, beside a run of this program, and beside
//! `podman pull` of the same images; on an XFS in a loop-mounted file.
//!
//! ```text
//! --rounds NUMBER         how often each contender runs
//! --agent PATH            another build of this program; repeatable
//! --agent-args "WORDS"    flags for this program; repeatable; without it, none and `--io-budget 2MB`
//! --only NAME             only contenders whose names begin with this
//! --plain                 on the file system of `TMPDIR`
//! ```
//!
//! Needs root, podman, skopeo, docker-registry and mkfs.xfs. Measure on an idle machine.
//!
//! `p99` and `worst` are of all rounds together; `wall` and `CPU` are medians, `on disk` is until a sync after the end.
#![allow(dead_code, clippy::print_stdout)]

#[path = "../tests/it/image/mod.rs"]
mod image;
#[path = "../tests/it/registry/mod.rs"]
mod registry;
mod rig;
#[path = "../tests/it/stock/mod.rs"]
mod stock;
mod synthetic;
#[path = "../tests/it/test_node.rs"]
mod test_node;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use rig::Disk;
use stock::docker_registry::DockerRegistry;
use test_node::TestNode;

/// Bytes in the files of the layer that all images share.
const BASE: usize = 80 << 20;
/// The images, and the bytes in the files of the layer that each has of its own: 600 MB in 25,000 files with the base.
const OWN: [(&str, usize); 6] = [
    ("cli", 50 << 20),
    ("etcd", 80 << 20),
    ("hyperkube", 150 << 20),
    ("machine-config-operator", 80 << 20),
    ("oauth-server", 20 << 20),
    ("ovn-kubernetes", 120 << 20),
];
/// The neighbour's log is preallocated, like etcd's.
const LOG: u64 = 64 << 20;
/// The least and the most bytes of an entry of the log.
const ENTRY: std::ops::Range<usize> = 2 << 10..8 << 10;
/// The shortest and the longest pause of the neighbour, in milliseconds.
const REST: std::ops::Range<u64> = 20..50;
/// How long the neighbour is watched alone.
const ALONE: &str = "sleep 8";

/// As in bench `compare`: `"$@"` are the images, the release image first.
const AGENT: &str = r#"exec "$agent" run --host-root "$node" --platform-image "$1" --log-level warn --progress never --image-gc-high-threshold 100 $agent_args"#;
const PODMAN: &str = r#"for image; do podman pull --quiet "$image" || exit 1; done"#;

/// What runs beside the neighbour.
struct Contender {
    name: String,
    script: &'static str,
    /// This program.
    agent: String,
    args: String,
}

/// The measurements of one contender.
#[derive(Default)]
struct Cost {
    wall: Vec<f64>,
    on_disk: Vec<f64>,
    cpu: Vec<f64>,
    /// Milliseconds of each `fdatasync` of the neighbour.
    waits: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let values = |flag: &str| {
        let at = words.windows(2).filter(|pair| pair[0] == flag);
        at.map(|pair| pair[1].clone()).collect::<Vec<_>>()
    };
    let Some(rounds) = values("--rounds").pop() else {
        println!("SKIPPED: it takes minutes; `cargo bench --bench neighbour -- --rounds 3`");
        return Ok(());
    };
    let rounds: usize = rounds.parse().context("--rounds NUMBER")?;
    let is_plain = words.iter().any(|word| word == "--plain");
    ensure!(
        rustix::process::geteuid().is_root(),
        "loop mounts and stores need root"
    );

    let registry = DockerRegistry::start();
    let release = synthetic::release(&registry.host(), BASE, &OWN);
    rig::fill(&registry, &release);
    let components = release.components.iter().map(|(name, _)| release.component(name));
    let images: Vec<String> = [release.by_digest()].into_iter().chain(components).collect();
    let only = values("--only").pop().unwrap_or_default();
    let or = |values: Vec<String>, others: &[String]| {
        if values.is_empty() {
            others.to_vec()
        } else {
            values
        }
    };
    let agents = or(values("--agent"), &[test_node::product().display().to_string()]);
    let args = or(
        values("--agent-args"),
        &[String::new(), "--io-budget 2MB".to_owned()],
    );
    let contender = |name: &str, script, agent: &str, args: &str| Contender {
        name: name.to_owned(),
        script,
        agent: agent.to_owned(),
        args: args.to_owned(),
    };
    let mut contenders = vec![contender("alone", ALONE, "", "")];
    for agent in &agents {
        let name = if agents.len() == 1 {
            "spoke-precache"
        } else {
            agent
        };
        contenders.extend(
            args.iter()
                .map(|args| contender(format!("{name} {args}").trim(), AGENT, agent, args)),
        );
    }
    contenders.push(contender("podman pull", PODMAN, "", ""));
    contenders.retain(|contender| contender.name.starts_with(&only));
    let mut costs: Vec<Cost> = contenders.iter().map(|_| Cost::default()).collect();
    for round in 1..=rounds {
        for (contender, cost) in contenders.iter().zip(&mut costs) {
            let disk = if is_plain { Disk::plain()? } else { Disk::xfs()? };
            let name = &contender.name;
            // A contender that is killed after a minute does not end the benchmark.
            match measure(&disk, contender, &registry.host(), &images, cost) {
                Ok(wall) => println!("round {round}: {name}: {wall:.2} s"),
                Err(error) => println!("round {round}: {name}: {error}"),
            }
        }
    }
    println!(
        "\n{:<40}   median      p99    worst  >100 ms     wall  on disk      CPU",
        "fdatasync beside it, ms"
    );
    for (Contender { name, .. }, cost) in contenders.iter().zip(&mut costs) {
        let [median, p99, worst] = [0.5, 0.99, 1.0].map(|part| quantile(&mut cost.waits, part));
        let late = cost.waits.iter().filter(|wait| **wait > 100.0).count();
        let [wall, on_disk, cpu] =
            [&mut cost.wall, &mut cost.on_disk, &mut cost.cpu].map(|values| quantile(values, 0.5));
        println!(
            "{name:<40} {median:>8.2} {p99:>8.1} {worst:>8.1} {late:>8} {wall:>8.1} {on_disk:>8.1} {cpu:>8.1}"
        );
    }
    Ok(())
}

fn measure(
    disk: &Disk,
    contender: &Contender,
    registry: &str,
    images: &[String],
    cost: &mut Cost,
) -> anyhow::Result<f64> {
    let world = TestNode::below(disk.path(), &[registry.to_owned()]);
    // The chroot with the tools of another Debian must contain this program too.
    let agent = world.out("spoke-precache");
    if !contender.agent.is_empty() {
        fs::copy(&contender.agent, &agent)?;
    }
    let mut words = vec!["sh", "-c", contender.script, "sh"];
    words.extend(images.iter().map(String::as_str));
    let mut command = world.tool_command(&stock::top(), "pull", &words);
    command
        .env("agent", &agent)
        .env("agent_args", &contender.args)
        .env("node", world.host())
        .stdout(Stdio::null())
        .process_group(0);
    rustix::fs::sync();
    let is_over = AtomicBool::new(false);
    let watched = std::thread::scope(|scope| {
        let neighbour = scope.spawn(|| neighbour(disk.path(), &is_over));
        let begin = Instant::now();
        let child = command.spawn().context("starting a shell");
        let watched = child.and_then(rig::watch);
        let wall = begin.elapsed().as_secs_f64();
        let synced = rustix::fs::syncfs(File::open(disk.path())?);
        let on_disk = begin.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        let waits = neighbour.join().expect("the neighbour does not panic");
        synced?;
        anyhow::Ok((watched?, wall, on_disk, waits?))
    });
    let ((_, cpu), wall, on_disk, waits) = watched?;
    cost.wall.push(wall);
    cost.on_disk.push(on_disk);
    cost.cpu.push(cpu);
    cost.waits.extend(waits);
    Ok(wall)
}

/// Appends, syncs and pauses until `is_over`.
fn neighbour(directory: &Path, is_over: &AtomicBool) -> anyhow::Result<Vec<f64>> {
    let mut log = File::create(directory.join("neighbour.wal"))?;
    rustix::fs::fallocate(&log, rustix::fs::FallocateFlags::empty(), 0, LOG)?;
    log.sync_all()?;
    let mut waits = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let entry = vec![b'e'; rand::random_range(ENTRY)];
        log.write_all(&entry)?;
        let begin = Instant::now();
        log.sync_data()?;
        waits.push(begin.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(rand::random_range(REST)));
    }
    Ok(waits)
}

/// The value below which `part` of the values are.
fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    values.get(at).copied().unwrap_or_default()
}
