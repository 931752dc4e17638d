//! Measures how fast images get from a medium into the store: `cargo bench --bench media -- --rounds 3`.
//!
//! ```text
//! --profile small|large|NUMBER    the images, as in bench `compare`; `small` unless given
//! --rounds NUMBER                 how often each contender pulls them
//! --rates 40,100,200,none         rates of the medium in MB/s; `none` is as fast as the machine's disk
//! --only NAME                     only contenders whose names begin with this
//! ```
//!
//! The medium is an XFS on a loop device, with an OCI layout of a synthetic release: as a directory, and as a tar. A control
//! group limits the rate at which all processes of a contender read from that device. The store is another XFS. Before each
//! measurement the page cache is dropped. No registry exists, so a run that requests anything fails.
//!
//! `cat` reads the same bytes from the same medium in the same way: the sequential rate. The goal is 80 % of it, until the CPUs
//! are busy all the time. `skopeo copy oci:` and `podman pull oci:` read the same directory, image by image.
//!
//! Needs root, for loop mounts, control groups and stores, and podman, skopeo, docker-registry and mkfs.xfs (`tests/run`
//! installs them). Measure on an idle machine.
//!
//! Columns, medians of all rounds: `wall` until the contender ends; `on disk` until a sync after that ends; `MB/s` the bytes of
//! all blobs by `wall`; `of cat` that rate as a part of the sequential one; `CPUs` user and system time of its processes by
//! `wall` and the number of CPUs; `memory` the largest sum of their resident sets.
#![allow(dead_code, clippy::print_stdout)]

#[path = "../../tests/it/image/mod.rs"]
mod image;
mod medium;
#[path = "../compare/profile.rs"]
mod profile;
mod rate_limit;
#[path = "../../tests/it/registry/mod.rs"]
mod registry;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../../tests/it/stock/mod.rs"]
mod stock;
#[path = "../synthetic/mod.rs"]
mod synthetic;
#[path = "../../tests/it/test_node.rs"]
mod test_node;

use std::fs::{self, File};
use std::num::NonZero;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use medium::{Form, Medium};
use profile::{Content, Profile};
use rate_limit::RateLimit;
use rig::Disk;
use test_node::TestNode;

/// Named by the images; nothing listens there.
const REGISTRY: &str = "127.0.0.1:5098";

/// Seconds after which a contender is stopped.
const PATIENCE: &str = "3600";

/// What reads a medium.
struct Contender {
    name: &'static str,
    /// Whether it reads a tar too. skopeo and podman unpack a whole archive for each image.
    reads_tar: bool,
    /// Whether the images are in the store at its end.
    stores: bool,
    /// A shell script. `"$@"` are the images, of which the first is the release image; `$medium` the medium's path, `$agent`
    /// this program, `$node` the root of the host.
    script: &'static str,
}

/// The sequential rate comes first: the others are compared with it.
const CONTENDERS: [Contender; 4] = [
    Contender {
        name: "cat",
        reads_tar: true,
        stores: false,
        script: r#"exec find "$medium" -type f -exec cat {} +"#,
    },
    Contender {
        name: "spoke-precache",
        reads_tar: true,
        stores: true,
        script: r#"exec "$agent" run --host-root "$node" --platform-image "$1" --blobs-from "$medium" --log-level warn --progress never --image-gc-high-threshold 100"#,
    },
    Contender {
        name: "skopeo copy oci:",
        reads_tar: false,
        stores: true,
        script: r#"n=0; for image; do
             skopeo --insecure-policy copy --quiet "oci:$medium:image-$n" "containers-storage:localhost/image-$n" || exit 1
             n=$((n + 1))
           done"#,
    },
    Contender {
        name: "podman pull oci:",
        reads_tar: false,
        stores: true,
        // It names the images by the path, which must be lower case.
        script: r#"mount --bind "$medium" /mnt || exit 1
             n=0; for image; do podman pull --quiet "oci:/mnt:image-$n" || exit 1; n=$((n + 1)); done"#,
    },
];

/// One measurement: seconds, seconds, CPU seconds and MiB.
struct Cost {
    wall: f64,
    on_disk: f64,
    cpu: f64,
    memory: f64,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    };
    let Some(rounds) = value("--rounds") else {
        println!("SKIPPED: it takes minutes; `cargo bench --bench media -- --rounds 3`");
        return Ok(());
    };
    let rounds: usize = rounds.parse().context("--rounds NUMBER")?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "loop mounts, control groups and stores need root"
    );
    let only = value("--only").unwrap_or_default();
    let rates = value("--rates").unwrap_or("40,100,200,none").split(',');
    let rates: Vec<Option<u64>> = rates.map(rate).collect::<Result<_, _>>()?;
    let content = Profile::named(value("--profile").unwrap_or("small"))?.content(REGISTRY)?;
    println!(
        "{} images, {:.0} MB of different layers, {rounds} rounds",
        content.images.len(),
        content.bytes as f64 / 1e6
    );
    for form in [Form::Directory, Form::Tar] {
        let medium = Medium::new(form, &content)?;
        for rate in &rates {
            let name = rate.map_or("as fast as it is".into(), |rate| {
                format!("{} MB/s", rate / 1_000_000)
            });
            println!("\n{form:?}, {name}");
            let limit = RateLimit::new(medium.device()?, *rate)?;
            let chosen = CONTENDERS.iter().filter(|contender| {
                (contender.name.starts_with(only) || !contender.stores)
                    && (contender.reads_tar || form == Form::Directory)
            });
            let mut costs: Vec<(&Contender, Vec<Cost>)> = chosen.map(|it| (it, vec![])).collect();
            for _ in 0..rounds {
                for (contender, costs) in &mut costs {
                    let cost = measure(contender, &medium.path(), &limit, &content);
                    costs.push(cost.context(contender.name)?);
                }
            }
            print_table(&costs, content.bytes);
        }
    }
    Ok(())
}

/// Bytes a second, of a number of MB or `none`.
fn rate(text: &str) -> anyhow::Result<Option<u64>> {
    if text == "none" {
        return Ok(None);
    }
    let megabytes: u64 = text.parse().context("--rates NUMBER,…,none")?;
    Ok(Some(megabytes * 1_000_000))
}

fn measure(
    contender: &Contender,
    medium: &Path,
    limit: &RateLimit,
    content: &Content,
) -> anyhow::Result<Cost> {
    let disk = Disk::xfs()?;
    let world = TestNode::below(disk.path(), &[]);
    // The chroot with the tools of another Debian must contain this program and the medium too.
    let agent = world.out("spoke-precache");
    fs::copy(test_node::product(), &agent)?;
    let seen = world.out("medium");
    let dir = medium.parent().context("a medium below a directory")?;
    fs::create_dir(&seen)?;
    rustix::mount::mount_bind(dir, &seen)?;
    let name = medium.file_name().context("a medium with a name")?;

    let script = format!("echo $$ >\"$entrance\"\n{}", contender.script);
    let mut shell = vec!["sh", "-c", &script, "sh"];
    shell.extend(content.images.iter().map(String::as_str));
    let mut command = world.tool_command_within(PATIENCE, &stock::top(), "pull", &shell);
    command
        .env("entrance", limit.entrance())
        .env("medium", seen.join(name))
        .env("agent", &agent)
        .env("node", world.host())
        .stdout(Stdio::null())
        .process_group(0);
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the page cache")?;
    let begin = Instant::now();
    let (memory, cpu) = rig::watch(command.spawn().context("starting a shell")?)?;
    let wall = begin.elapsed().as_secs_f64();
    rustix::fs::syncfs(File::open(disk.path())?)?;
    let on_disk = begin.elapsed().as_secs_f64();

    let stored = world
        .podman(&["images", "--quiet", "--no-trunc"])
        .ok()
        .lines()
        .count();
    let expected = if contender.stores { content.images.len() } else { 0 };
    ensure!(
        stored == expected,
        "{stored} of {expected} images are in the store"
    );
    Ok(Cost {
        wall,
        on_disk,
        cpu,
        memory,
    })
}

fn print_table(costs: &[(&Contender, Vec<Cost>)], bytes: u64) {
    let cpus = std::thread::available_parallelism().map_or(1, NonZero::get) as f64;
    let median = |costs: &[Cost], value: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(value).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    println!(
        "{:<18}{:>9}{:>11}{:>8}{:>9}{:>8}{:>12}",
        "", "wall s", "on disk s", "MB/s", "of cat", "CPUs", "memory MiB"
    );
    let sequential = median(&costs[0].1, |cost| cost.wall);
    for (contender, costs) in costs {
        let wall = median(costs, |cost| cost.wall);
        println!(
            "{:<18}{wall:>9.2}{:>11.2}{:>8.0}{:>8.0}%{:>7.0}%{:>12.0}",
            contender.name,
            median(costs, |cost| cost.on_disk),
            bytes as f64 / 1e6 / wall,
            sequential / wall * 100.0,
            median(costs, |cost| cost.cpu) / wall / cpus * 100.0,
            median(costs, |cost| cost.memory)
        );
    }
}
