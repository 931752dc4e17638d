//! Tests `verify`, which names each damage and changes nothing, and `verify --repair`, which repairs it with as few downloaded
//! bytes as possible and does not touch what is in use or was not requested.

mod attributes;
mod for_upgrade;
mod in_use;
mod records;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::compare::{compare, inconsistencies, inconsistencies_after_kills};
use crate::image::samples::{STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::image::{Image, Images};
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::tops;
use crate::test_node::{Run, TestNode};

/// Three layers with something of every kind, and another image with the second one's content on another base.
const IMAGES: &str = r#"
image rich docker
layer gzip
dir      /d 0755 0:0 mtime=1400000000
file     /d/a 0644 0:0 random=300000 seed=1
file     /d/b 0640 1:2 "bb" mtime=1500000000.25
file     /d/empty 0644 0:0 ""
link     /d/a2 -> /d/a 0644 0:0
symlink  /d/s -> a mtime=1300000000
file     /bin/ping 0755 0:0 "ping"
xattr    security.capability=0x0100000200200000000000000000000000000000
char     /dev/null 1:3 0666 0:0
fifo     /dev/pipe 0600 0:0
layer gzip
dir      /m 0750 5:6
file     /m/file 0644 0:0 random=20000 seed=2
whiteout /d/b
dir      /opt 0755 0:0
opaque   /opt
layer gzip
file     /top 0644 0:0 "top"

image sister docker
layer gzip
file     /other 0644 0:0 "other"
layer gzip
dir      /m 0750 5:6
file     /m/file 0644 0:0 random=20000 seed=2
whiteout /d/b
dir      /opt 0755 0:0
opaque   /opt
"#;

/// A registry with [`IMAGES`], a node where the product pulled `rich`, and one where podman did.
struct Scene {
    registry: Registry,
    rich: Image,
    name: String,
    ours: TestNode,
    theirs: TestNode,
}

impl Scene {
    fn new() -> Self {
        let (registry, images) = (Registry::start(), Images::of(IMAGES, &[]));
        registry.push_all(&images);
        let (ours, theirs) = (
            TestNode::trusting(&[registry.host()]),
            TestNode::trusting(&[registry.host()]),
        );
        let name = registry.tagged("rich");
        ours.run(&["--image", &name]).exits(0);
        theirs.podman_pull(&name);
        Self {
            rich: images.image("rich").clone(),
            registry,
            name,
            ours,
            theirs,
        }
    }

    /// Runs a shell script in our store; `$BASE`, `$MIDDLE` and `$TOP` are the image's layers, `$IMAGE` is its id.
    fn damage(&self, script: &str) {
        shell(&self.ours.graph_root(), &self.rich, script);
    }

    fn verify(&self) -> Run {
        self.ours.verify(&["--image", &self.name])
    }

    fn repair(&self) -> Run {
        self.ours.verify(&["--repair", "--image", &self.name])
    }

    /// What of our store is not as in podman's.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = inconsistencies(&self.ours.graph_root());
        wrong.extend(compare(&self.ours.graph_root(), &self.theirs.graph_root(), &[]));
        wrong
    }

    /// `verify` names the damage and changes nothing; `--repair` repairs it, with that many blobs downloaded.
    fn damaged_and_mended(&self, script: &str, said: &str, code: i32, fetched: usize) {
        self.damage(script);
        let before = snapshot(&self.ours.graph_root());
        let found = self.verify();
        assert_eq!(found.code, code, "{script}: {found}");
        let found = found.says(said);
        assert_eq!(found.images("failed"), [&self.name], "{script}: {found}");
        assert_eq!(
            snapshot(&self.ours.graph_root()),
            before,
            "{script}: verify changed something"
        );
        self.registry.clear_log();
        let mended = self.repair();
        assert_eq!(mended.code, 0, "{script}: {mended}");
        let requests = self.registry.layer_requests();
        let blobs: BTreeSet<&str> = requests.iter().map(|request| request.path.as_str()).collect();
        assert_eq!(blobs.len(), fetched, "{script}: {blobs:?}\n{mended}");
        let wrong = self.wrong();
        assert!(wrong.is_empty(), "{script}:\n{}\n{mended}", wrong.join("\n"));
        assert_eq!(
            self.verify().exits(0).report["warnings"],
            serde_json::json!([]),
            "{script}"
        );
    }
}

fn shell(root: &Path, image: &Image, script: &str) {
    let ids = layer_ids(image);
    let status = Command::new("bash")
        .args(["-euc", script])
        .current_dir(root)
        .envs(["BASE", "MIDDLE", "TOP"].into_iter().zip(ids))
        .env("IMAGE", image.id())
        .status();
    assert!(status.unwrap().success(), "{script}");
}

/// storage-format.md section 7.
pub(crate) fn layer_ids(image: &Image) -> Vec<String> {
    let mut ids: Vec<String> = Vec::new();
    for layer in &image.layers {
        let hex = &layer.diff_id["sha256:".len()..];
        let id = match ids.last() {
            None => hex.to_owned(),
            Some(parent) => {
                crate::image::sha256(format!("{parent}+{hex}").as_bytes())["sha256:".len()..].to_owned()
            }
        };
        ids.push(id);
    }
    ids
}

/// Every name below `root` with inode, mode, owner, size, times and target.
pub(crate) fn snapshot(root: &Path) -> String {
    let script = "find . -printf '%p %i %y %m %U:%G %s %T@ %C@ %l\\n' | LC_ALL=C sort";
    let found = Command::new("sh")
        .args(["-c", script])
        .current_dir(root)
        .output()
        .unwrap();
    String::from_utf8_lossy(&found.stdout).into_owned()
}

/// Nothing is downloaded: the content of the layers is present, and only the tree is wrong.
#[test]
fn attributes_names_and_links_of_a_tree_are_repaired_from_the_layer_itself() {
    needs!(root(), stock());
    let scene = Scene::new();
    for (script, said) in [
        (
            "chmod 0600 overlay/$BASE/diff/d/a; touch -d @1 overlay/$BASE/diff/d/a",
            "its mode is 0600, not 0644",
        ),
        (
            "chown 7:8 overlay/$BASE/diff/d/b",
            "`/d/b`: its owner is 7:8, not 1:2",
        ),
        (
            "setfattr -x security.capability overlay/$BASE/diff/bin/ping",
            "`security.capability` is missing",
        ),
        (
            "setfattr -n user.x -v y overlay/$BASE/diff/bin/ping",
            "it has an extended attribute `user.x`",
        ),
        (
            "touch -d @1000000000 overlay/$BASE/diff/d/b",
            "it was modified at 1000000000",
        ),
        (
            "touch -d @1000000000 overlay/$BASE/diff/d",
            "`/d`: it was modified at",
        ),
        (
            "ln -sfn b overlay/$BASE/diff/d/s",
            "`/d/s`: it leads to `b`, not `a`",
        ),
        (
            "cp -p overlay/$BASE/diff/d/a x; mv x overlay/$BASE/diff/d/a2",
            "it is not a hard link to `/d/a`",
        ),
        (
            "rm overlay/$MIDDLE/diff/d/b",
            "`/d/b`: the whiteout: it is missing",
        ),
        (
            "setfattr -x trusted.overlay.opaque overlay/$MIDDLE/diff/opt",
            "`trusted.overlay.opaque` is missing",
        ),
        (
            "echo > overlay/$TOP/diff/$'extra\\e[31m'",
            "`/extra\\\\u{1b}[31m`: the layer's tar has no such file",
        ),
        (
            "mkdir -p overlay/$TOP/diff/more/dirs",
            "`/more`: the layer's tar has no such directory",
        ),
        (
            "rm overlay/$BASE/diff/dev/null; mknod overlay/$BASE/diff/dev/null c 1 5",
            "it is device 1:5, not 1:3",
        ),
        ("rm overlay/$BASE/diff/dev/pipe", "`/dev/pipe`: it is missing"),
        ("rm overlay/$BASE/diff/d/empty", "`/d/empty`: it is missing"),
        ("chmod 0700 overlay/$BASE/diff", "its mode is 0700, not 0555"),
    ] {
        scene.damaged_and_mended(script, said, 7, 0);
    }
}

#[test]
fn content_and_tar_splits_are_repaired_by_downloading_only_that_layer() {
    needs!(root(), stock());
    let scene = Scene::new();
    let flip = "f=overlay/$BASE/diff/d/a; t=$(stat -c %Y $f); printf X | dd of=$f bs=1 seek=777 conv=notrunc status=none; touch -d @$t $f";
    for (script, said, code) in [
        (flip, "`/d/a`: its content differs from the tar", 7),
        (": > overlay/$MIDDLE/diff/m/file", "`/m/file`: its content differs from the tar", 7),
        ("rm overlay/$TOP/diff/top", "`/top`: it is missing", 7),
        ("rm -r overlay/$BASE/diff/d", "`/d/a`: it is missing", 7),
        ("truncate -s 100 overlay-layers/$BASE.tar-split.gz", "tar-split: cannot read the tar-split", 7),
        ("echo garbage > overlay-layers/$MIDDLE.tar-split.gz", "tar-split: cannot read the tar-split", 7),
        (": > overlay-layers/$TOP.tar-split.gz", "tar-split: it is empty", 7),
        ("rm overlay-layers/$TOP.tar-split.gz", "tar-split: it is missing", 7),
        ("rm overlay-layers/$TOP.tar-split.gz; mkfifo overlay-layers/$TOP.tar-split.gz", "tar-split: it is empty", 7),
        ("rm -r overlay/$MIDDLE/diff", "the layer's directory cannot be opened", 7),
        ("rm -r overlay/$MIDDLE", "`link`: it is missing", 7),
        ("rm -r overlay/$MIDDLE/diff; : > overlay/$MIDDLE/diff", "the layer's directory cannot be opened", 7),
        (
            "rm -r overlay/$MIDDLE/diff; ln -s ../$BASE/diff overlay/$MIDDLE/diff",
            "the layer's directory cannot be opened",
            7,
        ),
        // Files and tar-split fit together, and are those of something else.
        (
            "rm -r overlay/$TOP/diff; cp -a overlay/$BASE/diff overlay/$TOP/
             cp overlay-layers/$BASE.tar-split.gz overlay-layers/$TOP.tar-split.gz",
            "form a tar with the diffID",
            7,
        ),
        (
            "zcat overlay-layers/$MIDDLE.tar-split.gz | head -n 2 | gzip > x
             cat x > overlay-layers/$MIDDLE.tar-split.gz; rm x",
            "tar-split",
            7,
        ),
        (
            "jq -c 'map(if .id == env.TOP then .flags = {incomplete: true} else . end)' overlay-layers/layers.json > x
             cat x > overlay-layers/layers.json; rm x",
            "is missing",
            1,
        ),
    ] {
        scene.damaged_and_mended(script, said, code, 1);
    }
    scene.damaged_and_mended(
        &format!("{flip}; rm overlay/$TOP/diff/top; : > overlay/$MIDDLE/link"),
        "and 2 more",
        7,
        2,
    );
}

/// Nothing is fetched, or only manifest and config.
#[test]
fn directories_of_layers_and_records_of_images_are_repaired() {
    needs!(root(), stock());
    let scene = Scene::new();
    let record = |change: &str| {
        format!("jq -c '{change}' overlay-images/images.json > x; cat x > overlay-images/images.json; rm x")
    };
    for (script, said, code) in [
        (": > overlay/$MIDDLE/link", "`link`: it is missing", 7),
        ("rm overlay/$TOP/link", "`link`: it is missing", 7),
        (
            "rm overlay/$TOP/link; mkfifo overlay/$TOP/link",
            "`link`: it is missing",
            7,
        ),
        (
            "rm overlay-images/$IMAGE/manifest; mkfifo overlay-images/$IMAGE/manifest",
            "`manifest`: it has 0 bytes",
            7,
        ),
        (
            "rm overlay/l/$(cat overlay/$BASE/link)",
            "does not lead to the layer",
            7,
        ),
        (
            "ln -sfn ../x/diff overlay/l/$(cat overlay/$BASE/link)",
            "does not lead to the layer",
            7,
        ),
        (
            "echo -n l/$(cat overlay/$BASE/link) > overlay/$TOP/lower",
            "`lower`: it names another layer",
            7,
        ),
        (
            "echo -n l/$(cat overlay/$MIDDLE/link) > overlay/$TOP/lower",
            "`lower`: it does not name layer",
            7,
        ),
        (": > overlay/$MIDDLE/lower", "`lower`: it is missing", 7),
        (
            "rmdir overlay/$TOP/work overlay/$BASE/empty",
            "`empty`: it is missing",
            7,
        ),
        (
            "for id in $BASE $MIDDLE $TOP; do : > overlay/$id/link; : > overlay/$id/lower; done; rm overlay/l/*",
            "`link`: it is missing",
            7,
        ),
        (
            ": > overlay-images/$IMAGE/manifest",
            "`manifest`: it has 0 bytes",
            7,
        ),
        (
            "sed -i s/2/3/ overlay-images/$IMAGE/manifest",
            "`manifest`: it has the digest",
            7,
        ),
        ("rm overlay-images/$IMAGE/*", "it is missing", 7),
        (
            "for f in overlay-images/$IMAGE/=*; do echo >> $f; done",
            "its record has",
            7,
        ),
        (
            &record("map(del(.\"big-data-sizes\"))"),
            "its record has no size",
            7,
        ),
        (
            &record("map(select(.id != env.IMAGE))"),
            "it is not in the store",
            1,
        ),
    ] {
        scene.damaged_and_mended(script, said, code, 0);
    }
}

/// The spool first, then another layer of the store, then a registry.
#[test]
fn nothing_is_downloaded_that_is_on_the_node() {
    needs!(root(), stock());
    let scene = Scene::new();
    let sister = scene.registry.tagged("sister");
    scene.ours.run(&["--image", &sister]).exits(0);
    // Not by podman: 4.3 forgets how a layer was compressed that it makes from another one.
    scene.theirs.run(&["--image", &sister]).exits(0);
    scene.damaged_and_mended(": > overlay/$MIDDLE/diff/m/file", "`/m/file`", 7, 0);

    let spool = scene.ours.host().join("var/lib/containers/spoke-precache");
    let layer = &scene.rich.layers[0];
    std::fs::write(spool.join(&layer.digest), &layer.blob).unwrap();
    scene.damaged_and_mended("rm overlay/$BASE/diff/d/a", "`/d/a`", 7, 0);
    assert!(!spool.join(&layer.digest).exists(), "the blob stays in the spool");
}

#[test]
fn what_podman_stored_is_no_damage() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let names: Vec<String> = images
        .images
        .iter()
        .map(|image| registry.tagged(&image.name))
        .collect();
    let args: Vec<&str> = names.iter().flat_map(|name| ["--image", name]).collect();
    let ours = TestNode::trusting(&[registry.host()]);
    ours.run(&args).exits(0);
    assert_eq!(
        ours.verify(&args).exits(0).report["warnings"],
        serde_json::json!([])
    );
    for top in tops() {
        let world = TestNode::trusting(&[registry.host()]);
        for name in &names {
            world.podman_of(&top, &["pull", "--quiet", name]).ok();
        }
        let before = snapshot(&world.graph_root());
        let verified = world.verify(&args).exits(0);
        assert_eq!(snapshot(&world.graph_root()), before);
        let warnings = verified.report["warnings"].as_array().unwrap();
        let wrong_in_stock = STOCK_TAR_SPLIT_IS_WRONG.map(|name| &images.image(name).layers[0].diff_id[7..]);
        for warning in warnings {
            let warning = warning.as_str().unwrap();
            let is_known = wrong_in_stock.iter().any(|id| warning.contains(id));
            assert!(
                is_known && warning.contains("was not compared"),
                "{}: {warning}",
                top.display()
            );
        }
        // Nothing is repaired.
        world.verify(&[&args[..], &["--repair"]].concat()).exits(0);
        assert_eq!(snapshot(&world.graph_root()), before, "{}", top.display());
    }
}

/// As after a power loss that the file system did not survive unharmed.
#[test]
fn a_directory_that_the_disk_does_not_give_is_a_damage() {
    needs!(root(), stock(), strace());
    let scene = Scene::new();
    let base = &layer_ids(&scene.rich)[0];
    let dir = scene.ours.graph_root().join(format!("overlay/{base}/diff/d"));
    let options = [
        "-P",
        dir.to_str().unwrap(),
        "-e",
        "trace=getdents64",
        "-e",
        "inject=getdents64:error=EIO",
    ];
    let run = scene
        .ours
        .start_with_faults(&options, "verify", &["--image", &scene.name])
        .wait();
    let run = run.exits(7).says("`/d`: it cannot be listed: Input/output error");
    assert_eq!(run.images("failed"), [&scene.name]);
}

/// strace kills the program on entering the n-th call of a kind, as in `crash.rs`.
#[test]
fn a_kill_during_a_repair_is_repaired_by_the_next_one() {
    needs!(root(), stock(), strace());
    let scene = Scene::new();
    let damage = "rm overlay/$BASE/diff/d/a; : > overlay-layers/$MIDDLE.tar-split.gz; : > overlay/$TOP/link; : > overlay-images/$IMAGE/manifest";
    let mut kills = 0;
    for calls in [
        "rename",
        "renameat,renameat2",
        "unlink",
        "fsync",
        "symlink,symlinkat",
    ] {
        for nth in 1.. {
            scene.damage(damage);
            let run = scene
                .ours
                .start_to_kill(calls, nth, "verify", &["--repair", "--image", &scene.name])
                .wait();
            let when = format!("killed on entering the {nth}th of {calls}");
            if run.code == 0 {
                break;
            }
            assert_eq!(run.code, 1009, "{when}: {run}");
            kills += 1;
            let run = scene.repair();
            assert_eq!(run.code, 0, "{when}: {run}");
            let mut wrong = inconsistencies_after_kills(&scene.ours.graph_root());
            wrong.extend(compare(&scene.ours.graph_root(), &scene.theirs.graph_root(), &[]));
            // Temporary files of a running writer have the same names, so only old ones may be removed.
            wrong.retain(|line| !line.contains(".tmp-"));
            assert!(wrong.is_empty(), "{when}:\n{}", wrong.join("\n"));
        }
    }
    assert!(kills >= 10, "only {kills} kills");
}

#[test]
fn a_reading_that_is_stopped_leaves_at_once() {
    needs!(root());
    let registry = Registry::start();
    let text = "image large docker\nlayer none\nfile /large 0644 0:0 zeros=300000000";
    registry.push_all(&Images::of(text, &[]));
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("large");
    world.run(&["--image", &name]).exits(0);
    let run = world.start("verify", &["--image", &name]);
    std::thread::sleep(std::time::Duration::from_millis(150));
    run.signal(Signal::TERM);
    let begin = std::time::Instant::now();
    let run = run.wait();
    assert!([143, 0].contains(&run.code), "{run}");
    assert!(begin.elapsed() < std::time::Duration::from_secs(3), "{run}");
}

/// Verification reads with low disk priority. Repairs hold the store's locks and keep their priority.
#[test]
fn layers_are_read_again_at_the_disk_priority_that_was_given() {
    needs!(root(), strace());
    let registry = Registry::start();
    let images = Images::of(IMAGES, &[]);
    registry.push_all(&images);
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("rich");
    world.run(&["--image", &name]).exits(0);
    let layers = layer_ids(images.image("rich")).len();
    let calls = world.out("calls");
    let strace = ["/usr/bin/strace", "-f", "-qq", "-e", "trace=ioprio_set", "-o"];
    let strace = [&strace[..], &[calls.to_str().unwrap()]].concat();
    for (priority, is_lowered) in [("idle", true), ("none", false)] {
        for repair in [&[][..], &["--repair"]] {
            let args = [&["--image", &name, "--ionice", priority][..], repair].concat();
            world.start_under(&strace, "verify", &args).wait().exits(0);
            let lowered = std::fs::read_to_string(&calls).unwrap();
            let lowered = lowered.matches("IOPRIO_CLASS_IDLE").count();
            // The first finds out whether it may be.
            assert_eq!(lowered > layers, is_lowered, "{args:?}: {lowered} times");
        }
    }
}
