//! Podman and the product write the same store at the same time, and neither notices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::compare::census;
use crate::image::layer::random;
use crate::image::zoo::{STOCK_TAR_SPLIT_IS_WRONG, zoo};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::world::World;

/// How long both write.
fn span() -> Duration {
    Duration::from_secs(if long() { 300 } else { 15 })
}

/// Images on two shared layers, so that podman and the product meet on them.
fn family(prefix: &str, count: u64) -> Vec<(String, Image)> {
    let layer = |seed: u64| {
        let name = format!("dir /{seed} 0755 0:0\nfile /{seed}/data 0644 0:0 random=40000 seed={seed}");
        Layer::of(&name, Compression::Gzip)
    };
    let image = |n: u64| {
        let own = 1000 + n + u64::from(random(1, prefix.len() as u64)[0]) * 100;
        let name = format!("{prefix}/{n}");
        let layers = vec![layer(1), layer(2), layer(own)];
        (
            name.clone(),
            Image::build(&name, Format::Docker, node_architecture(), layers, |_, _| {}),
        )
    };
    (0..count).map(image).collect()
}

/// Podman loses races against another podman's `rmi` ("layer not known"), also without us. A store that is broken stays so;
/// a race passes.
fn settles(world: &World, args: &[&str]) {
    for _ in 0..5 {
        if world.podman(args).is_ok() {
            return;
        }
    }
    world.podman(args).ok();
}

#[test]
fn podman_pulls_lists_and_removes_while_we_write() {
    needs!(root(), stock(), product());
    let registry = Registry::start();
    let images = zoo(b"no program");
    let mut theirs: Vec<String> = Vec::new();
    for image in images
        .images
        .iter()
        .filter(|image| !STOCK_TAR_SPLIT_IS_WRONG.contains(&image.name.as_str()))
    {
        registry.push(&image.name, Some("latest"), image);
        theirs.push(registry.tagged(&image.name));
    }
    for (name, image) in family("theirs", 4) {
        registry.push(&name, Some("latest"), &image);
        theirs.push(registry.tagged(&name));
    }
    let mut ours: Vec<String> = Vec::new();
    for (name, image) in family("ours-too", 6) {
        registry.push(&name, Some("latest"), &image);
        ours.push(registry.tagged(&name));
    }

    let world = World::trusting(&[registry.host()]);
    let over = AtomicBool::new(false);
    let operations = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (world, theirs, over, operations) = (&world, &theirs, &over, &operations);
            scope.spawn(move || {
                // Each worker has its own half, so that none removes what the other is about to use.
                let names: Vec<&String> = theirs.iter().skip(worker).step_by(2).collect();
                for round in 0.. {
                    let name = names[round % names.len()];
                    settles(world, &["pull", "--quiet", name]);
                    settles(world, &["images", "--quiet"]);
                    settles(world, &["image", "inspect", name]);
                    settles(world, &["rmi", "--ignore", name]);
                    operations.fetch_add(4, Ordering::Relaxed);
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let args: Vec<&str> = ours.iter().flat_map(|name| ["--image", name]).collect();
        let begin = Instant::now();
        let mut result = Ok(());
        while begin.elapsed() < span() && result.is_ok() {
            // A failure must not leave the podmans working for ever: it is told after they have stopped.
            let run = world.run(&args);
            if run.code != 0 {
                result = Err(run.to_string());
            }
            for name in &ours {
                settles(&world, &["rmi", "--ignore", name]);
            }
            operations.fetch_add(2 * ours.len() as u64, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|why| panic!("{why}"));
        world.run(&args).exits(0);
    });
    let wrong = census(&world.graph_root());
    assert!(
        wrong.is_empty(),
        "after {operations:?} operations:\n{}",
        wrong.join("\n")
    );
    for name in &ours {
        world.podman(&["image", "exists", name]).ok();
    }
}
