//! Exports a release with operators, and reads the result with skopeo, tar and the product itself.

mod interruption;
mod site;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::delta_creation::TinyRelease;
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{TestNode, product};
use site::{Site, files, images, json, path, whole_blobs};

#[test]
fn an_export_has_the_images_of_the_plan_and_skopeo_reads_them() {
    needs!(root(), stock());
    let site = Site::new();
    let output = site.output("export");
    let run = site.export(&output, &[]).exits(0);
    let exported = images(&output);

    let plan = site.machine.plan(&["-o", "json"]).exits(0);
    let plan: Value = serde_json::from_str(&plan.stdout).expect("a plan in JSON");
    let planned = plan["images"].as_array().expect("images").iter();
    let planned: BTreeSet<&str> = planned.filter_map(|image| image["name"].as_str()).collect();
    let names: BTreeSet<&str> = exported.keys().map(String::as_str).collect();
    assert_eq!(names, planned, "{run}");

    // containers/image finds no manifest of Docker's by its name in a layout (`oci/layout/oci_transport.go`).
    let index = json(&output.join("index.json"));
    let entries = index["manifests"].as_array().expect("manifests");
    let read = site.machine.out("read");
    let mut read_by_skopeo = 0;
    for (reference, digest) in &exported {
        let named = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == **reference;
        let entry = entries.iter().find(named).expect("an entry with the reference");
        assert_eq!(entry["digest"], **digest);
        assert!(whole_blobs(&output).contains(digest), "{reference}");
        if entry["mediaType"] != "application/vnd.oci.image.manifest.v1+json" {
            continue;
        }
        let layout = format!("oci:{}:{reference}", path(&output));
        let inspected = site.machine.skopeo(&["inspect", &layout]).json();
        assert_eq!(inspected["Digest"].as_str(), Some(digest.as_str()), "{reference}");
        let copied = format!("dir:{}", path(&read));
        let args = ["copy", "--quiet", "--preserve-digests", &layout, &copied];
        site.machine.skopeo(&args).ok();
        let manifest = fs::read(read.join("manifest.json")).expect("a manifest");
        assert_eq!(crate::image::sha256(&manifest), *digest, "{reference}");
        fs::remove_dir_all(&read).expect("removing a copy");
        read_by_skopeo += 1;
    }
    assert_eq!(read_by_skopeo, 1, "{index:#}");
    let document = json(&output.join("spoke-precache.json"));
    assert_eq!(document["version"], 1);
    assert_eq!(document["isComplete"], true);
    assert_eq!(document["release"], "4.99.0");
    let left = fs::read_dir(site.machine.out("work")).expect("the work directory");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["spool"], "no unpacked files are left");
}

#[test]
fn a_node_runs_from_an_export_without_any_request() {
    needs!(root());
    let site = Site::new();
    let output = site.output("export");
    site.export(&output, &[]).exits(0);
    let node = TestNode::trusting(&[site.registry.host()]);
    let spec = output.join("version-spec.yaml");
    site.registry.clear_log();
    let args = ["--config", path(&spec), "--blobs-from", path(&output)];
    let run = node.run(&args).exits(0);
    let requests = site.registry.log();
    assert!(requests.is_empty(), "{requests:?}: {run}");
    assert_eq!(run.images("pulled").len(), images(&output).len(), "{run}");
    assert_eq!(run.images("excluded").len(), 1, "{run}");
}

#[test]
fn a_tar_has_the_files_of_a_directory() {
    let site = Site::new();
    let (directory, tar) = (site.output("export"), site.output("export.tar"));
    site.export(&directory, &[]).exits(0);
    let first = site.export(&tar, &[]).exits(0);
    let unpacked = site.output("unpacked");
    let unpack = || {
        fs::create_dir(&unpacked).expect("a new directory");
        let tar = Command::new("tar")
            .args(["-xf", path(&tar), "-C", path(&unpacked)])
            .status();
        assert!(tar.expect("tar can be started").success());
        let found = files(&unpacked);
        fs::remove_dir_all(&unpacked).expect("removing what was unpacked");
        found
    };
    let (expected, found) = (files(&directory), unpack());
    let names = |files: &std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>| -> Vec<_> {
        files.keys().cloned().collect()
    };
    assert_eq!(names(&found), names(&expected), "{first}");
    assert!(found == expected, "the same content");

    site.registry.clear_log();
    let again = site.export(&tar, &[]).exits(0);
    let blobs = site.registry.log();
    let blobs: Vec<_> = blobs
        .iter()
        .filter(|access| access.path.contains("/blobs/"))
        .collect();
    assert!(blobs.is_empty(), "{blobs:?}: {again}");
    assert!(unpack() == expected, "{again}");

    // A byte of a blob changes on the medium.
    let bytes = fs::read(&tar).expect("the tar");
    let layer = &site.release.components[0].1.layers[0];
    let blob = expected
        [&std::path::PathBuf::from(format!("blobs/sha256/{}", &layer.digest["sha256:".len()..]))]
        .clone();
    let at = bytes
        .windows(blob.len())
        .position(|window| window == blob)
        .expect("the blob");
    let mut damaged = bytes.clone();
    damaged[at + 1000] ^= 1;
    fs::write(&tar, damaged).expect("writing the tar");
    site.registry.clear_log();
    let repaired = site.export(&tar, &[]).exits(0).says("is damaged");
    assert_eq!(site.registry.requests_of(&layer.digest), 1, "{repaired}");
    assert_eq!(site.registry.layer_requests().len(), 1, "{repaired}");
    let mut found = unpack();
    found.retain(|path, _| !path.starts_with("damaged"));
    assert!(found == expected, "{repaired}");
}

/// The user may not look into root's directory, where CRI-O and podman of a node have settings.
#[test]
fn another_user_than_root_exports_with_settings_of_their_own() {
    needs!(root());
    let site = Site::new();
    let home = site.output("home");
    let settings = home.join(".config/containers");
    fs::create_dir_all(&settings).expect("a directory");
    let mirror = format!(
        "[[registry]]\nlocation = \"far.example\"\n[[registry.mirror]]\nlocation = \"{}\"\ninsecure = true\n",
        site.registry.host()
    );
    fs::write(settings.join("registries.conf"), mirror).expect("a file");
    for directory in [
        &site.output(""),
        site.machine.host().parent().expect("a parent"),
        &home,
    ] {
        fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("permissions");
    }
    let (output, work) = (home.join("export"), home.join("work"));
    let run = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(product())
        .args(["export", "--image", "far.example/tools/extra:latest", "--output"])
        .args([output.as_path(), Path::new("--work-dir"), &work])
        .env("HOME", &home)
        .output()
        .expect("setpriv can be started");
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{said}");
    let exported = images(&output);
    assert!(
        exported.contains_key("far.example/tools/extra:latest"),
        "{exported:?}"
    );
}

#[test]
fn what_the_nodes_have_of_another_release_is_left_out() {
    let registry = Registry::start();
    let machine = TestNode::trusting(&[registry.host()]);
    let releases = [0, 1].map(|version| TinyRelease::build(&registry.host(), version));
    releases.iter().for_each(|release| release.push(&registry));
    let [old, new] = [0, 1].map(|version| releases[version].reference(&registry));
    let (output, work) = (machine.out("export"), machine.out("work"));
    let args = [
        "--platform-image",
        &new,
        "--since",
        &old,
        "--output",
        path(&output),
    ];
    let args = [
        &args[..],
        &["--work-dir", path(&work), "--platform", "linux/amd64"],
    ]
    .concat();
    let run = machine.start("export", &args).wait().exits(0);
    let of = |release: &TinyRelease| -> BTreeSet<String> {
        let images = release.components.iter().map(|(_, image)| image);
        let layers = images.chain([&release.release]).flat_map(|image| &image.layers);
        layers.map(|layer| layer.digest.clone()).collect()
    };
    let (known, wanted) = (of(&releases[0]), of(&releases[1]));
    let found = whole_blobs(&output);
    let layers: BTreeSet<String> = found.intersection(&wanted).cloned().collect();
    assert_eq!(layers, wanted.difference(&known).cloned().collect(), "{run}");
    assert!(known.is_disjoint(&found), "{run}");
    for (_, image) in &releases[1].components {
        assert!(found.contains(&image.digest()), "every manifest: {run}");
        assert!(
            found.contains(&format!("sha256:{}", image.id())),
            "every config: {run}"
        );
    }
    let document = json(&output.join("spoke-precache.json"));
    assert_eq!(document["since"]["version"], "4.99.0");
    assert_eq!(document["since"]["reference"], old.as_str());
    assert!(run.total("bytesLeftOut") > 0, "{run}");
    let kept = "the old release's payload was read, and stays nowhere";
    assert_eq!(
        fs::read_dir(work.join("spool")).expect("the spool").count(),
        1,
        "{kept}: {run}"
    );
}

#[test]
fn an_unavailable_image_fails_alone() {
    let site = Site::new();
    let (name, missing) = &site.release.components[1];
    let manifest = format!("manifests/{}", missing.digest());
    site.registry
        .fault(Fault::on(&manifest).status(404).times(u64::MAX));
    let output = site.output("export");
    let run = site.export(&output, &[]).exits(8);
    assert_eq!(run.total("failed"), 1, "{run}");
    let document = json(&output.join("spoke-precache.json"));
    assert_eq!(document["isComplete"], false, "{run}");
    let reference = site.release.component(name);
    assert!(!images(&output).contains_key(&reference), "{run}");
    assert!(run.stdout.contains(&reference), "{run}");
    site.registry.end_faults();
    site.registry.clear_log();
    let again = site.export(&output, &[]).exits(0);
    assert!(images(&output).contains_key(&reference), "{again}");
    let own = missing
        .layers
        .iter()
        .filter(|layer| site.registry.requests_of(&layer.digest) > 0);
    let requested = site.registry.layer_requests().len();
    assert_eq!(
        own.count(),
        requested,
        "only its own layers are downloaded: {again}"
    );
}

#[test]
fn an_output_that_is_something_else_is_refused_and_stays() {
    let site = Site::new();
    let text = site.output("notes.tar");
    fs::write(&text, "notes").expect("a file");
    site.export(&text, &[]).exits(7).says("is not a tar of an export");
    assert_eq!(fs::read(&text).expect("a file"), b"notes");
    let directory = site.output("photos");
    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("photo"), "").expect("a file");
    site.export(&directory, &[]).exits(7).says("is not empty");
    assert_eq!(files(&directory).len(), 1);
    // What a system creates at the top of a medium is no obstacle.
    let medium = site.output("medium");
    fs::create_dir_all(medium.join("lost+found")).expect("a directory");
    site.export(&medium, &[]).exits(0);
}
