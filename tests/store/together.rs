//! Several of us and podman in one store at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use spoke_precache::oci::Platform;

use crate::world::{World, image, layer, stock_tools};

/// Long enough for some hundred operations on a small machine.
const TIME: Duration = Duration::from_secs(20);

#[test]
fn writers_readers_and_removers_share_a_store() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let world = World::new()?;
    let base = layer("echo base > base")?;
    let mut images = Vec::new();
    for number in 0..4 {
        let layers = [
            base.clone(),
            layer(&format!("echo {number} > a"))?,
            layer("echo same > b")?,
        ];
        let image = image(&Platform::of_this_node().architecture, &layers);
        let name = format!("r/{number}:1");
        world.publish(&name, &image)?;
        images.push((name, image));
    }
    world.store("ours")?;
    let until = Instant::now() + TIME;
    let (stored, removed, pulled) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let errors: Vec<String> = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for writer in 0..2_usize {
            let (world, images, stored) = (&world, &images, &stored);
            threads.push(scope.spawn(move || -> Result<()> {
                let store = world.store("ours")?;
                for turn in writer.. {
                    if Instant::now() > until {
                        break;
                    }
                    let (name, image) = &images[turn % images.len()];
                    world.store_image(&store, image, name)?;
                    stored.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }));
        }
        threads.push(scope.spawn(|| -> Result<()> {
            for turn in 0.. {
                if Instant::now() > until {
                    break;
                }
                // It may not be there now.
                let gone = world.podman(
                    "ours",
                    &["rmi", "-f", &world.name(&images[turn % images.len()].0)],
                );
                removed.fetch_add(usize::from(gone.is_ok()), Ordering::Relaxed);
            }
            Ok(())
        }));
        threads.push(scope.spawn(|| -> Result<()> {
            for turn in 0.. {
                if Instant::now() > until {
                    break;
                }
                // podman reads images and layers one after the other, and stumbles if something is removed
                // between. A broken image would make it stumble every time.
                let list = || world.podman("ours", &["images", "-a"]);
                (0..10).find_map(|_| list().ok()).map_or_else(list, Ok)?;
                // A layer of its may be removed by the other podman while it pulls.
                let got = world.pull("ours", &images[turn % images.len()].0);
                pulled.fetch_add(usize::from(got.is_ok()), Ordering::Relaxed);
            }
            Ok(())
        }));
        let join =
            |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| thread.join().expect("no thread panics");
        threads
            .into_iter()
            .map(join)
            .filter_map(Result::err)
            .map(|error| error.to_string())
            .collect()
    });
    ensure!(errors.is_empty(), "{}", errors.join("\n"));
    eprintln!("stored {stored:?}, removed {removed:?}, pulled {pulled:?}");
    let store = world.store("ours")?;
    for (name, image) in &images {
        world.store_image(&store, image, name)?;
    }
    world.podman("ours", &["images"])?;
    world.assert_consistent("ours")?;
    let inventory = store.inventory()?;
    for (name, _) in &images {
        let found = inventory.image_by_name(&world.name(name)).expect("stored above");
        ensure!(
            inventory.is_whole(found)?,
            "{name}: {:?}",
            inventory.find_flaw(found)?
        );
        let out = world.path("out.tar");
        world.podman(
            "ours",
            &[
                "save",
                "--quiet",
                "-o",
                out.to_str().expect("UTF-8"),
                &world.name(name),
            ],
        )?;
        std::fs::remove_file(out)?;
    }
    Ok(())
}
