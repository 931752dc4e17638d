//! Checks what `--io-budget` changes: which files are on the disk before the sync of a commit, and that no error of the disk is
//! lost there.

use std::collections::BTreeSet;
use std::fs;

use crate::compare::inconsistencies;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// Many more than the queue has space for, and together smaller than a blob that is written early itself.
const FILES: usize = 300;

struct Site {
    _registry: Registry,
    image: String,
    world: TestNode,
}

fn site() -> Site {
    let registry = Registry::start();
    let files: String = (0..FILES)
        .map(|n| format!("file /f/{n} 0644 0:0 random=3000 seed={n}\n"))
        .collect();
    let layers = vec![Layer::of(&files, Compression::Gzip)];
    let image = Image::build("files", Format::Oci, node_architecture(), layers, |_, _| {});
    registry.push("files", Some("latest"), &image);
    Site {
        image: registry.tagged("files"),
        world: TestNode::trusting(&[registry.host()]),
        _registry: registry,
    }
}

impl Site {
    /// Runs under strace with these options, and returns the calls that write to the disk too.
    fn run(&self, budget: &str, options: &[&str]) -> (Run, String) {
        let log = self.world.out("strace");
        let path = log.to_str().expect("a plain path");
        let trace = "trace=sync_file_range,syncfs";
        let strace = ["/usr/bin/strace", "-f", "-qq", "-y", "-o", path, "-e", trace];
        let args = ["--image", &self.image, "--io-budget", budget];
        let run = self.world.start_under(&[&strace, options].concat(), "run", &args);
        (run.wait(), fs::read_to_string(&log).unwrap())
    }
}

/// Files of layers that are written before the first sync.
fn written_early(calls: &str) -> usize {
    let early = calls.lines().take_while(|call| !call.contains("syncfs("));
    let path = |call: &str| Some(call.split_once('<')?.1.split_once('>')?.0.to_owned());
    let paths: BTreeSet<String> = early
        .filter_map(path)
        .filter(|path| path.contains("/diff/"))
        .collect();
    paths.len()
}

#[test]
fn with_a_budget_every_file_is_written_before_the_sync_of_a_commit() {
    needs!(root());
    for (budget, expected) in [
        ("2MB", FILES..=FILES),
        ("64kB", FILES..=FILES),
        ("auto", 0..=FILES),
        ("off", 0..=0),
    ] {
        let (run, calls) = site().run(budget, &[]);
        let early = written_early(&calls);
        assert!(
            expected.contains(&early),
            "{budget}: {early} files: {}",
            run.exits(0)
        );
    }
}

#[test]
fn an_error_of_the_disk_before_the_sync_fails_the_run_and_the_next_one_completes() {
    needs!(root());
    for (budget, nth) in [("2MB", 2), ("2MB", 100), ("64kB", 20)] {
        let site = site();
        let inject = format!("inject=sync_file_range:error=EIO:when={nth}");
        let (run, calls) = site.run(budget, &["-e", &inject]);
        assert!(calls.contains("(INJECTED)"), "{budget}: {run}");
        let run = run.exits(7).says("cannot write the files of");
        assert_eq!(
            inconsistencies(&site.world.graph_root()),
            Vec::<String>::new(),
            "{run}"
        );
        site.world.run(&["--image", &site.image]).exits(0);
        assert_eq!(inconsistencies(&site.world.graph_root()), Vec::<String>::new());
    }
}
