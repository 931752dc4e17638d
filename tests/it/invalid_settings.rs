//! Tests invalid flags, version specs and host files: the exit code, the message, and the step that fails.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::{Auth, Registry};
use crate::test_node::{Run, TestNode, product};

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

/// With variables of the environment, as `NAME=value`.
fn run_with(world: &TestNode, variables: &[&str], args: &[&str]) -> Run {
    let wrapper = [&["env"], variables].concat();
    world.start_under(&wrapper, "run", args).wait()
}

/// The condition of a step: status, reason.
#[track_caller]
fn condition<'a>(run: &'a Run, step: &str) -> (&'a str, &'a str) {
    let conditions = run.report["conditions"].as_array();
    let condition = conditions.and_then(|all| all.iter().find(|it| it["type"] == step));
    let condition = condition.unwrap_or_else(|| panic!("no condition {step}: {run}"));
    let word = |key: &str| condition[key].as_str().unwrap_or_default();
    (word("status"), word("reason"))
}

#[test]
fn talms_variables_mean_what_they_mean_to_talm() {
    needs!(root());
    let registry = registry_with_samples();
    registry.require(Auth::basic("me", "right"));
    let world = TestNode::trusting(&[registry.host()]);
    let image = ["--image", &registry.tagged("zoo/base")];
    for (variable, code, says) in [
        (
            "MAX_PULL_THREADS=0",
            2,
            "`MAX_PULL_THREADS` must be a number from 1 to 65535: `0`",
        ),
        ("MAX_PULL_THREADS=many", 2, "`many`"),
        (
            "PRE_CACHE_LOG_LEVEL=loud",
            2,
            "`PRE_CACHE_LOG_LEVEL` must be 0 (errors)",
        ),
        // A host path, below the host root.
        (
            "pull_secret_path=/root/none.json",
            4,
            "host/root/none.json`: No such file",
        ),
    ] {
        let run = run_with(&world, &[variable], &image).exits(code).says(says);
        let reason = if code == 4 {
            ("Resolve", "CredentialsRefused")
        } else {
            ("Spec", "InvalidSpec")
        };
        assert_eq!(condition(&run, reason.0), ("False", reason.1), "{run}");
    }
    world.pull_secret(&registry.host(), "me:right");
    world.write("etc/secret.json", &secret(&world));
    world.write("var/lib/kubelet/config.json", "{}");
    let variables = [
        "pull_secret_path=/etc/secret.json",
        "MAX_PULL_THREADS= 3 ",
        "PRE_CACHE_LOG_LEVEL=7",
    ];
    run_with(&world, &variables, &image).exits(0).says("DEBUG");
}

fn secret(world: &TestNode) -> String {
    fs::read_to_string(world.host().join("var/lib/kubelet/config.json")).unwrap()
}

#[test]
fn a_pull_secret_is_read_from_a_pipe() {
    needs!(root());
    let registry = registry_with_samples();
    registry.require(Auth::basic("me", "right"));
    let world = TestNode::trusting(&[registry.host()]);
    world.pull_secret(&registry.host(), "me:right");
    world.write("etc/secret.json", &secret(&world));
    world.write("var/lib/kubelet/config.json", "{}");
    let path = world.host().join("etc/secret.json");
    let script = format!("cat {} | \"$@\" --authfile /dev/stdin", path.display());
    let image = ["--image", &registry.tagged("zoo/base")];
    world
        .start_under(&["sh", "-c", &script, "sh"], "run", &image)
        .wait()
        .exits(0);
}

/// What is broken, the code, the step that it breaks, and what the message names.
#[test]
fn a_broken_host_file_is_named_under_the_step_that_needs_it() {
    needs!(root());
    let place = "etc/containers/registries.conf";
    for (path, text, step, says) in [
        (
            "etc/containers/storage.conf",
            "bro[ken",
            "Store",
            "storage.conf`: not TOML",
        ),
        (place, "bro[ken", "Resolve", "registries.conf`: TOML parse error"),
        (
            "etc/containers/registries.conf.d/x.conf",
            "[[registry]]\nlocation = 5",
            "Resolve",
            "x.conf",
        ),
    ] {
        let world = TestNode::trusting(&[]);
        world.write(path, text);
        let run = world.run(&["--image", "127.0.0.1:1/a:1"]).exits(7).says(says);
        assert_eq!(condition(&run, step), ("False", "StoreUnusable"), "{run}");
    }
    let world = TestNode::trusting(&[]);
    fs::write(world.host().join(place), b"\xff").unwrap();
    world
        .run(&["--image", "127.0.0.1:1/a:1"])
        .exits(7)
        .says("cannot read the host's");
    // A file that a flag names must exist.
    let missing = [
        "--image",
        "127.0.0.1:1/a:1",
        "--registries-conf",
        "/nonexistent/r.conf",
    ];
    world.run(&missing).exits(2).says("`/nonexistent/r.conf`");
    let missing = [
        "--image",
        "127.0.0.1:1/a:1",
        "--authfile",
        "/nonexistent/auth.json",
    ];
    let world = TestNode::trusting(&[]);
    world.run(&missing).exits(4).says("`/nonexistent/auth.json`");
    world.write("var/lib/kubelet/config.json", "{\n  nonsense");
    let run = world.run(&["--image", "127.0.0.1:1/a:1"]).exits(4).says("line 2");
    assert_eq!(
        condition(&run, "Resolve"),
        ("False", "CredentialsRefused"),
        "{run}"
    );
}

#[test]
fn a_version_spec_that_is_not_there_is_named() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    let (empty, piped) = (world.out("empty"), world.out("piped"));
    fs::create_dir(&empty).unwrap();
    fs::create_dir(&piped).unwrap();
    let pipe = piped.join("platform.image");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    for (config, says) in [
        (world.out("none"), "No such file or directory"),
        (empty, "the directory contains no keys"),
        (piped, "the directory contains no keys"),
    ] {
        let run = world.run(&["--config", config.to_str().unwrap()]).exits(2);
        let run = run.says("there is no version spec in").says(says);
        assert_eq!(condition(&run, "Spec"), ("False", "InvalidSpec"), "{run}");
    }
}

/// Hours of pulling are no time to find out.
#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_is_asked() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let run = |report: &str| {
        let mut command = Command::new(product());
        command.args(["run", "--image", &registry.tagged("zoo/base"), "--report", report]);
        command.arg("--host-root").arg(world.host());
        command
            .args(["--image-gc-high-threshold", "100"])
            .output()
            .unwrap()
    };
    let directory = world.out("directory");
    fs::create_dir(&directory).unwrap();
    for report in [
        "/nonexistent/report.json",
        "/proc/report.json",
        directory.to_str().unwrap(),
    ] {
        let ended = run(report);
        let log = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{report}: {log}");
        assert!(log.contains("cannot write the report"), "{report}: {log}");
        assert!(registry.log().is_empty(), "{report}: it asked the registry");
    }
    let good = world.out("report.json");
    let ended = run(good.to_str().unwrap());
    assert_eq!(
        ended.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    // The program has no umask.
    assert_eq!(fs::metadata(&good).unwrap().permissions().mode() & 0o777, 0o644);
    let run_root = world.host().join("var/lib/containers/spoke-precache");
    assert_eq!(
        fs::metadata(run_root).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn without_root_it_fails_with_a_message_and_writes_nothing() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    for path in [world.host().parent().unwrap().to_path_buf(), world.out("")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let nobody = ["setpriv", "--reuid=65534", "--clear-groups"];
    let run = world
        .start_under(&nobody, "run", &["--image", "127.0.0.1:1/a:1"])
        .wait()
        .exits(7);
    run.says("only root can write a store, and this is user 65534")
        .says("hint: run as root");
    assert!(!world.graph_root().exists());
}

/// Images in a directory that CRI-O does not use are on no node.
#[test]
fn a_mistyped_host_root_graph_root_or_spool_is_refused_and_not_made() {
    needs!(root());
    let registry = registry_with_samples();
    let image = registry.tagged("zoo/base");
    for (what, flag, place) in [
        ("host root", "--host-root", "hots"),
        ("graph root", "--host-root", "empty"),
        ("graph root", "--graph-root", "host/var/lib/contianers/storage"),
        ("graph root", "--graph-root", "host/var/lib/kubelet/storage"),
        ("spool", "--spool", "host/var/lib/continers/spool"),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        let top = world.host().parent().unwrap().to_owned();
        fs::create_dir(top.join("empty")).unwrap();
        let path = top.join(place);
        let before = names(&top);
        for verb in ["run", "plan", "verify"] {
            let mut command = Command::new(product());
            command.args([verb, "--image", &image]);
            command.args(["--image-gc-high-threshold", "100"]);
            if flag != "--host-root" {
                command.arg("--host-root").arg(world.host());
            }
            let output = command.arg(flag).arg(&path).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "{verb} {flag} {place}: {said}");
            let expected = format!("there is no {what} `{}", path.display());
            assert!(said.contains(&expected) && said.contains("--create"), "{said}");
            assert_eq!(names(&top), before, "{verb} {flag} {place}");
        }
    }
}

#[test]
fn create_makes_what_is_missing() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let new = world.host().join("new/graph/root");
    let spool = world.host().join("other/new/spool");
    let args = [
        "--image",
        &registry.tagged("zoo/base"),
        "--spool",
        spool.to_str().unwrap(),
    ];
    let args = [&args[..], &["--graph-root", new.to_str().unwrap()]].concat();
    world.run(&args).exits(2);
    world.run(&[&args[..], &["--create"]].concat()).exits(0);
    let images = new.join("overlay-images/images.json");
    for path in [images.as_path(), &spool] {
        assert!(path.exists(), "`{}` is missing", path.display());
    }
    // And is no longer needed.
    world.verify(&args).exits(0);
    let world = TestNode::trusting(&[registry.host()]);
    run_with(&world, &["SPOKE_PRECACHE_CREATE=true"], &args).exits(0);
}

/// As TALM's Job finds it: below `/var/lib/containers`, which the node has from its start.
#[test]
fn a_fresh_node_needs_no_create() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    for place in [None, Some("var/lib/containers/other")] {
        let place = place.map(|place| world.host().join(place));
        let flags: Vec<&str> = place
            .iter()
            .flat_map(|it| ["--graph-root", it.to_str().unwrap()])
            .collect();
        world
            .run(&[&["--image", &registry.tagged("zoo/base")][..], &flags].concat())
            .exits(0);
    }
}

/// Every name below a directory.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        names.push(entry.path());
        names.extend(self::names(&entry.path()));
    }
    names.sort();
    names
}
