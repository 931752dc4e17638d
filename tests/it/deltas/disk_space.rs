//! Applies deltas on disks that are almost full: the store is sound at every point, and what is downloaded because a delta fails
//! stays below the kubelet's threshold.

use std::fs;
use std::time::Duration;

use serde_json::Value;

use super::by_hand::{Op, STANDARD, delta};
use super::published::{Artifact, publish};
use super::{APP, REPOSITORY, noise};
use crate::compare::inconsistencies;
use crate::disk::tmpfs;
use crate::disk_full::Disk;
use crate::image::layer::tar_of;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs, note};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const MIB: u64 = 1 << 20;

/// Bytes of the program.
const LENGTH: u64 = 8 * MIB;

/// Of a slow link, in bytes a second: a delta takes some seconds.
const SLOW: u64 = 8 << 10;

/// Small files of the new image.
const FILES: u64 = 3000;

/// A registry with two images: both have the same program, and the second has many small files besides.
struct Update {
    registry: Registry,
    old: Image,
    new: Image,
    /// Digest of the delta.
    delta: String,
}

impl Update {
    /// With a delta that copies this file.
    fn with_delta_from(file: &str) -> Self {
        let app = noise(LENGTH as usize, 7);
        let image = |rest: &str| {
            let tar = tar_of(
                &format!("file /{APP} 0755 0:0 bytes=app\n{rest}"),
                &[("app", &app)],
            );
            let layers = vec![Layer::of_tar(&tar, Compression::None)];
            let image = Image::build(REPOSITORY, Format::Oci, node_architecture(), layers, |_, _| {});
            (image, tar)
        };
        let files: Vec<String> = (0..FILES)
            .map(|n| format!("file /f/{n} 0644 0:0 \"{n}\""))
            .collect();
        let ((old, _), (new, tar)) = (image(""), image(&files.join("\n")));
        let start = tar.windows(64).position(|window| window == &app[..64]);
        let start = start.expect("the program is in the tar");
        let ops = [
            Op::Data(tar[..start].to_vec()),
            Op::Open(file.into()),
            Op::Copy(LENGTH),
            Op::Data(tar[start + app.len()..].to_vec()),
        ];
        let artifact = Artifact::standard(&new.layers[0].digest, delta(STANDARD, &ops));
        let registry = Registry::start();
        registry.push(REPOSITORY, Some("old"), &old);
        registry.push(REPOSITORY, Some("new"), &new);
        publish(
            &registry,
            REPOSITORY,
            &new,
            &[&old],
            std::slice::from_ref(&artifact),
        );
        let delta = artifact.digest();
        Self {
            registry,
            old,
            new,
            delta,
        }
    }

    fn name(&self, image: &Image) -> String {
        self.registry.at(REPOSITORY, &image.digest())
    }

    /// Pulls the old image.
    fn pull_old(&self, node: &TestNode) {
        node.run(&["--image", &self.name(&self.old)]).exits(0);
        self.registry.clear_log();
    }

    fn requests(&self, digest: &str) -> usize {
        self.registry.requests_of(digest)
    }
}

#[track_caller]
fn sound(node: &TestNode, when: &str) {
    let wrong = inconsistencies(&node.graph_root());
    assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
}

#[test]
fn without_space_for_the_whole_blob_a_delta_that_fails_fails_its_image_for_space() {
    needs!(root());
    let update = Update::with_delta_from("bin/none");
    let (name, blob) = (update.name(&update.new), update.new.layers[0].digest.clone());
    let node = TestNode::trusting(&[update.registry.host()]);
    let (disk, spool) = (node.host().join("var/lib/containers"), node.host().join("spool"));
    tmpfs(&disk, 64);
    tmpfs(&spool, 64);
    let spool = spool.to_str().expect("UTF-8");
    update.pull_old(&node);
    let plan = node.plan(&["--image", &name, "-o", "json"]).exits(0);
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    let planned = |what: &str| plan["totals"][what].as_u64().unwrap();
    let needed = planned("unpackedEstimate") + planned("bytesToFetch");
    for (kind, args, at, free) in [
        (
            "one file system",
            &["--image", &name][..],
            &disk,
            needed + LENGTH / 2,
        ),
        (
            "a spool of its own",
            &["--image", &name, "--spool", spool],
            &node.host().join("spool"),
            LENGTH / 2,
        ),
    ] {
        let ballast = at.join("ballast");
        let space = rustix::fs::statvfs(at).unwrap();
        let used = (space.f_bavail * space.f_frsize).saturating_sub(free);
        fs::write(&ballast, vec![1; used as usize]).unwrap();
        update.registry.clear_log();
        let run = node.run(args).exits(3).says("not enough disk space for `sha256:");
        let image = &run.report["images"][0];
        let reason = image["fallbackReason"].as_str().unwrap_or_default();
        assert!(reason.contains("no such regular file"), "{kind}: {run}");
        assert!(reason.contains("not enough disk space"), "{kind}: {run}");
        assert_eq!(run.images("failed"), [&name], "{kind}: {run}");
        assert_eq!(update.requests(&blob), 0, "{kind}: {run}");
        sound(&node, kind);
        fs::remove_file(&ballast).unwrap();
    }
    let run = node.run(&["--image", &name]).exits(0);
    assert!(update.requests(&blob) > 0, "{run}");
    sound(&node, "with space");
}

/// Another program fills the disk while the delta is downloaded.
#[test]
fn wherever_the_disk_fills_up_while_a_delta_is_applied_another_run_goes_on() {
    needs!(root());
    let update = Update::with_delta_from(APP);
    let (name, blob) = (update.name(&update.new), update.new.layers[0].digest.clone());
    let args = ["--image", &name];
    let needed = LENGTH + FILES * 4096;
    for kind in ["ext4", "xfs"] {
        let node = TestNode::trusting(&[update.registry.host()]);
        let disk = Disk::mount(&node, kind);
        let partial = node.graph_root().with_file_name("spoke-precache");
        let partial = partial.join(format!("{}.partial", update.delta));
        let steps = if long() { 40 } else { 3 };
        let (mut met, mut fitted) = (0, 0);
        for step in 0..steps {
            disk.empty();
            update.pull_old(&node);
            update
                .registry
                .fault(Fault::on(&update.delta).slow(SLOW).times(1));
            let run = node.start("run", &args);
            while !partial.exists() {
                assert!(
                    !run.has_run_for(Duration::from_secs(20)),
                    "no delta is downloaded"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            disk.leave(needed * step / steps);
            let run = run.wait();
            update.registry.end_faults();
            let when = format!("{kind} with {step}/{steps} of what is needed");
            match run.code {
                0 => fitted += 1,
                3 => met += 1,
                _ => panic!("{when}: {run}"),
            }
            assert!(run.code == 0 || run.stderr.contains("hint: "), "{when}: {run}");
            let mut wrong = inconsistencies(&node.graph_root());
            // On a full XFS not even a directory can be removed; the next run does it.
            let is_full = run.stderr.contains("cannot remove the stage");
            wrong.retain(|line| !(is_full && line.starts_with("a writer left")));
            assert!(wrong.is_empty(), "{when}: {run}\n{}", wrong.join("\n"));
            disk.free_again();
            let next = node.run(&args);
            assert_eq!(next.code, 0, "{when}: {next}after: {run}");
            assert_eq!(update.requests(&blob), 0, "{when}: {next}after: {run}");
            sound(&node, &when);
        }
        note(&format!(
            "{kind}: {met} full disks were met, {fitted} times it fitted"
        ));
        assert!(met > 0, "{kind}: no disk was full");
    }
}
