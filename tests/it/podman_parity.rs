//! Pulls the sample images with the program into one node and with podman into another, and compares the stores.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::compare::{compare, inconsistencies};
use crate::image::Images;
use crate::image::samples::{EMPTY_XATTR, STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::needs::{leave_out, needs};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::stock::hello;
use crate::test_node::{Run, TestNode};

/// A registry with the zoo, and a node where the product has pulled all of it.
struct Pulled {
    registry: Registry,
    images: Images,
    ours: TestNode,
}

impl Pulled {
    fn new(hello: &[u8]) -> Self {
        let registry = Registry::start();
        let images = sample_images(hello);
        registry.push_all(&images);
        let ours = TestNode::trusting(&[registry.host()]);
        let pulled = Self {
            registry,
            images,
            ours,
        };
        pull(&pulled.ours, &pulled.names()).exits(0);
        pulled
    }

    /// Every image of this node's architecture, by tag.
    fn names(&self) -> Vec<String> {
        self.images
            .images
            .iter()
            .map(|image| self.registry.tagged(&image.name))
            .collect()
    }

    /// Another node, where podman pulled the same.
    fn theirs(&self) -> TestNode {
        let theirs = TestNode::trusting(&[self.registry.host()]);
        for name in self.names() {
            theirs.podman_pull(&name);
        }
        theirs
    }

    /// Ids of layers that stock tools cannot rebuild.
    fn wrong_in_stock(&self) -> Vec<String> {
        let wrong = STOCK_TAR_SPLIT_IS_WRONG
            .iter()
            .map(|name| self.images.image(name));
        // Each of them has one layer, whose id is therefore its diffID.
        wrong
            .map(|image| image.layers[0].diff_id["sha256:".len()..].to_owned())
            .collect()
    }
}

fn pull(world: &TestNode, names: &[String]) -> Run {
    let args: Vec<&str> = names.iter().flat_map(|name| ["--image", name]).collect();
    world.run(&args)
}

fn check(problems: Vec<String>) {
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn trees_records_data_and_tar_splits_are_those_of_podman() {
    needs!(root(), stock());
    let pulled = Pulled::new(b"no program");
    let theirs = pulled.theirs();
    let mut differences = compare(
        &pulled.ours.graph_root(),
        &theirs.graph_root(),
        &pulled.wrong_in_stock(),
    );
    if theirs.podman_version().starts_with("4.") {
        let layer = &pulled.images.image(EMPTY_XATTR).layers[0].diff_id["sha256:".len()..];
        differences.retain(|line| !line.starts_with(&format!("layer {layer} tree user")));
    }
    check(differences);
    check(inconsistencies(&pulled.ours.graph_root()));
}

/// storage-format.md 6.4: names, digests and manifests for every way to name an image; and a second name for each.
#[test]
fn tags_lists_and_digests_are_recorded_as_podman_records_them() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    for list in ["zoo/multi", "zoo/index"] {
        let list = images.list(list);
        let instance = images.image("zoo/multi-amd64").digest();
        let by_tag = registry.tagged(&list.name);
        let by_list = registry.at(&list.name, &list.digest());
        let by_instance = registry.at(&list.name, &instance);
        let alone = registry.tagged("zoo/multi-amd64");
        for names in [
            vec![&by_tag],
            vec![&by_list],
            vec![&by_instance],
            vec![&alone],
            vec![&by_tag, &by_list],
            vec![&by_instance, &by_list],
            vec![&alone, &by_tag],
        ] {
            let (ours, theirs) = (
                TestNode::trusting(&[registry.host()]),
                TestNode::trusting(&[registry.host()]),
            );
            // One run for each name: the order of names within one run is ours to choose.
            let mut stored = 0;
            for name in &names {
                let run = ours.run(&["--platform", "linux/amd64", "--image", name]).exits(0);
                stored += run.images("pulled").len();
                theirs.podman(&["pull", "--quiet", "--arch", "amd64", name]).ok();
            }
            // An image that is found by a name already needs no such name; then podman's records have more than ours.
            if stored == names.len() {
                let differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
                assert!(differences.is_empty(), "{names:?}\n{}", differences.join("\n"));
            }
            for name in [&by_list, &by_instance]
                .into_iter()
                .filter(|name| names.contains(name))
            {
                ours.podman(&["image", "exists", name]).ok();
            }
        }
    }
}

#[test]
fn another_platform_is_chosen_when_asked_for() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("zoo/index");
    world
        .run(&["--platform", "linux/s390x", "--image", &name])
        .exits(0);
    let inspected = world.podman(&["image", "inspect", &name]).json();
    assert_eq!(inspected[0]["Architecture"], "s390x");
    assert_eq!(inspected[0]["Id"], images.image("zoo/multi-s390x").id());
}

/// Rows 1, 2, 3, 6 of storage-format.md 12.2.
#[test]
fn stock_tools_list_and_inspect_what_we_stored_as_their_own() {
    needs!(root(), stock());
    let pulled = Pulled::new(b"no program");
    let theirs = pulled.theirs();
    for args in [
        vec!["images", "--all", "--no-trunc", "--format", "json"],
        vec![
            "images",
            "--digests",
            "--format",
            "{{.Repository}} {{.Tag}} {{.Digest}} {{.ID}} {{.Size}}",
        ],
    ] {
        let listed = |world: &TestNode| {
            let text = world.podman(&args).ok();
            match serde_json::from_str::<Vec<Value>>(&text) {
                Ok(images) => images.iter().map(ToString::to_string).collect(),
                Err(_) => text.lines().map(str::to_owned).collect::<Vec<_>>(),
            }
        };
        let (mut ours, mut theirs) = (listed(&pulled.ours), listed(&theirs));
        ours.sort();
        theirs.sort();
        assert_eq!(ours, theirs, "podman {args:?}");
    }
    for image in &pulled.images.images {
        let name = pulled.registry.tagged(&image.name);
        let by_digest = pulled.registry.at(&image.name, &image.digest());
        pulled.ours.podman(&["image", "exists", &by_digest]).ok();
        let inspect = |world: &TestNode| world.podman(&["image", "inspect", &name]).json();
        assert_eq!(
            inspect(&pulled.ours),
            inspect(&theirs),
            "podman image inspect {name}"
        );
        let history = |world: &TestNode| {
            world
                .podman(&["history", "--format", "{{.ID}} {{.Size}}", &name])
                .ok()
        };
        assert_eq!(history(&pulled.ours), history(&theirs), "podman history {name}");
    }
    for name in ["zoo/base", "zoo/whiteouts"] {
        let name = pulled.registry.tagged(name);
        let diff = |world: &TestNode| {
            let mut lines: Vec<String> = world
                .podman(&["image", "diff", &name])
                .ok()
                .lines()
                .map(str::to_owned)
                .collect();
            lines.sort();
            lines
        };
        assert_eq!(diff(&pulled.ours), diff(&theirs), "podman image diff {name}");
    }
}

/// Rows 5, 8 and 9: everything that reads tar-splits back, also where podman's own are wrong.
#[test]
fn stock_tools_save_push_and_copy_what_we_stored() {
    needs!(root(), stock(), docker_registry());
    let pulled = Pulled::new(b"no program");
    let elsewhere = DockerRegistry::start();
    let old_podman = pulled.ours.podman_version().starts_with("4.");
    let mut failed = Vec::new();
    let mut note = |answer: crate::stock::Answer| {
        if !answer.is_ok() {
            failed.push(answer.to_string());
        }
    };
    for image in &pulled.images.images {
        let name = pulled.registry.tagged(&image.name);
        for format in ["oci-archive", "docker-archive"] {
            // 4.3.1 cannot put zstd layers into a docker-archive, whichever program stored them (storage-format.md 12.2).
            if format == "docker-archive" && old_podman && image.name == "zoo/compressions" {
                continue;
            }
            let file = pulled.ours.out("saved");
            note(
                pulled
                    .ours
                    .podman(&["save", "--quiet", "--format", format, "-o", text(&file), &name]),
            );
            let _ = fs::remove_file(file);
        }
        let target = format!("{}/{}", elsewhere.host(), image.name);
        note(
            pulled
                .ours
                .podman(&["push", "--quiet", "--tls-verify=false", &name, &target]),
        );

        let stored =
            format!("containers-storage:[overlay@/var/lib/containers/storage+/run/containers/storage]{name}");
        note(pulled.ours.skopeo(&["inspect", &stored]));
        let directory = pulled.ours.out("copied");
        note(pulled.ours.skopeo(&[
            "copy",
            "--quiet",
            &stored,
            &format!("dir:{}", directory.display()),
        ]));
        let _ = fs::remove_dir_all(directory);
    }
    note(pulled.ours.containers_storage(&["images"]));
    note(pulled.ours.containers_storage(&["layers"]));
    check(failed);
}

/// Rows 7 and 8: podman's own pull is not silent either (storage-format.md 12.2), so ours must print no more than it.
#[test]
fn podmans_own_check_finds_no_more_than_in_its_own_pull() {
    needs!(root(), stock());
    let pulled = Pulled::new(b"no program");
    if !pulled.ours.has_system_check() {
        return leave_out("this podman has no `system check`; SPOKE_STOCK_ROOT may name one that has");
    }
    let quick = pulled.ours.podman(&["system", "check", "--quick"]);
    assert!(quick.is_ok() && quick.stdout.is_empty(), "{quick}");
    let theirs = pulled.theirs();
    let known = theirs.complaints_of_system_check();
    // A name that leads through a symbolic link always counts as a modification (storage-format.md 12.2). Podman says it
    // of its own layers too where it can read them; these it cannot.
    let unread = pulled.wrong_in_stock();
    let is_false = |line: &str| {
        let of_unread = unread.iter().any(|id| line.contains(&format!("layer {id}:")));
        of_unread && line.contains("layer content modified") || line.ends_with("occurred:")
    };
    let ours = pulled.ours.complaints_of_system_check();
    let new = ours
        .into_iter()
        .filter(|line| !known.contains(line) && !is_false(line))
        .collect();
    check(new);
}

/// Row 10.
#[test]
fn podman_pulls_again_without_asking_for_a_blob() {
    needs!(root(), stock());
    let pulled = Pulled::new(b"no program");
    pulled.ours.empty_blob_info_cache();
    pulled.registry.clear_log();
    for name in pulled.names() {
        pulled.ours.podman_pull(&name);
    }
    let asked = pulled.registry.layer_requests();
    check(asked.iter().map(ToString::to_string).collect());
    check(inconsistencies(&pulled.ours.graph_root()));
}

/// Row 11.
#[test]
fn podman_removes_all_that_we_stored() {
    needs!(root(), stock());
    let pulled = Pulled::new(b"no program");
    let names = pulled.names();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    pulled.ours.podman(&[&["rmi"], &names[..]].concat()).ok();
    check(inconsistencies(&pulled.ours.graph_root()));
    for directory in ["overlay", "overlay/l", "overlay-layers", "overlay-images"] {
        let left: Vec<String> = fs::read_dir(pulled.ours.graph_root().join(directory))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.len() >= 26)
            .collect();
        assert!(left.is_empty(), "{directory} still holds {left:?}");
    }
}

/// Row 4, as root and as a user who may enter `/` only if it has the mode that the store sets.
#[test]
fn podman_runs_what_we_stored() {
    needs!(root(), stock(), static_program());
    let pulled = Pulled::new(hello::program().unwrap());
    let name = pulled.registry.tagged("zoo/base");
    for user in ["0:0", "1000:1000"] {
        let said = pulled
            .ours
            .podman_run(&name, user, &["/bin/hello", "/etc/motd"])
            .ok();
        let (uid, gid) = user.split_once(':').unwrap();
        assert_eq!(said, format!("hello from uid {uid} gid {gid}\nwelcome"));
    }
}

/// storage-format.md 9.1: while containers run, `overlay` is a mount of its own, and a rename into it fails with EXDEV.
#[test]
fn a_self_mounted_overlay_directory_is_no_obstacle() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let ours = TestNode::trusting(&[registry.host()]);
    ours.bind_overlay();
    let name = registry.tagged("zoo/whiteouts");
    pull(&ours, std::slice::from_ref(&name)).exits(0);
    let theirs = TestNode::trusting(&[registry.host()]);
    theirs.podman_pull(&name);
    check(compare(&ours.graph_root(), &theirs.graph_root(), &[]));
}

/// Without the flag file containers/storage searches every layer for names that begin with `.wh.`; one is
/// enough for it to believe that fuse-overlayfs wrote them, and to note so for ever. A store that we make has the flag.
#[test]
fn podman_does_not_take_our_new_store_for_one_of_fuse_overlayfs() {
    needs!(root(), stock());
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let world = TestNode::trusting(&[registry.host()]);
    pull(&world, &[registry.tagged("zoo/whiteouts")]).exits(0);
    world.podman(&["images"]).ok();
    let flag = fs::read_to_string(world.graph_root().join("overlay/.has-mount-program")).unwrap();
    assert_eq!(flag, "false");
    pull(&world, &[registry.tagged("zoo/links")]).exits(0);
}

/// Podman's layers are used, not fetched or written again; and its records stay as they are.
#[test]
fn what_podman_stored_is_reused() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("zoo/whiteouts");
    world.podman_pull(&name);
    let records = || {
        let read = |path: &str| fs::read(world.graph_root().join(path)).unwrap();
        (
            read("overlay-layers/layers.json"),
            read("overlay-images/images.json"),
        )
    };
    let before = records();
    registry.clear_log();
    let by_digest = registry.at("zoo/whiteouts", &images.image("zoo/whiteouts").digest());
    world.run(&["--image", &by_digest]).exits(0);
    let layers: Vec<String> = registry
        .layer_requests()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert!(layers.is_empty(), "{layers:#?}");
    assert_eq!(before.0, records().0, "layers.json was written");
    world.podman(&["image", "exists", &by_digest]).ok();
    world.podman(&["image", "exists", &name]).ok();
}

fn text(path: &Path) -> &str {
    path.to_str().expect("paths of a world are UTF-8")
}
