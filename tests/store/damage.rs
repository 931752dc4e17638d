//! Stores that something happened to, and disks that are full.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use spoke_precache::cancel::{Cancel, StopReason};
use spoke_precache::oci::{DiffId, Digest, Platform};
use spoke_precache::store::{Compression, ImageCommit, LayerCommit, LayerSpec, StoreError, Unpacked};

use crate::world::{Image, World, bash, image, layer, run, stage, stock_tools};

fn three_layers() -> Result<Image> {
    let layers = [
        layer("mkdir d; echo a > d/a; chmod 0750 ."),
        layer("echo b > b"),
        layer("echo c > c"),
    ];
    let layers: Vec<_> = layers.into_iter().collect::<Result<_>>()?;
    Ok(image(&Platform::of_this_node().architecture, &layers))
}

fn world() -> Result<(World, Image)> {
    let world = World::new()?;
    let ours = three_layers()?;
    world.publish("r/a:1", &ours)?;
    Ok((world, ours))
}

#[test]
fn what_was_lost_is_found_missing_and_put_back() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let (world, ours) = world()?;
    let store = world.store("ours")?;
    world.store_image(&store, &ours, "r/a:1")?;
    let ids = ours.resolved.layer_ids();
    for damage in [
        "rm -rf overlay/$TOP/diff",
        "rm -rf overlay/$MIDDLE",
        "rm -rf overlay/$BASE overlay/$MIDDLE",
        "rm overlay/$MIDDLE/link",
        ": > overlay/$MIDDLE/link",
        "rm overlay/l/$(cat overlay/$BASE/link)",
        "rm overlay/$TOP/lower",
        "rmdir overlay/$TOP/work",
        "rmdir overlay/$BASE/empty overlay/$BASE/work",
        "rm overlay-images/*/manifest",
        "echo >> $(ls overlay-images/*/=* | head -1)",
        "jq -c 'map(select(.id != env.TOP))' overlay-layers/layers.json > x; mv x overlay-layers/layers.json",
    ] {
        let script = format!(
            "cd \"$1\"; export BASE={} MIDDLE={} TOP={}; {damage}",
            ids[0], ids[1], ids[2]
        );
        bash(&script, &[&world.path("ours")])?;
        let inventory = store.inventory()?;
        let found = inventory
            .image_by_name(&world.name("r/a:1"))
            .expect("its record is there");
        ensure!(!inventory.is_whole(found)?, "not noticed: {damage}");
        world.store_image(&store, &ours, "r/a:1")?;
        let inventory = store.inventory()?;
        let found = inventory
            .image_by_name(&world.name("r/a:1"))
            .expect("its record is there");
        ensure!(
            inventory.is_whole(found)?,
            "{damage}: {:?}",
            inventory.find_flaw(found)?
        );
        let mounted = world.podman("ours", &["image", "mount", &world.name("r/a:1")])?;
        let files = bash("cd \"$1\"; cat d/a b c", &[Path::new(mounted.trim())])?;
        assert_eq!(files, "a\nb\nc\n", "{damage}");
        world.podman("ours", &["image", "unmount", &world.name("r/a:1")])?;
        world.assert_consistent("ours")?;
    }
    Ok(())
}

#[test]
fn the_rests_of_dead_writers_are_replaced() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let (world, ours) = world()?;
    let store = world.store("ours")?;
    let ids = ours.resolved.layer_ids();
    // Two incomplete layers, one of them ours; a directory without a record; stages.
    let script = format!(
        r#"cd "$1"; dead={}; link=ABCDEFGHIJKLMNOPQRSTUVWXYA
        for id in $dead {}; do mkdir -p overlay/$id/diff/junk; echo -n $link > overlay/$id/link; ln -s ../$id/diff overlay/l/$link
        touch overlay-layers/$id.tar-split.gz; link=BBCDEFGHIJKLMNOPQRSTUVWXYA; done; mkdir overlay-layers/$dead
        echo -n '[{{"id":"'$dead'","created":"2024-01-01T00:00:00Z","flags":{{"incomplete":true}}}},{{"id":"{}","flags":{{"incomplete":true}}}}]' > overlay-layers/layers.json
        mkdir -p .spoke-precache-stage-dead/x/y/z .spoke-precache-stage-dead2"#,
        "d".repeat(64),
        ids[0],
        ids[1]
    );
    bash(&script, &[&world.path("ours")])?;
    let living = store.stage()?;
    let spec = LayerSpec::new(None, &ours.resolved.layers[0]);
    let staged = stage(&living, &world.path("theirs"), spec.clone(), &ours.layers[0])?;
    world.store_image(&store, &ours, "r/a:1")?;
    // The living stage was spared; its layer came too late.
    let outcome = store.commit_layers(vec![staged], &Cancel::default())?;
    assert!(matches!(outcome[..], [(id, LayerCommit::AlreadyThere)] if id == spec.id()));
    drop(living);
    world.assert_consistent("ours")?;
    assert!(!world.path("ours/overlay-layers").join("d".repeat(64)).exists());
    assert_eq!(
        fs::metadata(world.path("ours/overlay").join(ids[1].to_string()).join("diff"))?.permissions(),
        fs::metadata(world.path("theirs/overlay").join(ids[1].to_string()).join("diff"))?.permissions()
    );
    Ok(())
}

#[test]
fn a_full_disk_leaves_a_sound_store_wherever_it_is_met() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let (world, ours) = world()?;
    let root = world.path("ours");
    fs::create_dir(&root)?;
    run(
        "mount",
        &[
            "-t",
            "tmpfs",
            "-o",
            "size=4m,mode=0700",
            "t",
            root.to_str().expect("UTF-8"),
        ],
    )?;
    let store = world.store("ours")?;
    for free in 0..40_u64 {
        let area = store.stage()?;
        let mut parent = None;
        let mut staged = Vec::new();
        for layer in &ours.layers {
            let spec = LayerSpec::new(parent, &layer.descriptor);
            parent = Some(spec.id());
            staged.push(stage(&area, &world.path("theirs"), spec, layer)?);
        }
        let fill = format!(
            "head -c 8M /dev/zero > \"$1/fill\" 2>/dev/null || true; truncate -s -{} \"$1/fill\"",
            free * 4096
        );
        bash(&fill, &[&root])?;
        let cancel = Cancel::default();
        let committed = store.commit_layers(staged, &cancel).map(drop).and_then(|()| {
            let name = world.reference("r/a:1").expect("a name");
            store.commit_image(&ours.resolved, &name, &cancel)
        });
        drop(area);
        fs::remove_file(root.join("fill"))?;
        match committed {
            Ok(ImageCommit::Committed(_)) => {
                ensure!(free > 2, "only {free} failures");
                eprintln!("{free} full disks");
                return world.assert_consistent("ours");
            }
            Ok(other) => anyhow::bail!("{other:?}"),
            Err(error) => ensure!(error.is_no_space(), "{error}"),
        }
        // An image's directory without a record is what a pull leaves too; it is used by the next.
        bash("rmdir \"$1\"/overlay-images/?* 2>/dev/null || rm -rf \"$1\"/overlay-images/*; touch \"$1/overlay-layers/layers.json\"
            [ -s \"$1/overlay-layers/layers.json\" ] || echo -n '[]' > \"$1/overlay-layers/layers.json\"", &[&root])?;
        let sound = world.assert_consistent("ours");
        ensure!(
            sound.is_ok(),
            "with {free} free blocks: {}",
            bash(
                "cd \"$1\"; find . | sort; cat overlay-layers/layers.json",
                &[&root]
            )?
        );
    }
    anyhow::bail!("the image does not fit")
}

#[test]
fn what_does_not_fit_is_refused() -> Result<()> {
    if !stock_tools() {
        return Ok(());
    }
    let (world, ours) = world()?;
    let store = world.store("ours")?;
    let area = store.stage()?;
    let specs: Vec<_> = {
        let ids = ours.resolved.layer_ids();
        let parents = [None, Some(ids[0]), Some(ids[1])];
        parents
            .into_iter()
            .zip(&ours.resolved.layers)
            .map(|(parent, layer)| LayerSpec::new(parent, layer))
            .collect()
    };
    // Another content than the config promises.
    let unpacked = Unpacked {
        diff_id: DiffId(Digest::of(b"other")),
        diff_size: 1,
        compression: Compression::Gzip,
        uids: [0].into(),
        gids: [0].into(),
    };
    let refused = area.layer(specs[0].clone())?.finish(unpacked);
    assert!(matches!(refused, Err(StoreError::ContentMismatch { .. })));
    // A child whose parent is not there is given back, and can be committed after it.
    let theirs = world.path("theirs");
    let child = stage(&area, &theirs, specs[1].clone(), &ours.layers[1])?;
    let cancel = Cancel::default();
    let mut outcome = store.commit_layers(vec![child], &cancel)?;
    let Some((_, LayerCommit::ParentMissing(child))) = outcome.pop() else {
        anyhow::bail!("{outcome:?}")
    };
    let missing = store.commit_image(&ours.resolved, &world.reference("r/a:1")?, &cancel)?;
    assert_eq!(missing, ImageCommit::ChainMissing { layer: specs[0].id() });
    let base = stage(&area, &theirs, specs[0].clone(), &ours.layers[0])?;
    let outcome = store.commit_layers(vec![base, *child], &cancel)?;
    assert!(
        outcome
            .iter()
            .all(|(_, outcome)| matches!(outcome, LayerCommit::Committed)),
        "{outcome:?}"
    );
    // A layer with mapped owners is not ours to build on.
    let records = world.path("ours/overlay-layers/layers.json");
    bash(
        r#"jq -c '.[1].uidmap = [{"container_id":0,"host_id":1,"size":1}]' "$1" > "$1.x"; mv "$1.x" "$1""#,
        &[&records],
    )?;
    let again = stage(&area, &theirs, specs[1].clone(), &ours.layers[1])?;
    let refused = store.commit_layers(vec![again], &cancel);
    assert!(matches!(refused, Err(StoreError::Conflict { .. })));
    // A program that is stopped does not wait for the lock that podman holds.
    let held = fs::OpenOptions::new()
        .write(true)
        .open(world.path("ours/overlay-layers/layers.lock"))?;
    rustix::fs::fcntl_lock(&held, rustix::fs::FlockOperation::LockExclusive)?;
    cancel.stop(StopReason::Signal(15));
    let top = stage(&area, &theirs, specs[2].clone(), &ours.layers[2])?;
    let stopped = store.commit_layers(vec![top], &cancel);
    assert!(matches!(stopped, Err(StoreError::Stopped { .. })));
    drop(held);
    drop(area);
    world.assert_consistent("ours")
}
