//! Runs within the `resources` of a Job: memory, CPU time and threads.
//!
//! Control groups are no tool that could be installed: a sandbox without them leaves these stories out, under CI too.

use std::time::Duration;

use rustix::thread::CpuSet;
use serde_json::Value;

use super::cgroup::Cgroup;
use crate::compare::inconsistencies;
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::manifests;
use crate::needs::{leave_out, long, needs, note};
use crate::registry::Registry;
use crate::test_node::{Run, TestNode};

/// No run of two small images takes so long.
const BEARABLE: Duration = Duration::from_secs(20);

/// Layers of the large image.
const LAYERS: u64 = 3;

/// Bytes of `128Mi`.
fn bytes(quantity: &Value) -> u64 {
    let text = quantity.as_str().unwrap();
    let mebibytes: u64 = text.strip_suffix("Mi").expect("MiB").parse().unwrap();
    mebibytes << 20
}

/// An image much larger than the memory that it is brought in, packed and unpacked, and many small files: what the kernel
/// keeps of those is charged too.
fn large() -> Image {
    let (random, zeros, files) = if long() {
        (300_000_000, 300_000_000, 20_000)
    } else {
        (30_000_000, 100_000_000, 1_000)
    };
    let layer = |seed: u64| {
        let mut text = format!(
            "file /random/{seed} 0644 0:0 random={random} seed={seed}\nfile /zeros/{seed} 0644 0:0 zeros={zeros}\n"
        );
        for number in 0..files {
            text += &format!("file /files/{seed}/{number} 0644 0:0 \"{number}\"\n");
        }
        // gzip does not compress random bytes but takes long to try.
        Layer::of(&text, Compression::Zstd)
    };
    let layers = (0..LAYERS).map(layer).collect();
    Image::build("large", Format::Oci, node_architecture(), layers, |_, _| {})
}

/// Pulls an image in a control group.
fn run_within(cgroup: &Cgroup, world: &TestNode, args: &[&str]) -> Run {
    let wrapper = cgroup.wrapper();
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    world.start_under(&wrapper, "run", args).wait()
}

#[test]
fn an_image_larger_than_the_memory_is_pulled_within_the_job_s_requests() {
    needs!(root());
    let job = manifests::job();
    let resources = &manifests::container(&job)["resources"];
    let registry = Registry::start();
    registry.push("large", Some("latest"), &large());
    // What it requests is what it surely has.
    for (what, memory) in [
        ("requested", bytes(&resources["requests"]["memory"])),
        ("allowed", bytes(&resources["limits"]["memory"])),
    ] {
        let cgroup = match Cgroup::new() {
            Ok(cgroup) => cgroup,
            Err(why) => return leave_out(&why),
        };
        cgroup.limit_memory(memory).unwrap();
        let world = TestNode::trusting(&[registry.host()]);
        let run = run_within(&cgroup, &world, &["--image", &registry.tagged("large")]);
        assert_eq!(cgroup.kills(), 0, "{run}");
        let run = run.exits(0);
        assert_eq!(inconsistencies(&world.graph_root()), [""; 0]);
        let (peak, mib) = (cgroup.peak(), 1 << 20);
        note(&format!(
            "in {} MiB, as {what}: {} MiB of an image in {:?}, {} MiB at most with the page cache, {} resident",
            memory / mib,
            run.total("bytesFetched") / mib,
            run.took,
            peak / mib,
            run.memory / mib
        ));
        assert!(peak > run.memory, "the group was not in force: {peak}: {run}");
        if !long() {
            break;
        }
    }
}

/// The line of the log with the numbers of downloads and unpacks.
fn unpacks(run: &Run) -> &str {
    let line = run.stderr.lines().find(|line| line.contains(" at the same time"));
    let line = line.unwrap_or_else(|| panic!("it does not say how much it does at the same time: {run}"));
    line.rsplit_once(" downloads, ").unwrap().1
}

#[test]
fn threads_are_as_many_as_the_cpus_that_may_be_used() {
    needs!(root());
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(why) => return leave_out(&why),
    };
    let registry = Registry::start();
    let layer = Layer::of("file /a 0644 0:0 \"a\"", Compression::Gzip);
    let small = Image::build("small", Format::Oci, node_architecture(), vec![layer], |_, _| {});
    registry.push("small", Some("latest"), &small);
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("small");
    let args = ["--image", &name, "--log-level", "debug"];
    let cpus = rustix::thread::sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|&cpu| cpus.is_set(cpu)).unwrap();
    let all = match cpus.count() {
        1 => "1 unpack at the same time".to_owned(),
        count => format!("{count} unpacks at the same time"),
    };
    assert_eq!(unpacks(&world.run(&args).exits(0)), all);
    let taskset = ["taskset", "--cpu-list", &first.to_string()];
    let run = world.start_under(&taskset, "run", &args).wait().exits(0);
    assert_eq!(unpacks(&run), "1 unpack at the same time", "{run}");
    // `limits.cpu: 1500m`: one thread that works and a half are one that waits half the time, and it may hold a lock.
    cgroup.limit_cpu(150).unwrap();
    let run = run_within(&cgroup, &world, &args).exits(0);
    assert_eq!(unpacks(&run), "1 unpack at the same time", "{run}");
}

/// None of them is known to be enough. It says so and leaves, or does with them; nothing waits for a thread that is not to
/// be had.
#[test]
fn too_few_threads_or_files_do_not_hang_a_run() {
    needs!(root());
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(why) => return leave_out(&why),
    };
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let (image, other) = (registry.tagged("zoo/links"), registry.tagged("zoo/base"));
    let args = ["--image", &image, "--image", &other];
    let mut ends = Vec::new();
    let mut ended = |what: String, world: &TestNode, run: Run| {
        assert!(run.took < BEARABLE, "{what}: {run}");
        assert!([0, 1, 7].contains(&run.code), "{what}: {run}");
        assert_eq!(run.report["exitCode"], run.code, "{what}: {run}");
        ends.push(format!("{what}: {}", run.code));
        world.run(&args).exits(0);
        assert_eq!(inconsistencies(&world.graph_root()), [""; 0], "{what}");
    };
    for threads in [1, 2, 3, 5, 7, 9, 12] {
        let world = TestNode::trusting(&[registry.host()]);
        cgroup.limit_threads(threads).unwrap();
        let run = run_within(&cgroup, &world, &args);
        ended(format!("{threads} threads"), &world, run);
    }
    for files in [8, 16, 24, 64] {
        let world = TestNode::trusting(&[registry.host()]);
        let shell = format!("ulimit -n {files}; exec \"$@\"");
        let run = world.start_under(&["sh", "-c", &shell, "sh"], "run", &args);
        ended(format!("{files} files"), &world, run.wait());
    }
    note(&ends.join(", "));
    // 1024 is what a shell on a node gives, a runtime 1,048,576.
    assert!(ends.contains(&"64 files: 0".to_owned()), "{ends:?}");
}
