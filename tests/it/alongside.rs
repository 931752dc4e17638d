//! Runs podman, a second podman and the program on the same store at the same time: each works as if it were alone.

use std::io::Write as _;
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::compare::inconsistencies_after_kills;
use crate::image::layer::random;
use crate::image::samples::{STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::TestNode;

/// How long all write.
const SPAN: Duration = Duration::from_secs(15);

/// Kills of the product after which all stop; then the time does not matter.
fn kills() -> Option<u64> {
    let kills = std::env::var("SPOKE_KILLS");
    let kills = kills
        .ok()
        .map(|kills| kills.parse().expect("SPOKE_KILLS is a number"));
    long().then_some(kills.unwrap_or(300))
}

/// Kills one after the other before a run may end by itself.
fn kills_in_a_row() -> u64 {
    if long() { 6 } else { 1 }
}

/// How often, spread over that time, everybody stops and the store is counted.
const COUNTS: u32 = 8;
/// Races that podman may lose in a row before the test assumes that its store is broken.
const RACES: usize = 50;
/// Podmans of each Debian, and products.
const WORKERS: usize = 2;

/// Images on two layers that all families share, so that podman and the product meet on them.
fn family(prefix: &str, seed: u64, count: u64) -> Vec<(String, Image)> {
    let layer = |seed: u64| {
        let name = format!("dir /{seed} 0755 0:0\nfile /{seed}/data 0644 0:0 random=40000 seed={seed}");
        Layer::of(&name, Compression::Gzip)
    };
    let image = |n: u64| {
        let name = format!("{prefix}/{n}");
        let layers = vec![layer(1), layer(2), layer(seed + n)];
        let image = Image::build(&name, Format::Docker, node_architecture(), layers, |_, _| {});
        (name, image)
    };
    (0..count).map(image).collect()
}

/// Counts for the message at the end.
#[derive(Debug, Default)]
struct Done {
    podman: AtomicU64,
    races: AtomicU64,
    runs: AtomicU64,
    kills: AtomicU64,
}

/// A node that all workers write to.
struct Shared {
    world: TestNode,
    done: Done,
    over: AtomicBool,
    /// Held for reading during each operation, for writing while the store is counted.
    quiet: RwLock<()>,
}

impl Shared {
    /// Podman loses races against another podman's `rmi` ("image not known"), also without us. A store that is broken
    /// stays so; a race passes.
    fn podman(&self, top: &Path, args: &[&str]) {
        for _ in 0..RACES {
            let _busy = self.quiet.read();
            if self.world.podman_of(top, args).is_ok() {
                self.done.podman.fetch_add(1, Ordering::Relaxed);
                return;
            }
            self.done.races.fetch_add(1, Ordering::Relaxed);
        }
        self.world.podman_of(top, args).ok();
    }

    /// How much is done, from 0 to 1.
    fn progress(&self, begin: Instant) -> f64 {
        match kills() {
            Some(kills) => self.done.kills.load(Ordering::Relaxed) as f64 / kills as f64,
            None => begin.elapsed().div_duration_f64(SPAN),
        }
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The inconsistencies of the idle store, and the complaints of every podman.
    fn wrong(&self) -> Vec<String> {
        let _quiet = self.quiet.write();
        let mut wrong = inconsistencies_after_kills(&self.world.graph_root());
        let listed = tops()
            .into_iter()
            .map(|top| self.world.podman_of(&top, &["images", "--quiet"]));
        wrong.extend(
            listed
                .filter(|answer| !answer.is_ok())
                .map(|answer| answer.to_string()),
        );
        wrong
    }
}

/// One podman at a time, over and over: pull, list, inspect, remove.
fn podman_works(shared: &Shared, top: &Path, names: &[&String]) {
    for name in names.iter().cycle() {
        shared.podman(top, &["pull", "--quiet", name]);
        shared.podman(top, &["images", "--quiet"]);
        shared.podman(top, &["image", "inspect", name]);
        shared.podman(top, &["rmi", "--ignore", name]);
        if shared.is_over() {
            return;
        }
    }
}

/// The product, over and over: it brings its images, of three times is killed on the way twice and runs again; then podman
/// removes them.
fn product_works(shared: &Shared, spool: &str, names: &[String]) {
    let images = names.iter().flat_map(|name| ["--image", name]);
    let args: Vec<&str> = images.chain(["--spool", spool]).collect();
    let mut took = Duration::from_secs(1);
    for round in 0.. {
        let busy = shared.quiet.read();
        let kills = if round % 3 == 0 { 0 } else { kills_in_a_row() };
        for kill in 0..kills {
            let run = shared.world.start("run", &args);
            let seed = 1 + 100 * round + kill;
            std::thread::sleep(took.mul_f64(f64::from(random(1, seed)[0]) / 256.0));
            run.signal(Signal::KILL);
            match run.wait().code {
                0 => break,
                code => assert_eq!(code, 1009),
            }
            shared.done.kills.fetch_add(1, Ordering::Relaxed);
        }
        took = shared.world.run(&args).exits(0).took;
        shared.done.runs.fetch_add(1, Ordering::Relaxed);
        drop(busy);
        if shared.is_over() {
            return;
        }
        let tops = tops();
        for (number, name) in names.iter().enumerate() {
            shared.podman(&tops[number % tops.len()], &["rmi", "--ignore", name]);
        }
    }
}

/// Row 14 of storage-format.md 12.2: every podman that is to be had, two products, kills; each with names of its own, so
/// that none removes what another is about to use, and all with the same layers.
#[test]
fn podmans_pull_list_and_remove_while_we_write() {
    needs!(root(), stock());
    let registry = Registry::start();
    let push = |families: Vec<(String, Image)>| -> Vec<String> {
        let push = |(name, image): (String, Image)| {
            registry.push(&name, Some("latest"), &image);
            registry.tagged(&name)
        };
        families.into_iter().map(push).collect()
    };
    let usual = |image: &Image| !STOCK_TAR_SPLIT_IS_WRONG.contains(&image.name.as_str());
    let samples = sample_images(b"no program").images.into_iter().filter(usual);
    let mut theirs = push(samples.map(|image| (image.name.clone(), image)).collect());
    theirs.extend(push(family("theirs", 100, 8)));
    let ours: Vec<_> = (0..WORKERS as u64)
        .map(|worker| push(family(&format!("ours-{worker}"), 1000 * (worker + 1), 6)))
        .collect();

    let shared = Shared {
        world: TestNode::trusting(&[registry.host()]),
        done: Done::default(),
        over: AtomicBool::new(false),
        quiet: RwLock::default(),
    };
    let tops = tops();
    let mut wrong = Vec::new();
    std::thread::scope(|scope| {
        let shared = &shared;
        let mut workers = Vec::new();
        for (worker, top) in tops.iter().cycle().take(WORKERS * tops.len()).enumerate() {
            let names: Vec<&String> = theirs.iter().skip(worker).step_by(WORKERS * tops.len()).collect();
            workers.push(scope.spawn(move || podman_works(shared, top, &names)));
        }
        for (worker, names) in ours.iter().enumerate() {
            let spool = shared.world.out(&format!("spool-{worker}"));
            workers.push(scope.spawn(move || product_works(shared, spool.to_str().unwrap(), names)));
        }
        let begin = Instant::now();
        let is_idle = |until: f64| {
            // One that failed ends the others too.
            shared.progress(begin) >= until || workers.iter().any(|worker| worker.is_finished())
        };
        for count in 1..=COUNTS {
            while !is_idle(f64::from(count) / f64::from(COUNTS)) {
                std::thread::sleep(Duration::from_millis(100));
            }
            wrong.extend(shared.wrong());
            if long() {
                let _ = writeln!(std::io::stderr(), "alongside, count {count}: {:?}", shared.done);
            }
            if !wrong.is_empty() {
                break;
            }
        }
        // Report after all have stopped, otherwise they would run for ever.
        shared.over.store(true, Ordering::Relaxed);
    });
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "alongside {tops:?}: {:?}", shared.done);

    wrong.extend(shared.wrong());
    assert!(wrong.is_empty(), "after {:?}:\n{}", shared.done, wrong.join("\n"));
    let world = &shared.world;
    for name in ours.iter().flatten() {
        world.podman(&["image", "exists", name]).ok();
    }
    if world.has_system_check() {
        let checked = world.podman(&["system", "check"]);
        assert!(checked.is_ok() && checked.stdout.is_empty(), "{checked}");
    }
}
