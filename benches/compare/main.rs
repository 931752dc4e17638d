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
//! --json FILE                     writes every round, with the machine and the date
//! --table FILE                    measures nothing; prints such a file as Markdown, for `benches/README.md`
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
mod contender;
mod environment;
mod figures;
mod forecast;
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

use std::fs;

use anyhow::{Context as _, ensure};

use bare::{Bare, Parts};
use contender::{CONTENDERS, Contender};
use figures::{Cost, Figures, Rounds, table};
use profile::Profile;
use site::{REGISTRY, Site};

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1).map(String::as_str)
    };
    if let Some(file) = value("--table") {
        let figures: Figures = serde_json::from_slice(&fs::read(file).context(file.to_owned())?)?;
        println!("{}", table::markdown(&figures));
        return Ok(());
    }
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
    let profile = value("--profile").unwrap_or("small");
    let content = Profile::named(profile)?.content(REGISTRY)?;
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
        forecast::forecast(&Site::new(&content.dir, quality)?, &content)?;
    }
    let contenders: Vec<&Contender> = CONTENDERS.iter().filter(|it| it.name.starts_with(only)).collect();
    let empty = |name: &str| Rounds {
        name: name.to_owned(),
        rounds: vec![],
    };
    let mut costs: Vec<Rounds> = contenders.iter().map(|it| empty(it.name)).collect();
    costs.extend(bare.as_ref().map(|_| empty("the bare pipeline")));
    for round in 1..=rounds {
        if let (Some(bare), Some(costs)) = (&bare, costs.last_mut()) {
            let took = bare.run(Parts::ALL, rig::Disk::xfs()?.path())?;
            costs.rounds.push(Cost::times(took.wall, took.on_disk, took.cpu));
        }
        for (contender, costs) in contenders.iter().zip(&mut costs) {
            let site = Site::new(&content.dir, quality)?;
            let cost = contender::measure(contender, agent_args, &site, &content).context(contender.name)?;
            println!("round {round}: {}: {:.2} s", contender.name, cost.wall);
            costs.rounds.push(cost);
        }
    }
    let figures = Figures {
        date: environment::today(),
        machine: environment::machine()?,
        programs: environment::programs()?,
        profile: profile.to_owned(),
        images: content.images.len(),
        bytes: content.bytes,
        link: value("--link").map(str::to_owned),
        contenders: costs,
    };
    println!("\n{}", table::text(&figures));
    if let Some(file) = value("--json") {
        fs::write(file, serde_json::to_vec_pretty(&figures)?).context(file.to_owned())?;
    }
    Ok(())
}
