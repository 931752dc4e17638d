//! Measures deltas between releases of real programs: `cargo bench --bench delta -- --rounds 3`.
//!
//! ```text
//! --rounds NUMBER           how often each delta is applied, and each run over the link is repeated
//! --pair NAME OLD NEW       also a pair of releases of given programs, each a layer with one file (repeatable)
//! --only WORD,WORD          only these pairs of releases: `patch`, `minor`, `programs`
//! --runs WORD,WORD          pairs whose new release is pulled over a link, or `none`; default `patch`
//! --rates 10,20             Mbit/s of the link, with a round trip of 40 ms
//! --no-zstd                 without `zstd --patch-from`, which takes minutes the first time
//! --create-args "WORDS"     more flags for `delta create`
//! --fetch                   only fetches and makes what a measurement needs
//! ```
//!
//! The releases have 14 images on two base layers, of programs and libraries from Debian and PyPI and of commands of the Go
//! distribution, built here with symbols and DWARF: `contents.txt`. `patch` is a pair of consecutive patch releases,
//! `minor` of consecutive minor versions. The first run downloads 610 MB and builds for minutes; the user's cache keeps it.
//!
//! Percentages are of the blob that a registry has (`gzip -6`). `files` is what remains if known files are left out, `zstd` is
//! `zstd -19 --long=31 --patch-from` from tar to tar, `tar-diff` and `inflated` are our two formats; a layer without a
//! delta in a format counts whole. `create` is the time for the image to which the delta belongs, while others are created too.
//! Applying is measured in a process for each delta, with the old files in the page cache; MB are of the tar, per second of CPU
//! time.
//!
//! Over the link, a node that has the old release pulls the new one, without deltas and with. Needs root, for loop mounts,
//! namespaces and stores, and what the bench `compare` needs. Measure on an idle machine.
#![allow(dead_code, clippy::print_stdout)]

mod applying;
mod archives;
mod contents;
mod creation;
mod go_programs;
#[path = "../../tests/it/image/mod.rs"]
mod image;
mod layers;
#[allow(unused_imports)]
#[path = "../../tests/it/link/mod.rs"]
mod link;
mod link_runs;
mod pairs;
mod peers;
#[path = "../../tests/it/registry/mod.rs"]
mod registry;
#[path = "../rig/mod.rs"]
mod rig;
#[path = "../compare/site.rs"]
mod site;
#[path = "../../tests/it/stock/mod.rs"]
mod stock;
#[path = "../synthetic/mod.rs"]
mod synthetic;
mod table;
mod tar_entries;
#[path = "../../tests/it/test_node.rs"]
mod test_node;

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use spoke_precache::delta::Format;

use applying::Unpacked;
use archives::Archives;
use contents::{Contents, Generation};
use creation::{Creation, Delta};
use link::Quality;
use pairs::{Content, Pair, ProgramPair};
use table::{Applied, Row};

/// Half the round trip of the link.
const DELAY: Duration = Duration::from_millis(20);

/// The arguments.
struct Options {
    rounds: usize,
    programs: Vec<ProgramPair>,
    only: Option<Vec<String>>,
    runs: Vec<String>,
    rates: Vec<u64>,
    zstd: bool,
    create_flags: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == applying::ARGUMENT) {
        return applying::process(&words[1..]);
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let options = Options::parse(&words)?;
    let fetch_only = words.iter().any(|word| word == "--fetch");
    if options.rounds == 0 && !fetch_only {
        println!("SKIPPED: it takes minutes; `cargo bench --bench delta -- --rounds 3`");
        return Ok(());
    }
    ensure!(
        rustix::process::geteuid().is_root(),
        "namespaces, loop mounts and stores need root"
    );
    for pair in options.pairs()? {
        let content = pair.content(site::REGISTRY)?;
        if !fetch_only {
            measure(&pair, &content, &options)?;
        } else if options.zstd {
            for layer in pair.layers() {
                peers::zstd_patch(&layer)?;
            }
        }
    }
    Ok(())
}

impl Options {
    fn parse(words: &[String]) -> anyhow::Result<Self> {
        let value = |flag: &str| {
            let at = words.iter().position(|word| word == flag)?;
            words.get(at + 1).map(String::as_str)
        };
        let programs = words
            .iter()
            .enumerate()
            .filter(|(_, word)| *word == "--pair")
            .map(|(at, _)| {
                let [name, old, new] = words.get(at + 1..at + 4).context("--pair NAME OLD NEW")? else {
                    unreachable!("three words");
                };
                Ok(ProgramPair {
                    name: name.clone(),
                    old: old.into(),
                    new: new.into(),
                })
            });
        let names = |text: &str| text.split(',').map(str::to_owned).collect();
        let rates = value("--rates").unwrap_or("10,20").split(',');
        let rates = rates.map(|rate| rate.parse().context("--rates NUMBER,NUMBER"));
        Ok(Self {
            rounds: value("--rounds")
                .unwrap_or("0")
                .parse()
                .context("--rounds NUMBER")?,
            programs: programs.collect::<anyhow::Result<_>>()?,
            only: value("--only").map(names),
            runs: names(value("--runs").unwrap_or("patch")),
            rates: rates.collect::<anyhow::Result<_>>()?,
            zstd: !words.iter().any(|word| word == "--no-zstd"),
            create_flags: value("--create-args")
                .unwrap_or_default()
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The pairs of releases, made or taken from the cache.
    fn pairs(&self) -> anyhow::Result<Vec<Pair>> {
        let is_wanted = |name: &str| {
            self.only
                .as_ref()
                .is_none_or(|only| only.iter().any(|it| it == name))
        };
        let mut pairs = Vec::new();
        if is_wanted("patch") || is_wanted("minor") {
            let (contents, archives) = (Contents::read()?, Archives::fetch()?);
            go_programs::build(&contents, &archives)?;
            for (name, old) in [("patch", Generation::Old), ("minor", Generation::Minor)] {
                if is_wanted(name) {
                    pairs.push(Pair::of_packages(name, old, &contents, &archives)?);
                }
            }
        }
        if is_wanted("programs") && !self.programs.is_empty() {
            pairs.push(Pair::of_programs("programs", &self.programs)?);
        }
        Ok(pairs)
    }
}

fn measure(pair: &Pair, content: &Content, options: &Options) -> anyhow::Result<()> {
    let registry = content.copy()?;
    let flags: Vec<&str> = options.create_flags.iter().map(String::as_str).collect();
    let creation = creation::create(content, registry.path(), &flags)?;
    let deltas = creation::deltas(content, registry.path())?;
    let rows = rows(pair, content, &creation, &deltas, options)?;
    println!("\n{}: {} images", pair.name, content.new.components.len());
    table::print(&rows);
    println!(
        "delta create: {:.0} s, {:.0} s of CPU time, {:.0} MiB",
        creation.wall, creation.cpu, creation.memory
    );
    if options.runs.iter().any(|name| name == pair.name) {
        for rate in &options.rates {
            print_runs(content, registry.path(), *rate, options.rounds)?;
        }
    }
    Ok(())
}

fn rows(
    pair: &Pair,
    content: &Content,
    creation: &Creation,
    deltas: &[Delta],
    options: &Options,
) -> anyhow::Result<Vec<Row>> {
    let files = peers::without_known_files(pair)?;
    let unpacked = Unpacked::new(&pair.old.layers)?;
    let mut rows = Vec::new();
    for (layer, files) in pair.layers().zip(files) {
        let find = |format| {
            let is_it =
                |it: &&Delta| it.layer.format == format && it.layer.target.to_string() == layer.new.digest;
            deltas.iter().find(is_it)
        };
        let (standard, inflated) = (find(Format::TarDiff), find(Format::InflatedTarDiff));
        let best = [inflated, standard]
            .into_iter()
            .flatten()
            .min_by_key(|delta| delta.layer.size);
        let applied = best.map(|delta| {
            let images: Vec<_> = delta
                .sources
                .iter()
                .map(|id| unpacked.image(&pair.old.layers_of(&content.old, id)))
                .collect();
            let rounds = (0..options.rounds.max(1))
                .map(|_| applying::apply(&delta.file, delta.layer.format, &images, layer.new));
            Applied::median(rounds.collect::<anyhow::Result<_>>()?)
        });
        rows.push(Row {
            name: layer.new.name.clone(),
            tar: layer.new.tar_length,
            whole: layer.new.blob_length,
            files,
            zstd: options.zstd.then(|| peers::zstd_patch(&layer)).transpose()?,
            standard: standard.map(|delta| delta.layer.size),
            inflated: inflated.map(|delta| delta.layer.size),
            create_seconds: best.and_then(|delta| creation.seconds(&delta.image)),
            applied: applied.transpose()?,
        });
    }
    Ok(rows)
}

fn print_runs(content: &Content, registry: &std::path::Path, rate: u64, rounds: usize) -> anyhow::Result<()> {
    let quality = Quality {
        rate: rate * 1_000_000,
        delay: DELAY,
        loss: 0.0,
    };
    let mut walls = Vec::new();
    for (name, flags) in [("whole blobs", &["--no-deltas"][..]), ("deltas", &[])] {
        let mut runs = Vec::new();
        for _ in 0..rounds {
            runs.push(link_runs::run(content, registry, quality, flags)?);
        }
        runs.sort_by(|a, b| a.wall.total_cmp(&b.wall));
        let run = &runs[runs.len() / 2];
        println!(
            "{rate} Mbit/s, {name:<12} {:>7.1} s, {:>6.1} MB received, {:>5.1} s of CPU time, {:>4.0} MiB",
            run.wall,
            run.received as f64 / 1e6,
            run.cpu,
            run.memory
        );
        walls.push(run.wall);
    }
    println!(
        "{rate} Mbit/s: {:.1} times as fast with deltas",
        walls[0] / walls[1]
    );
    Ok(())
}
