//! Pulls from docker-registry through a proxy that breaks connections.

use std::io::Write as _;
use std::time::Duration;

use rand::{RngExt as _, SeedableRng as _};

use crate::compare::{compare, inconsistencies};
use crate::image::release::{EXCLUDED, RELEASE, Release};
use crate::link::{Harm, Proxy};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// In each layer.
const LAYER: usize = 300_000;
/// What one broken connection may cost: the kernel's buffer that a reset destroys, and the head of an answer.
const PER_HARM: u64 = 192 << 10;
/// Heads of answers, manifests and configs.
const SLACK: u64 = 128 << 10;

#[test]
fn a_release_is_complete_through_a_proxy_that_breaks_connections() {
    needs!(root(), stock(), docker_registry());
    let docker = DockerRegistry::start();
    let proxy = Proxy::start(docker.host().parse().unwrap()).unwrap();
    let (release, source) = (Release::build(&proxy.host(), LAYER), Registry::start());
    source.push_release(&release);
    let world = TestNode::trusting(&[proxy.host(), docker.host(), source.host()]);
    let mut names = vec![release.by_digest()];
    let copy = |from: String, to: String| {
        let (from, to) = (format!("docker://{from}"), format!("docker://{to}"));
        world.skopeo(&["copy", "--preserve-digests", &from, &to]).ok();
    };
    copy(
        source.at(RELEASE, &release.release.digest()),
        format!("{}/{RELEASE}:4.99.0", docker.host()),
    );
    let mut unique = release.release.layers.clone();
    for (name, image) in &release.components {
        let path = crate::image::release::COMPONENTS;
        copy(
            source.at(path, &image.digest()),
            format!("{}/{path}:{name}", docker.host()),
        );
        names.push(release.component(name));
        unique.extend(image.layers.iter().cloned());
    }
    unique.sort_by(|a, b| a.digest.cmp(&b.digest));
    unique.dedup_by(|a, b| a.digest == b.digest);
    let unique: u64 = unique.iter().map(|layer| layer.size).sum();
    assert!(names.iter().any(|name| name == &release.component(EXCLUDED)));

    let theirs = TestNode::trusting(&[proxy.host()]);
    for name in &names {
        theirs.podman_pull(name);
    }
    let seeds = if long() { 40 } else { 2 };
    for seed in 0..seeds {
        let mut random = rand::rngs::SmallRng::seed_from_u64(seed);
        let harms: Vec<Harm> = (0..12)
            .map(|_| {
                let after = random.random_range(0..400_000);
                match random.random_range(0..8) {
                    0 | 1 => Harm::Cut(after),
                    2..5 => Harm::Reset(after),
                    5 => Harm::Stall(after, Duration::from_millis(300)),
                    // Half a minute until each is found out.
                    6 if seed % 8 == 7 => Harm::HalfOpen(after),
                    6 => Harm::Nothing,
                    _ => Harm::Delay(Duration::from_millis(1)),
                }
            })
            .collect();
        let ours = TestNode::trusting(&[proxy.host()]);
        let (before, harmed) = (proxy.passed(), proxy.broken_connections());
        proxy.break_next(harms.iter().copied());
        let run = ours.run(&["--platform-image", &release.by_digest()]);
        assert_eq!(run.code, 0, "seed {seed}: {harms:?}: {run}");
        let (passed, harmed) = (proxy.passed() - before, proxy.broken_connections() - harmed);
        let allowed = unique * 102 / 100 + SLACK + harmed * PER_HARM;
        assert!(
            passed <= allowed,
            "seed {seed}: {passed} bytes passed, {allowed} are allowed: {harms:?}: {run}"
        );
        assert_eq!(
            inconsistencies(&ours.graph_root()),
            Vec::<String>::new(),
            "seed {seed}"
        );
        let differences = compare(&ours.graph_root(), &theirs.graph_root(), &[]);
        assert!(differences.is_empty(), "seed {seed}:\n{}", differences.join("\n"));
        // Not `eprintln!`: the test runner hides what passing tests print.
        let _ = writeln!(
            std::io::stderr(),
            "seed {seed}: {harmed} connections broken, {passed} bytes passed for {unique} of layers, in {:?}",
            run.took
        );
    }
}
