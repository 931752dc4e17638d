//! Starts the program by each name as a container runtime does: TALM's bash and script, and its own name.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use clap::Parser as _;
use rustix::process::Signal;
use spoke_precache::cli::{Cli, Command as SubCommand};
use spoke_precache::cluster::ClusterInfo;
use spoke_precache::entrypoint::Entrypoint;
use spoke_precache::settings;
use spoke_precache::spool::Spool;

use crate::image::samples::sample_images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{TestNode, product};

const SCRIPT: &str = "/opt/precache/precache.sh";

/// This invalid variable makes `run` fail before it opens a store. So the test recognises `run`.
fn start(program: &Path, name: &str, args: &[&str]) -> Output {
    Command::new(program)
        .arg0(name)
        .args(args)
        .env_clear()
        .env("PRE_CACHE_LOG_LEVEL", "loud")
        .output()
        .expect("the product can be started")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn talms_names_mean_run_in_talms_form() {
    for (name, args) in [
        ("/bin/bash", &["-c", SCRIPT][..]),
        ("bash", &["-c", SCRIPT, "bash"]),
        ("/bin/sh", &["-c", SCRIPT]),
        (SCRIPT, &[]),
    ] {
        let output = start(&product(), name, args);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", stderr(&output));
        let line = stderr(&output);
        assert!(line.starts_with("upgrades.pre-cache 2"), "{name}: {line}");
        assert!(line.contains(" [ERROR]: Spec: InvalidSpec: "), "{name}: {line}");
        assert!(line.contains("PRE_CACHE_LOG_LEVEL"), "{name}: {line}");
    }
    let output = start(&product(), SCRIPT, &["--log-format", "json"]);
    assert!(stderr(&output).starts_with('{'), "{}", stderr(&output));
}

#[test]
fn links_are_as_good_as_names() {
    let dir = tempfile::tempdir().unwrap();
    for (link, args) in [("bash", &["-c", SCRIPT][..]), ("precache.sh", &[])] {
        let path = dir.path().join(link);
        symlink(product(), &path).unwrap();
        let output = start(&path, path.to_str().unwrap(), args);
        assert_eq!(output.status.code(), Some(2), "{link}: {}", stderr(&output));
        assert!(stderr(&output).starts_with("upgrades.pre-cache "), "{link}");
    }
}

#[test]
fn a_request_for_a_shell_is_refused() {
    for args in [
        &[][..],
        &["-c", "ls"],
        &["-c", "/opt/precache/precache.sh && ls"],
        &["-l"],
    ] {
        let output = start(&product(), "/bin/bash", args);
        assert_eq!(output.status.code(), Some(127), "{args:?}");
        let said = stderr(&output);
        assert!(said.contains("bash: this image has no shell"), "{said}");
        assert!(said.contains("/usr/bin/spoke-precache run"), "{said}");
    }
}

#[test]
fn its_own_name_takes_its_own_words() {
    let output = start(&product(), "/usr/bin/spoke-precache", &["--version"]);
    let version = format!("spoke-precache {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), version);
    let output = start(&product(), "/usr/bin/spoke-precache", &["run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        !stderr(&output).contains("upgrades.pre-cache"),
        "{}",
        stderr(&output)
    );
}

/// A failure of TALM's Job before its deadline is final, so retryable errors are retried until then.
#[test]
fn as_talms_script_it_works_until_the_deadline_where_another_try_may_help() {
    needs!(root());
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = free.local_addr().unwrap().to_string();
    drop(free);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let registry = || {
        let registry = Registry::start();
        registry.push_all(&sample_images(b"no program"));
        registry
    };
    let cases = [
        Some(Fault::on("/manifests/").status(500)),
        Some(Fault::on("/blobs/").status(503)),
        Some(Fault::on("/").status(429)),
        Some(Fault::on("/blobs/").cut(0)),
        Some(Fault::on("/manifests/").stall(0)),
        None,
    ];
    let registries: Vec<Registry> = cases.iter().map(|_| registry()).collect();
    let mut images: Vec<String> = registries.iter().map(|it| it.tagged("zoo/base")).collect();
    images.extend([
        format!("{refused}/a:1"),
        format!("{}/a:1", silent.local_addr().unwrap()),
        "registry.invalid/a:1".to_owned(),
    ]);
    let mut running = Vec::new();
    for (number, image) in images.iter().enumerate() {
        let world = TestNode::trusting(&[image.split('/').next().unwrap().to_owned()]);
        world.spec(&[("additionalImages", image)]);
        let mut lock = None;
        match cases.get(number) {
            Some(Some(fault)) => registries[number].fault(fault.clone()),
            // Another agent has the spool.
            Some(None) => {
                lock = Some(Spool::open(&world.host().join("var/lib/containers/spoke-precache")).unwrap())
            }
            None => {}
        }
        let run = world.start_as_script(&[]);
        running.push((world, lock, run));
    }
    // What gives up does so at once, or after a time that the unit test of the settings is about.
    std::thread::sleep(Duration::from_secs(12));
    for (_, lock, run) in &mut running {
        assert!(!run.has_ended(), "{}", run.stderr());
        if lock.is_none() {
            run.signal(Signal::TERM);
        }
    }
    for (_, lock, run) in running {
        let code = if lock.is_some() { 0 } else { 143 };
        drop(lock);
        let run = run.wait().exits(code);
        assert!(
            run.stderr.contains("waiting: ") || run.stderr.contains("retrying in"),
            "{run}"
        );
    }
}

/// Errors that no retry resolves end the run at once.
#[test]
fn as_talms_script_it_ends_where_no_try_helps() {
    needs!(root());
    let registry = Registry::start();
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[("additionalImages", &registry.tagged("never-pushed"))]);
    let run = world.start_as_script(&[]).wait().exits(8);
    assert!(run.stderr.contains("hint: correct the reference"), "{run}");
}

#[test]
fn as_talms_script_it_never_gives_up_before_its_deadline() {
    let world = TestNode::trusting(&[]);
    let host = world.host();
    let give_up_after = |name: &str, more: &[&str]| {
        let words = [
            &[name, "--host-root", host.to_str().unwrap(), "--image", "a.io/b:1"],
            more,
        ]
        .concat();
        let words = if name == SCRIPT {
            words
        } else {
            [&[name, "run"], &words[1..]].concat()
        };
        let applet = Entrypoint::of(words.into_iter().map(Into::into)).unwrap();
        let mut cli = Cli::parse_from(applet.args());
        applet.apply_defaults(&mut cli);
        let SubCommand::Run(run) = cli.command else {
            panic!("not `run`");
        };
        let order = settings::job_config(&run.flags, &ClusterInfo::default()).unwrap();
        order.registries.give_up_after
    };
    assert_eq!(give_up_after(SCRIPT, &[]), None);
    let hour = Some(Duration::from_secs(3600));
    assert_eq!(give_up_after(SCRIPT, &["--give-up-after", "1h"]), hour);
    let by_hand = Some(Duration::from_secs(30 * 60));
    assert_eq!(give_up_after("spoke-precache", &[]), by_hand);
    assert_eq!(give_up_after("spoke-precache", &["--deadline", "1h"]), None);
}
