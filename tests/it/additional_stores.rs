//! Tests additional image stores: an image that podman put into one counts as present, and nothing in it changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::compare::{inconsistencies, record_array};
use crate::image::release::Release;
use crate::image::samples::sample_images;
use crate::image::{Image, Images};
use crate::needs::{needs, note};
use crate::registry::Registry;
use crate::stock::{Answer, top, tops};
use crate::test_node::{Run, TestNode};
use crate::verify::{layer_ids, snapshot};

/// `small` and `large` share their base; `alias` is `small` under another name.
const IMAGES: &str = r#"
image small docker
layer gzip
dir  /d 0755 0:0
file /d/base 0644 0:0 random=200000 seed=1
layer gzip
file /small 0644 0:0 random=20000 seed=2

image large docker
layer gzip
dir  /d 0755 0:0
file /d/base 0644 0:0 random=200000 seed=1
layer gzip
file /large 0644 0:0 random=20000 seed=3
"#;

/// As the host has it, for podman and in storage.conf.
const MORE: &str = "/var/lib/containers/more";

/// A node whose storage.conf names a store that podman filled with `small`.
struct Scene {
    registry: Registry,
    images: Images,
    world: TestNode,
    small: String,
    large: String,
}

impl Scene {
    fn new() -> Self {
        let (registry, images) = (Registry::start(), Images::of(IMAGES, &[]));
        registry.push_all(&images);
        registry.push("alias", Some("v2"), images.image("small"));
        let world = TestNode::trusting(&[registry.host()]);
        let scene = Self {
            small: registry.tagged("small"),
            large: registry.tagged("large"),
            registry,
            images,
            world,
        };
        scene.fill(&["pull", "--quiet", &scene.small]).ok();
        scene.configure(&format!("additionalimagestores = [\"{MORE}\"]"));
        scene.registry.clear_log();
        scene
    }

    /// podman with the other store as its graph root.
    fn fill(&self, args: &[&str]) -> Answer {
        let roots = ["--root", MORE, "--runroot", "/run/containers/more"];
        self.world.podman(&[&roots, args].concat())
    }

    fn configure(&self, options: &str) {
        let text = format!(
            "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n[storage.options]\n{options}\n"
        );
        self.world.write("etc/containers/storage.conf", &text);
    }

    fn more(&self) -> PathBuf {
        self.world.host().join(&MORE[1..])
    }

    fn small_image(&self) -> &Image {
        self.images.image("small")
    }

    /// Makes a container of the image with the podman of the Debian at `top`, and mounts it; an image of an additional
    /// store alone podman mounts in no other way.
    #[track_caller]
    fn mounts(&self, top: &Path, name: &str) {
        for args in [
            &["create", "--name", "c", name, "/x"][..],
            &["mount", "c"],
            &["rm", "c"],
        ] {
            self.world.podman_of(top, args).ok();
        }
    }

    /// Runs the product; whatever it does, the additional store stays as it was, to the last inode.
    fn untouched(&self, run: impl FnOnce() -> Run) -> Run {
        let before = snapshot(&self.more());
        let run = run();
        assert_eq!(snapshot(&self.more()), before, "{run}");
        run
    }

    /// Paths of blobs that were asked for, as often as they were.
    fn fetched(&self) -> usize {
        self.registry.layer_requests().len()
    }

    /// A run for one image, which its report has in this state.
    #[track_caller]
    fn runs(&self, name: &str, state: &str) -> Run {
        let run = self.untouched(|| self.world.run(&["--image", name])).exits(0);
        assert_eq!(run.images(state), [name], "{run}");
        run
    }

    fn reason(run: &Run) -> &str {
        run.report["images"][0]["reason"].as_str().unwrap_or_default()
    }

    /// Names of the graph root's own records.
    fn own_names(&self) -> Vec<String> {
        let records = record_array(&self.world.graph_root().join("overlay-images/images.json"));
        let names = |record: &serde_json::Map<String, serde_json::Value>| record["names"].clone();
        let names = records
            .iter()
            .flat_map(|record| names(record).as_array().cloned().unwrap_or_default());
        names
            .map(|name| name.as_str().unwrap_or_default().to_owned())
            .collect()
    }
}

/// Its record cannot get the name by which CRI-O would pin it.
#[test]
fn images_in_an_additional_store_do_not_count_as_pinned() {
    needs!(root(), stock());
    let scene = Scene::new();
    let pins = scene.world.out("pins.yaml");
    let args = ["--image", &scene.small, "--image", &scene.large];
    let args = [&args[..], &["--pin", pins.to_str().unwrap()]].concat();
    let run = scene.untouched(|| scene.world.run(&args)).exits(0);
    let small = scene.registry.at("small", &scene.small_image().digest());
    run.says("1 image pinned").says(&format!(
        "`{small}` is not pinned: it is in the additional image store"
    ));
}

#[test]
fn an_image_in_an_additional_store_is_present_and_nothing_is_fetched() {
    needs!(root(), stock());
    let scene = Scene::new();
    // Like a read-only file system: every write would fail.
    let more = scene.more();
    rustix::mount::mount_bind(&more, &more).unwrap();
    let read_only = rustix::mount::MountFlags::BIND | rustix::mount::MountFlags::RDONLY;
    rustix::mount::mount_remount(&more, read_only, "").unwrap();
    let by_digest = scene.registry.at("small", &scene.small_image().digest());
    for name in [&scene.small, &by_digest] {
        for verb in ["run", "plan", "verify"] {
            let run = scene.untouched(|| scene.world.start(verb, &["--image", name]).wait());
            let run = run.exits(0);
            assert_eq!(run.images("present"), [name.as_str()], "{verb}: {run}");
            let reason = Scene::reason(&run);
            assert!(
                reason.contains("in the additional image store") && reason.contains("/more`"),
                "{run}"
            );
            assert_eq!(run.total("bytesFetched"), 0, "{run}");
        }
        // As podman sees it, through the same configuration.
        scene.world.podman(&["image", "exists", name]).ok();
    }
    assert_eq!(scene.fetched(), 0);
    assert!(
        !scene
            .world
            .graph_root()
            .join("overlay-images/images.json")
            .exists()
            || scene.own_names().is_empty()
    );
    let listed = scene
        .world
        .podman(&["images", "--format", "{{.Repository}} {{.ReadOnly}}"])
        .ok();
    assert!(listed.contains("small true"), "{listed}");
}

/// crio.conf's way to name one, in each of the spellings.
#[test]
fn a_driver_option_of_crio_conf_names_an_additional_store_too() {
    needs!(root(), stock());
    let scene = Scene::new();
    scene.configure("");
    for option in ["overlay.imagestore", "additionalimagestore", ".imagestore"] {
        let text = format!("[crio]\nstorage_option = [\"{option}={MORE}\"]\n");
        scene.world.write("etc/crio/crio.conf.d/10-store", &text);
        scene.runs(&scene.small, "present");
    }
    assert_eq!(scene.fetched(), 0);
}

/// podman builds on the base in the additional store; the program copies it, and neither downloads it.
#[test]
fn layers_of_an_additional_store_are_copied_and_not_fetched() {
    needs!(root(), stock());
    for top in tops() {
        let scene = Scene::new();
        let pull = ["pull", "--quiet", &scene.large];
        scene.world.podman_of(&top, &pull).ok();
        let theirs = scene.fetched();
        note(&format!(
            "podman of `{}` fetched {theirs} of 2 layers",
            top.display()
        ));
        assert_eq!(theirs, 1);
        // Its base is only in the other store, and still it is complete.
        let base = &layer_ids(scene.small_image())[0];
        assert!(!scene.world.graph_root().join("overlay").join(base).exists());
        scene.registry.clear_log();
        for verb in ["run", "verify"] {
            let run = scene.untouched(|| scene.world.start(verb, &["--image", &scene.large]).wait());
            assert_eq!(run.exits(0).report["warnings"], serde_json::json!([]), "{verb}");
        }
        assert_eq!(scene.fetched(), 0);
        // What the product pulls stands on its own.
        scene.world.podman_of(&top, &["rmi", &scene.large]).ok();
        scene.runs(&scene.large, "pulled");
        assert_eq!(scene.fetched(), 1);
        scene
            .world
            .verify(&["--image", &scene.large, "--image", &scene.small])
            .exits(0);
        let wrong = inconsistencies(&scene.world.graph_root());
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        for name in [&scene.large, &scene.small] {
            scene.mounts(&top, name);
        }
        let archive = scene.world.out("large.tar");
        let save = [
            "save",
            "--quiet",
            "--format",
            "oci-archive",
            "-o",
            archive.to_str().unwrap(),
            &scene.large,
        ];
        scene.world.podman_of(&top, &save).ok();
    }
}

/// A record in the graph root hides the names that the image has in the additional store.
#[test]
fn a_name_in_an_additional_store_is_not_lost_when_the_image_gets_another() {
    needs!(root(), stock());
    let scene = Scene::new();
    let alias = format!("{}/alias:v2", scene.registry.host());
    scene.runs(&alias, "pulled");
    assert_eq!(scene.fetched(), 0);
    for name in [&alias, &scene.small] {
        scene.world.podman(&["image", "exists", name]).ok();
        scene.runs(name, "present");
    }
    let mut names = scene.own_names();
    names.sort();
    assert_eq!(names, [alias, scene.small.clone()]);
}

/// Whatever the record of the other store is; podman resolves a duplicate name to its own image.
#[test]
fn a_name_that_an_additional_store_has_twice_is_taken_over_once() {
    needs!(root(), stock());
    let scene = Scene::new();
    let images = scene.more().join("overlay-images/images.json");
    let text = fs::read_to_string(&images).unwrap();
    let name = format!("\"{}\"", scene.small);
    let twice = text.replacen(&name, &format!("{name},{name}"), 1);
    assert_ne!(text, twice);
    fs::write(&images, twice).unwrap();
    let alias = format!("{}/alias:v2", scene.registry.host());
    scene.untouched(|| scene.world.run(&["--image", &alias])).exits(0);
    let mut names = scene.own_names();
    names.sort();
    assert_eq!(names, [alias, scene.small.clone()]);
}

#[test]
fn damage_in_an_additional_store_is_named_and_a_whole_image_pulled_beside_it() {
    needs!(root(), stock());
    let scene = Scene::new();
    let base = &layer_ids(scene.small_image())[0];
    let file = scene.more().join("overlay").join(base).join("diff/d/base");
    let mut bytes = fs::read(&file).unwrap();
    bytes[0] ^= 1;
    fs::write(&file, bytes).unwrap();
    let image = ["--image", &scene.small];
    let found = scene
        .untouched(|| scene.world.verify(&image))
        .exits(7)
        .says("/d/base");
    assert!(
        Scene::reason(&found).contains("of the additional image store `"),
        "{found}"
    );
    // podman built on it; the program cannot repair that.
    scene.world.podman_pull(&scene.large);
    let stuck = ["--repair", "--image", &scene.large];
    scene
        .world
        .verify(&["--image", &scene.large])
        .exits(7)
        .says("/d/base");
    scene
        .untouched(|| scene.world.verify(&stuck))
        .exits(7)
        .says("layers of the graph root are built on it");
    scene.registry.clear_log();
    let mended = scene
        .untouched(|| scene.world.verify(&["--repair", "--image", &scene.small]))
        .exits(0);
    assert_eq!(mended.images("pulled"), [&scene.small], "{mended}");
    assert_eq!(scene.fetched(), 1, "only the damaged one");
    scene.world.verify(&image).exits(0);
    scene.mounts(&top(), &scene.small);
    // The other image still runs on the damaged one, though there is a sound one now.
    scene
        .world
        .verify(&["--image", &scene.large])
        .exits(7)
        .says("/d/base");
    scene.world.podman(&["rmi", &scene.large]).ok();
    scene.world.run(&["--image", &scene.large]).exits(0);
    scene
        .world
        .verify(&["--image", &scene.large, "--image", &scene.small])
        .exits(0);
}

/// What CRI-O could not mount is not there.
#[test]
fn an_image_that_is_not_whole_in_an_additional_store_is_pulled() {
    needs!(root(), stock());
    for script in [
        "rm -r overlay/$BASE",
        "rm overlay/l/$(cat overlay/$BASE/link)",
        "rm overlay-images/*/manifest",
        "rm overlay-images/images.lock",
        "rm overlay-layers/layers.lock",
    ] {
        let scene = Scene::new();
        let status = Command::new("sh")
            .args(["-euc", script])
            .current_dir(scene.more())
            .env("BASE", &layer_ids(scene.small_image())[0])
            .status();
        assert!(status.unwrap().success());
        scene.world.plan(&["--image", &scene.small]).exits(0);
        let run = scene.runs(&scene.small, "pulled");
        if script.contains(".lock") {
            run.says("are ignored");
        }
        scene.world.verify(&["--image", &scene.small]).exits(0);
        scene.mounts(&top(), &scene.small);
    }
}

/// podman refuses each of these too.
#[test]
fn an_additional_store_that_cannot_be_read_is_refused() {
    needs!(root(), stock());
    let scene = Scene::new();
    let images = scene.more().join("overlay-images/images.json");
    let whole = fs::read(&images).unwrap();
    fs::write(scene.more().join("file"), "").unwrap();
    for (store, text, says) in [
        (
            "/var/lib/containers/none",
            &whole[..],
            "No such file or directory",
        ),
        ("/var/lib/containers/more/file", &whole, "not a directory"),
        ("more", &whole, "must be absolute"),
        (MORE, &whole[..whole.len() / 2], "images.json"),
    ] {
        fs::write(&images, text).unwrap();
        scene.configure(&format!("additionalimagestores = [\"{store}\"]"));
        let refused = scene.world.podman(&["images"]);
        assert!(!refused.is_ok(), "{store}: {refused}");
        let run = scene.untouched(|| scene.world.run(&["--image", &scene.large]));
        run.exits(7).says(says);
    }
    assert_eq!(scene.fetched(), 0);
}

/// The list by which it is found comes along.
#[test]
fn a_damaged_image_that_a_list_names_is_pulled_with_the_list() {
    needs!(root(), stock());
    let (registry, images) = (Registry::start(), sample_images(b"no program"));
    registry.push_all(&images);
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.at("zoo/multi", &images.list("zoo/multi").digest());
    let more = world.host().join(&MORE[1..]);
    let fill = [
        "--root",
        MORE,
        "--runroot",
        "/run/containers/more",
        "pull",
        "--quiet",
        &name,
    ];
    world.podman(&fill).ok();
    world.write(
        "etc/crio/crio.conf",
        &format!("[crio]\nstorage_option = [\"overlay.imagestore={MORE}\"]\n"),
    );
    world.verify(&["--image", &name]).exits(0);
    let damage = "chmod 0600 overlay/*/diff/arch";
    let status = Command::new("sh")
        .args(["-euc", damage])
        .current_dir(&more)
        .status();
    assert!(status.unwrap().success());
    world
        .verify(&["--image", &name])
        .exits(7)
        .says("`/arch`: its mode is 0600");
    registry.clear_log();
    let run = world.verify(&["--repair", "--image", &name]).exits(0);
    assert_eq!(run.images("pulled"), [&name], "{run}");
    // Only its attributes are damaged: its tar is still there.
    assert!(registry.layer_requests().is_empty());
    world.verify(&["--image", &name]).exits(0);
    world.podman(&["image", "exists", &name]).ok();
}

/// A release image is read in place, and the images that it names may be there as well.
#[test]
fn a_release_in_an_additional_store_is_read_there() {
    needs!(root(), stock());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 20_000);
    registry.push_release(&release);
    let world = TestNode::trusting(&[registry.host()]);
    let component = release.component(release.components[0].0);
    for name in [&release.by_digest(), &component] {
        let fill = [
            "--root",
            MORE,
            "--runroot",
            "/run/containers/more",
            "pull",
            "--quiet",
            name,
        ];
        world.podman(&fill).ok();
    }
    // An image of two stores is that of the first; an empty store is no obstacle.
    let other = world.host().join("var/lib/containers/other");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(world.host().join(&MORE[1..]))
        .arg(&other)
        .status();
    assert!(copied.unwrap().success());
    fs::create_dir(world.host().join("var/lib/containers/empty")).unwrap();
    world.write(
        "etc/containers/storage.conf",
        &format!(
            "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\n\
             graphroot = \"/var/lib/containers/storage\"\n[storage.options]\n\
             additionalimagestores = [\"/var/lib/containers/empty\", \"{MORE}\", \"/var/lib/containers/other\"]\n"
        ),
    );
    registry.clear_log();
    let run = world.run(&["--platform-image", &release.by_digest()]).exits(0);
    let mut expected = [release.by_digest(), component];
    expected.sort();
    assert_eq!(run.images("present"), expected, "{run}");
    let run = run.says("in the additional image store `").says("/more`");
    assert!(!run.report.to_string().contains("/other`"), "{run}");
    assert_eq!(run.images("pulled").len(), release.components.len() - 1, "{run}");
    world.verify(&["--platform-image", &release.by_digest()]).exits(0);
    let wrong = inconsistencies(&world.graph_root());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The components share two layers, which are copied from the additional store.
    let blobs: std::collections::BTreeSet<String> = registry
        .layer_requests()
        .into_iter()
        .map(|request| request.path)
        .collect();
    let shared = release.components[0].1.layers.iter().take(2);
    for layer in shared {
        assert!(
            !blobs.iter().any(|path| path.ends_with(&layer.digest)),
            "{blobs:?}"
        );
    }
}

/// The driver takes a layer's directory from the graph root if there is one, though nobody has a record of it: a power loss
/// leaves such, and podman then makes no container of the image.
#[test]
fn a_directory_without_a_record_hides_the_layer_of_an_additional_store() {
    needs!(root(), stock());
    for layer in 0..2 {
        let scene = Scene::new();
        // For the directories of the graph root.
        scene.world.podman(&["images"]).ok();
        let id = &layer_ids(scene.small_image())[layer];
        fs::create_dir_all(scene.world.graph_root().join("overlay").join(id).join("diff")).unwrap();
        let created = scene.world.podman(&["create", "--name", "c", &scene.small, "/x"]);
        // The links of the top layer lead to the one below.
        assert_eq!(created.is_ok(), layer == 0, "{created}");
        scene.world.podman(&["rm", "--ignore", "c"]).ok();
        let image = ["--image", &scene.small[..]];
        scene
            .untouched(|| scene.world.verify(&image))
            .says("cannot be mounted");
        scene.runs(&scene.small, "pulled");
        assert_eq!(scene.fetched(), 0);
        scene.world.verify(&image).exits(0);
        scene.mounts(&top(), &scene.small);
    }
}

/// As where the other store's server is gone: what cannot be read there is fetched.
#[test]
fn a_layer_that_cannot_be_read_in_an_additional_store_is_fetched() {
    needs!(root(), stock());
    let scene = Scene::new();
    let base = &layer_ids(scene.small_image())[0];
    let tar_split = scene.more().join(format!("overlay-layers/{base}.tar-split.gz"));
    fs::remove_file(&tar_split).unwrap();
    std::os::unix::fs::symlink(&tar_split, &tar_split).unwrap();
    scene.runs(&scene.large, "pulled");
    assert_eq!(scene.fetched(), 2);
}

/// podman built on a layer there, by the name that it has there; without the store it makes no container of the image.
#[test]
fn an_image_that_was_built_on_a_store_which_is_gone_is_no_success() {
    needs!(root(), stock());
    let scene = Scene::new();
    scene.world.podman_pull(&scene.large);
    scene.configure("");
    let image = ["--image", &scene.large[..]];
    let create = ["create", "--name", "c", &scene.large[..], "/x"];
    assert!(!scene.world.podman(&create).is_ok());
    scene.world.run(&image).exits(7).says("`lower` names `l/");
    scene
        .world
        .verify(&["--repair", "--image", &scene.large])
        .exits(0);
    scene.world.verify(&image).exits(0);
    scene.world.run(&image).exits(0);
    scene.mounts(&top(), &scene.large);
}
