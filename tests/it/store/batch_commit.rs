//! Tests commits of several layers and images: one save for all, the error of one image does not affect others, and other
//! programs get the lock in between.

use std::fs::{self, File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};

use super::{put, resolved, store};
use crate::compare::{inconsistencies, inconsistencies_after_kills};
use crate::image::{Image, Images};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// Longer than a whole record of layers.json that strace is to show.
const SHOWN: &str = "100000";

/// As long as fetching and unpacking some kilobytes may take on a busy machine.
const UNPACKING: Duration = Duration::from_secs(4);

/// Layers of the image that is committed on a slow disk.
const LAYERS: usize = 24;

/// Microseconds that the slow disk takes for a name or a sync; a layer has three names.
const SLOW: u32 = 50_000;

/// Held as a whole, the lock would be kept for 3.6 s at least; the product lets it go after 0.2 s, a layer and a save.
const PATIENCE: Duration = Duration::from_millis(2000);

/// An image of `count` layers, each with a file of its own.
fn image(name: &str, count: usize) -> Image {
    let layers = (0..count).map(|n| format!("layer gzip\nfile /{name}{n} 0644 0:0 \"{name} {n}\"\n"));
    let text = format!("image {name} docker\n{}", layers.collect::<String>());
    Images::of(&text, &[]).images.remove(0)
}

/// Runs it under strace with `options`, which apply to calls on `paths` if there are any; also returns strace's output.
fn run_traced(world: &TestNode, args: &[&str], paths: &[&str], options: &[&str]) -> (Run, String) {
    let log = world.out("strace");
    let mut strace = vec!["/usr/bin/strace", "-f", "-qq", "-y", "-s", SHOWN, "-o"];
    strace.push(log.to_str().unwrap());
    strace.extend(paths.iter().flat_map(|path| ["-P", path]));
    strace.extend(options.iter().flat_map(|option| ["-e", option]));
    let run = world.start_under(&strace, "run", args).wait();
    (run, fs::read_to_string(log).unwrap())
}

/// No save of layers.json has an incomplete record, also when a save or a move fails and beside a dead writer's; and there
/// is one save for all layers.
#[test]
fn one_save_records_all_layers_as_complete_whatever_fails() {
    needs!(root(), strace());
    let (registry, image, dead) = (Registry::start(), image("many", 4), image("dead", 2));
    registry.push("many", Some("latest"), &image);
    let args = ["--image", &registry.tagged("many")];
    let mut failed = 0;
    for nth in 0..if long() { 20 } else { 9 } {
        let world = TestNode::trusting(&[registry.host()]);
        put(&store(&world), &dead, None, "localhost/dead:1");
        let root = world.graph_root();
        let records = root.join("overlay-layers/layers.json");
        let mut all: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&records).unwrap()).unwrap();
        all[1]["flags"] = serde_json::json!({"incomplete": true});
        fs::write(&records, serde_json::to_vec(&all).unwrap()).unwrap();
        fs::write(root.join("overlay-images/images.json"), "[]").unwrap();
        fs::remove_dir_all(
            root.join("overlay-images")
                .join(resolved(&dead, None).id().to_string()),
        )
        .unwrap();
        let inject = format!("inject=rename,renameat,renameat2:error=EIO:when={nth}");
        let options = ["trace=write,rename,renameat,renameat2", &inject];
        let (run, log) = run_traced(&world, &args, &[], &options[..1 + usize::from(nth > 0)]);
        let is_save =
            |line: &&str| line.contains("write(") && line.contains("/overlay-layers/.tmp-layers.json");
        let saves: Vec<&str> = log.lines().filter(is_save).collect();
        for save in &saves {
            assert!(!save.contains("incomplete"), "{nth}: {save}: {run}");
        }
        match nth {
            0 => assert_eq!(saves.len(), 1, "{run}"),
            _ => failed += usize::from(run.code == 7),
        }
        world.run(&args).exits(0);
        assert_eq!(
            inconsistencies_after_kills(&root),
            Vec::<String>::new(),
            "{nth}: {run}"
        );
    }
    assert!(failed > 4, "only {failed} runs failed");
}

/// A save may replace layers.json and fail only then; if taking the records back fails too, the layers' files stay, for
/// everybody sees them as complete.
#[test]
fn records_that_cannot_be_taken_back_keep_their_files() {
    needs!(root(), strace());
    let (registry, image) = (Registry::start(), image("two", 2));
    registry.push("two", Some("latest"), &image);
    let args = ["--image", &registry.tagged("two")];
    for can_be_taken_back in [true, false] {
        let world = TestNode::trusting(&[registry.host()]);
        drop(store(&world));
        let dir = world.graph_root().join("overlay-layers");
        let records = dir.join("layers.json");
        // The token is the first thing of a save.
        let token = dir.join("layers.lock");
        let paths = [dir.to_str().unwrap(), token.to_str().unwrap()];
        // The names are synced in the same directory before the save.
        let sync = "inject=fsync:error=EIO:when=2";
        let back = "inject=pwrite64:error=EIO:when=2";
        let options = ["trace=fsync,pwrite64", sync, back];
        let (run, log) = run_traced(
            &world,
            &args,
            &paths,
            &options[..3 - usize::from(can_be_taken_back)],
        );
        let injected = log.lines().filter(|line| line.contains("INJECTED"));
        let injected: Vec<bool> = injected.map(|line| line.contains("pwrite64")).collect();
        assert!(
            injected.starts_with(&[false, true][..1 + usize::from(!can_be_taken_back)]),
            "{log}{run}"
        );
        assert_eq!(run.code, 7, "{run}");
        let stored = if can_be_taken_back { 0 } else { 2 };
        assert_eq!(crate::compare::record_array(&records).len(), stored, "{run}");
        let wrong = inconsistencies_after_kills(&world.graph_root());
        assert_eq!(wrong, Vec::<String>::new(), "{run}");
        world.run(&args).exits(0);
        let wrong = inconsistencies_after_kills(&world.graph_root());
        assert_eq!(wrong, Vec::<String>::new(), "{run}");
    }
}

/// Images that got ready while the lock was another's go together; a damaged layer fails those that have it and no other.
#[test]
fn the_error_of_one_image_does_not_affect_its_batch() {
    needs!(root(), strace());
    let registry = Registry::start();
    let mut images: Vec<Image> = ["a", "c", "e", "f"].map(|name| image(name, 2)).into();
    // Both have the damaged layer.
    for name in ["b", "d"] {
        images.push(Image {
            name: name.to_owned(),
            ..image("damaged", 2)
        });
    }
    let mut names = Vec::new();
    for image in &images {
        registry.push(&image.name, Some("latest"), image);
        names.push(registry.tagged(&image.name));
    }
    names.sort();
    let args: Vec<&str> = names.iter().flat_map(|name| ["--image", name]).collect();
    let world = TestNode::trusting(&[registry.host()]);
    let damaged = images.iter().find(|image| image.name == "b").unwrap();
    put(&store(&world), damaged, None, &registry.tagged("b"));
    let base = resolved(damaged, None).layer_ids()[0].to_string();
    fs::remove_file(world.graph_root().join("overlay").join(&base).join("link")).unwrap();

    let lock = File::options()
        .write(true)
        .open(world.graph_root().join("overlay-layers/layers.lock"))
        .unwrap();
    fcntl_lock(&lock, FlockOperation::LockExclusive).unwrap();
    let log = world.out("strace");
    let strace = [
        "/usr/bin/strace",
        "-f",
        "-qq",
        "-y",
        "-o",
        log.to_str().unwrap(),
        "-e",
        "trace=syncfs",
    ];
    let running = world.start_under(&strace, "run", &args);
    std::thread::sleep(UNPACKING);
    drop(lock);
    let run = running.wait();

    let syncs = fs::read_to_string(log).unwrap();
    // Those of the stage are for the layers to commit.
    let together = syncs.lines().filter(|line| line.contains("-stage-")).count();
    assert!(together <= 3, "{syncs}: {run}");
    assert_eq!(run.code, 7, "{run}");
    let of = |names: &[&str]| names.iter().map(|name| registry.tagged(name)).collect::<Vec<_>>();
    assert_eq!(run.images("pulled"), of(&["a", "c", "e", "f"]), "{run}");
    assert_eq!(run.images("failed"), of(&["b", "d"]), "{run}");
    assert_eq!(run.total("layersPulled"), 8, "{run}");
    let spool = world.host().join("var/lib/containers/spoke-precache");
    for image in images
        .iter()
        .filter(|image| !["b", "d"].contains(&image.name.as_str()))
    {
        for layer in &image.layers {
            assert!(!spool.join(&layer.digest).exists(), "{}: {run}", image.name);
        }
    }
    // Nothing but the damage is wrong with the store.
    let wrong = inconsistencies(&world.graph_root());
    assert!(
        wrong
            .iter()
            .all(|line| line.contains("link") || line.contains("lower")),
        "{wrong:?}"
    );
}

/// CRI-O asks for the lock in each of its calls.
#[test]
fn others_get_the_lock_while_many_layers_are_committed_to_a_slow_disk() {
    needs!(root(), strace());
    let (registry, image) = (Registry::start(), image("high", LAYERS));
    registry.push("high", Some("latest"), &image);
    let world = TestNode::trusting(&[registry.host()]);
    drop(store(&world));
    let lock = world.graph_root().join("overlay-layers/layers.lock");
    let has_ended = AtomicBool::new(false);
    let (run, longest) = std::thread::scope(|scope| {
        let contender = scope.spawn(|| {
            let mut longest = Duration::ZERO;
            while !has_ended.load(Ordering::Relaxed) {
                let file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&lock)
                    .unwrap();
                let since = Instant::now();
                fcntl_lock(&file, FlockOperation::LockExclusive).unwrap();
                longest = longest.max(since.elapsed());
                drop(file);
                std::thread::sleep(Duration::from_millis(10));
            }
            longest
        });
        let calls = "fsync,fdatasync,renameat,renameat2,symlink,symlinkat";
        let (run, _) = run_traced(
            &world,
            &["--image", &registry.tagged("high")],
            &[],
            &[
                &format!("trace={calls}"),
                &format!("inject={calls}:delay_enter={SLOW}"),
            ],
        );
        has_ended.store(true, Ordering::Relaxed);
        (run, contender.join().unwrap())
    });
    let run = run.exits(0);
    assert!(longest < PATIENCE, "somebody waited {longest:?}: {run}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}
