//! Compares this program with podman and skopeo: `cargo bench --bench compare -- --rounds 5`.
//!
//! ```text
//! --profile small|large|NUMBER    the images; `large` has the shape of a release, a number means small images
//! --rounds NUMBER                 how often each contender pulls them
//! --link 20Mbit,40ms,0.0001       over a link with that rate, round-trip time and loss, instead of a cable
//! --only NAME                     only contenders whose names begin with this
//! --agent-args "WORDS"            more flags for this program
//! --bare                          also the lower bound, and the cost of its parts
//! --forecast                      also the estimates of `plan`, and how they turn out
//! ```
//!
//! A docker-registry in a network namespace of its own holds a synthetic release. In each round, each contender
//! pulls the same images into an empty store on a new XFS, as on a node. The table shows the median, the least and the most,
//! and the median as a multiple of ours. The peers are those of the machine, or of another Debian:
//! `SPOKE_STOCK_ROOT=$(.ci/stock-trixie)` gives podman 5.4 and skopeo 1.18.
//!
//! Needs root, for loop mounts, namespaces and stores, and podman, skopeo, docker-registry and mkfs.xfs (`tests/run`
//! installs them). The file systems lie below `TMPDIR` and take some GB, the release below `target`, where it is kept.
//! Measure on an idle machine.
//!
//! Columns: `wall` until the contender ends; `on disk` until a sync after that ends; `CPU` user and system time of all its
//! processes, without the registry's; `memory` the largest sum of their resident sets, sampled every [`rig::SAMPLING`];
//! `received` bytes of the node's network device; `written` bytes of the block device until the sync; `again` the wall time of
//! a second run, when every image is present.
#![allow(dead_code, clippy::print_stdout)]

mod bare;
#[path = "../../tests/it/image/mod.rs"]
mod image;
#[allow(unused_imports)]
#[path = "../../tests/it/link/mod.rs"]
mod link;
mod profile;
#[path = "../../tests/it/registry/mod.rs"]
mod registry;
#[path = "../rig/mod.rs"]
mod rig;
mod site;
#[path = "../../tests/it/stock/mod.rs"]
mod stock;
#[path = "../synthetic/mod.rs"]
mod synthetic;
#[path = "../../tests/it/test_node.rs"]
mod test_node;

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use bare::{Bare, Parts};
use profile::{Content, Profile};
use site::{REGISTRY, Site};
use test_node::TestNode;

/// Seconds after which a contender is stopped.
const PATIENCE: &str = "3600";

/// A tool that pulls images and checks that they are present.
struct Contender {
    name: &'static str,
    /// A shell script that pulls the images `"$@"`, of which the first is the release image. `$agent` is this program,
    /// `$node` the root of the host, `$agent_args` more flags.
    pull: &'static str,
    /// A shell script that inspects each of them.
    look: &'static str,
}

const AGENT: &str = r#"exec "$agent" run --host-root "$node" --platform-image "$1" --log-level warn --progress never --image-gc-high-threshold 100 $agent_args"#;
const EXISTS: &str = r#"for image; do podman image exists "$image" || exit 1; done"#;

const CONTENDERS: [Contender; 4] = [
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

/// Titles of the columns.
const TITLES: [&str; 7] = [
    "wall s",
    "on disk s",
    "CPU s",
    "memory MiB",
    "received MB",
    "written MB",
    "again s",
];

/// The measurements of one contender in one round, in the units of [`TITLES`].
struct Cost([f64; TITLES.len()]);

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    };
    let Some(rounds) = value("--rounds") else {
        println!("SKIPPED: it takes minutes; `cargo bench --bench compare -- --rounds 5`");
        return Ok(());
    };
    let rounds: usize = rounds.parse().context("--rounds NUMBER")?;
    ensure!(
        rustix::process::geteuid().is_root(),
        "namespaces, loop mounts and stores need root"
    );
    let only = value("--only").unwrap_or_default();
    let agent_args = value("--agent-args").unwrap_or_default();
    let quality = value("--link").map(site::quality).transpose()?;
    let content = Profile::named(value("--profile").unwrap_or("small"))?.content(REGISTRY)?;
    println!(
        "{} images, {:.0} MB of different layers, {rounds} rounds{}",
        content.images.len(),
        content.bytes as f64 / 1e6,
        quality
            .map(|quality| format!(", {quality:?}"))
            .unwrap_or_default(),
    );

    let bare = words.iter().any(|word| word == "--bare");
    let bare = bare.then(|| Bare::of(&content.dir)).transpose()?;
    if let Some(bare) = &bare {
        println!(
            "{:<26}{:>8} {:>8} {:>8}",
            "each alone, all cores", "wall s", "on disk", "CPU s"
        );
        for (name, parts) in Parts::EACH {
            let took = bare.run(parts, rig::Disk::xfs()?.path())?;
            println!(
                "{name:<26}{:>8.2} {:>8.2} {:>8.2}",
                took.wall, took.on_disk, took.cpu
            );
        }
    }
    if words.iter().any(|word| word == "--forecast") {
        forecast(&Site::new(&content.dir, quality)?, &content)?;
    }
    let contenders: Vec<&Contender> = CONTENDERS.iter().filter(|it| it.name.starts_with(only)).collect();
    let mut costs: Vec<(&str, Vec<Cost>)> = contenders.iter().map(|it| (it.name, vec![])).collect();
    costs.extend(bare.as_ref().map(|_| ("the bare pipeline", vec![])));
    for round in 1..=rounds {
        if let (Some(bare), Some((_, costs))) = (&bare, costs.last_mut()) {
            let took = bare.run(Parts::ALL, rig::Disk::xfs()?.path())?;
            let mut cost = [0.0; TITLES.len()];
            cost[..3].copy_from_slice(&[took.wall, took.on_disk, took.cpu]);
            costs.push(Cost(cost));
        }
        for (contender, (_, costs)) in contenders.iter().zip(&mut costs) {
            let site = Site::new(&content.dir, quality)?;
            let cost = measure(contender, agent_args, &site, &content).context(contender.name)?;
            println!("round {round}: {}: {:.2} s", contender.name, cost.0[0]);
            costs.push(cost);
        }
    }
    print_table(&costs);
    Ok(())
}

/// Plans and pulls on a separate disk, and prints how far the plan was off.
fn forecast(site: &Site, content: &Content) -> anyhow::Result<()> {
    let disk = rig::Disk::xfs()?;
    let world = TestNode::below(disk.path(), &[REGISTRY.to_owned()]);
    let agent = |verb: &str| {
        let begin = Instant::now();
        let flags = [
            "--platform-image",
            &content.images[0],
            "--output",
            "json",
            "--image-gc-high-threshold",
            "100",
        ];
        let document = world.out(&format!("{verb}.json"));
        let mut command = Command::new(test_node::product());
        command
            .arg(verb)
            .arg("--host-root")
            .arg(world.host())
            .args(flags)
            .stdout(File::create(&document)?)
            .stderr(Stdio::piped());
        let mut child = site.client().within(|| command.spawn())?;
        let log = BufReader::new(child.stderr.take().context("no log")?);
        let lines = log.lines().map_while(Result::ok);
        let told: Vec<_> = lines
            .filter_map(|line| Some((begin.elapsed(), time_to_go(&line)?)))
            .collect();
        let status = child.wait()?;
        ensure!(status.success(), "`{verb}`: {status}");
        let document: serde_json::Value = serde_json::from_reader(File::open(&document)?)?;
        anyhow::Ok((document["totals"].clone(), begin.elapsed().as_secs_f64(), told))
    };
    let number = |totals: &serde_json::Value, name: &str| {
        totals[name]
            .as_f64()
            .with_context(|| format!("no `{name}` among the totals"))
    };
    // `plan` pulls the release image, which names the others.
    let (plan, planning, _) = agent("plan")?;
    let before = disk_use(&world)?;
    let (report, took, told) = agent("run")?;
    let grown = disk_use(&world)? - before;
    let (to_fetch, fetched) = (number(&plan, "bytesToFetch")?, number(&report, "bytesFetched")?);
    let unpacked = number(&plan, "unpackedEstimate")?;
    println!(
        "forecast in {planning:.2} s: {:.2} MB to fetch, {:.2} fetched; {:.0} MB on disk, {:.0} by du: {:+.1} %",
        to_fetch / 1e6,
        fetched / 1e6,
        unpacked / 1e6,
        grown / 1e6,
        (unpacked / grown - 1.0) * 100.0
    );
    for (when, left) in told {
        let foretold = (when + left).as_secs_f64();
        println!(
            "after {:.1} s it said that it would take {foretold:.0} s, and it took {took:.1}: {:+.1} %",
            when.as_secs_f64(),
            (foretold / took - 1.0) * 100.0
        );
    }
    Ok(())
}

/// The estimated time in a line of the log: `12.3 MiB left to download: about 1 min 5 s at 99.9 Mbit/s`.
fn time_to_go(line: &str) -> Option<Duration> {
    let (_, rest) = line.split_once(" left to download: about ")?;
    let (time, _) = rest.split_once(" at ")?;
    let words: Vec<&str> = time.split(' ').collect();
    let seconds = words.chunks(2).map(|pair| {
        let unit = match *pair.get(1)? {
            "h" => 3600,
            "min" => 60,
            _ => 1,
        };
        Some(pair[0].parse::<u64>().ok()? * unit)
    });
    seconds.sum::<Option<u64>>().map(Duration::from_secs)
}

/// Disk usage of the graph root, in bytes.
fn disk_use(world: &TestNode) -> anyhow::Result<f64> {
    let output = Command::new("du")
        .args(["-s", "-B1"])
        .arg(world.graph_root())
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().context("du is silent")?.parse()?)
}

fn measure(contender: &Contender, agent_args: &str, site: &Site, content: &Content) -> anyhow::Result<Cost> {
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
    Ok(Cost([
        wall,
        on_disk,
        cpu,
        memory,
        mb(received),
        mb(written),
        again,
    ]))
}

fn print_table(costs: &[(&str, Vec<Cost>)]) {
    let columns = TITLES.map(|title| format!("{title:>30}"));
    println!("\n{:<26}{}", "", columns.concat());
    for (name, rows) in costs {
        let columns = (0..TITLES.len()).map(|column| {
            let ((median, least, most), (ours, ..)) = (spread(rows, column), spread(&costs[0].1, column));
            let range = format!("{least:.2}–{most:.2}");
            format!("{median:>8.2} {range:>14} {:>5.2}×", median / ours)
        });
        println!("{name:<26}{}", columns.collect::<String>());
    }
}

/// Median, least and most of a column.
fn spread(rows: &[Cost], column: usize) -> (f64, f64, f64) {
    let mut values: Vec<f64> = rows.iter().map(|cost| cost.0[column]).collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}
