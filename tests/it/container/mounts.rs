//! Runs in the mounts of TALM's Job without flags, with docker-registry under a name that only the node resolves.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};

use super::image_build::tools;
use super::pod::{Pod, PodImage, priorities};
use crate::compare::inconsistencies;
use crate::disk::tmpfs;
use crate::image::layer::random;
use crate::image::release::{COMPONENTS, EXCLUDE, EXCLUDED, RELEASE, Release};
use crate::image::samples::sample_images;
use crate::link::{NameServer, Namespace, Reply};
use crate::needs::{self, long, skip};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// No process listens there.
const OF_POD: &str = "search openshift.svc.cluster.local\nnameserver 127.0.0.53\noptions ndots:5\n";
const OF_NODE: &str = "nameserver 127.0.0.54\n";

/// What is promised: a pod that is slow to leave is read as a failure (talm-contract.md 4).
const PROMISED: Duration = Duration::from_secs(1);
/// What fails the test: on a machine that is busy with other tests a process may wait for its turn.
const BEARABLE: Duration = Duration::from_secs(3);

/// MiB for the node's images.
const DISK: u64 = 300;

/// Everything that is not the node: in a network namespace of its own, so that names have the addresses of this test.
struct Hub {
    namespace: Namespace,
    _docker: DockerRegistry,
    _name_server: NameServer,
    release: Release,
    additional: String,
}

impl Hub {
    /// `layer`: incompressible bytes in each layer of the release.
    fn new(layer: usize) -> Self {
        let namespace = Namespace::new().unwrap();
        let docker = namespace.within(DockerRegistry::start);
        let socket = namespace.within(|| UdpSocket::bind("127.0.0.54:53").unwrap());
        let name_server = NameServer::on(socket, Reply::Address(Ipv4Addr::LOCALHOST));
        let name = docker.host().replace("127.0.0.1", "registry.test");
        let release = Release::build(&name, layer);
        let source = namespace.within(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let source = Registry::on(source);
        source.push_release(&release);
        source.push_all(&sample_images(b"no program"));
        let mut copies = vec![
            (
                source.at(RELEASE, &release.release.digest()),
                format!("{RELEASE}:4.99.0"),
            ),
            (source.tagged("zoo/links"), "zoo/links:latest".to_owned()),
        ];
        for (component, image) in &release.components {
            copies.push((
                source.at(COMPONENTS, &image.digest()),
                format!("{COMPONENTS}:{component}"),
            ));
        }
        let pusher = TestNode::trusting(&[source.host(), docker.host()]);
        for (from, to) in copies {
            let (from, to) = (
                format!("docker://{from}"),
                format!("docker://{}/{to}", docker.host()),
            );
            let copy = ["copy", "--quiet", "--preserve-digests", &from, &to];
            namespace.within(|| pusher.skopeo(&copy)).ok();
        }
        Self {
            namespace,
            _docker: docker,
            _name_server: name_server,
            release,
            additional: format!("{name}/zoo/links:latest"),
        }
    }

    fn node(&self) -> TestNode {
        let world = TestNode::trusting(std::slice::from_ref(&self.release.registry));
        world.write("etc/resolv.conf", OF_NODE);
        world.spec(&[
            ("platform.image", &format!("{}\n", self.release.by_digest())),
            ("operators.indexes", ""),
            ("operators.packagesAndChannels", ""),
            ("excludePrecachePatterns", EXCLUDE),
            ("additionalImages", &self.additional),
            ("spaceRequired", "0"),
        ]);
        // The machine's disk may be fuller than a node's may be, and there are no flags here.
        tmpfs(&world.host().join("var/lib/containers"), DISK);
        world
    }

    fn wanted(&self) -> Vec<String> {
        let components = self.release.components.iter().map(|(name, _)| *name);
        let components = components.filter(|name| *name != EXCLUDED);
        let mut wanted: Vec<String> = components.map(|name| self.release.component(name)).collect();
        wanted.extend([self.release.by_digest(), self.additional.clone()]);
        wanted
    }
}

/// A disk without an image.
fn wipe(world: &TestNode) {
    let disk = world.host().join("var/lib/containers");
    unmount(&disk, UnmountFlags::DETACH).unwrap();
    tmpfs(&disk, DISK);
}

fn needed() -> Result<(), String> {
    tools()?;
    needs::stock()?;
    needs::links()?;
    needs::docker_registry()
}

#[test]
fn it_works_as_talms_job_starts_it() {
    if let Err(why) = needed() {
        return skip(&why);
    }
    let (hub, image) = (Hub::new(20_000), PodImage::new());
    let world = hub.node();
    let mut pod = image.start(&world, &hub.namespace, OF_POD);
    assert_eq!(pod.wait(), 0, "{}", pod.stderr());
    let log = pod.stderr();
    let wanted = hub.wanted();
    for line in [
        "[INFO]: Operators index is not specified. Operators won't be pre-cached",
        "[INFO]: highThresholdPercent: 85 diskSize: ",
        "[INFO]: Image pre-caching starting for platform-images",
        "[INFO]: Image pre-caching starting for additional-images",
        &format!("[INFO]: Pulling {} [1/1]", hub.additional),
        "[INFO]: Image pre-caching complete for platform-images",
        "[INFO]: Image pre-caching complete for additional-images",
    ] {
        assert!(log.contains(line), "`{line}` is not in:\n{log}");
    }
    for line in log.lines() {
        assert!(line.starts_with("upgrades.pre-cache 2"), "{line}");
    }
    assert!(!log.contains("[ERROR]"), "{log}");
    assert!(pod.termination_message().contains("(exit code 0: "), "{log}");
    for name in &wanted {
        world.podman(&["image", "exists", name]).ok();
    }
    assert!(
        !world
            .podman(&["image", "exists", &hub.release.component(EXCLUDED)])
            .is_ok()
    );
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());

    // The hub may start it again.
    let mut pod = image.start(&world, &hub.namespace, OF_POD);
    assert_eq!(pod.wait(), 0, "{}", pod.stderr());
    for name in &wanted {
        let line = format!("[INFO]: Skipping existing image {name}");
        assert!(pod.stderr().contains(&line), "`{line}`: {}", pod.stderr());
    }

    // The messages that TALM's documentation searches for when an image does not fit or is unavailable.
    world.spec(&[
        ("platform.image", &hub.release.by_digest()),
        ("spaceRequired", "10"),
    ]);
    wipe(&world);
    let mut pod = image.start(&world, &hub.namespace, OF_POD);
    assert_eq!(pod.wait(), 3, "{}", pod.stderr());
    let log = pod.stderr();
    for line in [
        "not enough space for precaching",
        "highThresholdPercent: 85 diskSize: ",
    ] {
        let found = log
            .lines()
            .any(|said| said.contains("[ERROR]: ") && said.contains(line));
        assert!(found, "`{line}` is not in:\n{log}");
    }
    let unknown = hub.additional.replace("links", "none");
    world.spec(&[("additionalImages", &unknown)]);
    let mut pod = image.start(&world, &hub.namespace, OF_POD);
    assert_eq!(pod.wait(), 8, "{}", pod.stderr());
    let line = format!("[ERROR]: Limit number of retries reached. The image {unknown} could not be pulled.");
    assert!(pod.stderr().contains(&line), "`{line}`: {}", pod.stderr());
    let line = "[INFO]: Release index is not specified. Release images will not";
    assert!(pod.stderr().contains(line), "{}", pod.stderr());
}

/// From the start of `main` on: process 1 ignores a signal without a handler.
#[test]
fn a_signal_at_any_moment_ends_it_within_a_second() {
    if let Err(why) = needed() {
        return skip(&why);
    }
    let (hub, image) = (Hub::new(700_000), PodImage::new());
    let world = hub.node();
    let start = || image.start(&world, &hub.namespace, OF_POD);
    let mut pod = start();
    let (process, _) = pod.process();
    let began = Instant::now();
    let mut idle = 0;
    while !pod.has_ended() {
        let threads = priorities(process);
        if threads.len() > 1 {
            assert!(threads.iter().all(|(nice, _)| *nice == 10), "{threads:?}");
        }
        // linux/ioprio.h: class 3, shifted by 13.
        idle += threads.iter().filter(|(_, disk)| *disk == 3 << 13).count();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pod.wait(), 0, "{}", pod.stderr());
    assert!(idle > 0, "no layer was unpacked at idle priority");
    let whole = began.elapsed();
    wipe(&world);

    let rounds = if long() { 200 } else { 10 };
    let (mut latencies, mut windows, mut ended) = (Vec::new(), Vec::new(), 0);
    let mut seed = 0;
    while latencies.len() < rounds {
        seed += 1;
        // Every third as early as can be, the others anywhere.
        let delay = match seed % 3 {
            0 => Duration::from_millis(3).mul_f64(fraction(seed)),
            _ => whole.mul_f64(fraction(seed)),
        };
        let mut pod = start();
        let (process, window) = pod.process();
        windows.push(window);
        let due = Instant::now() + delay;
        // A sleep would be rounded up to what the early ones are about.
        while Instant::now() < due {
            std::thread::yield_now();
        }
        let told = Pod::terminate(process);
        let code = pod.wait();
        let latency = told.elapsed();
        if code == 0 {
            assert!(delay > whole / 8, "lost after {delay:?}: {}", pod.stderr());
            ended += 1;
            wipe(&world);
            continue;
        }
        assert_eq!(code, 143, "after {delay:?}: {}", pod.stderr());
        assert!(
            latency < BEARABLE,
            "{latency:?} after {delay:?}: {}",
            pod.stderr()
        );
        let message = pod.termination_message();
        assert!(
            message.contains("(exit code 143: "),
            "{message:?}: {}",
            pod.stderr()
        );
        latencies.push(latency);
    }
    let mut pod = start();
    assert_eq!(pod.wait(), 0, "{}", pod.stderr());
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
    for name in hub.wanted() {
        world.podman(&["image", "exists", &name]).ok();
    }

    latencies.sort_unstable();
    windows.sort_unstable();
    let late = latencies.iter().filter(|latency| **latency > PROMISED).count();
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(
        std::io::stderr(),
        "SIGTERM under TALM's Job: {rounds} stops of a run of {whole:?}, median {:?}, 99 % {:?}, worst {:?}, {late} over \
         {PROMISED:?}; {ended} had ended; deaf from its first sight for {:?}, at most {:?}",
        latencies[rounds / 2],
        latencies[rounds * 99 / 100],
        latencies[rounds - 1],
        windows[windows.len() / 2],
        windows[windows.len() - 1]
    );
}

/// From 0 to 1, always the same for the same seed.
fn fraction(seed: u64) -> f64 {
    f64::from(u16::from_le_bytes(random(2, seed + 1).try_into().unwrap())) / 65536.0
}
