//! Fails or fills the disk of the spool and of the report, operation by operation.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;

use crate::compare::inconsistencies;
use crate::failing_filesystem::{Failing, Op, Rule};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::{long, needs};
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// Bytes a second of a link on which a large blob gets a journal.
const SLOW: u64 = 2 << 20;

/// One story: what fails, how the run ends, and whether the next one has bytes to go on with.
struct Story {
    rule: Rule,
    code: i32,
    resumes: bool,
    /// The link is slow, so that there is a journal.
    is_slow: bool,
}

fn story(op: Op, name: &'static str, after: u64, errno: i32, code: i32) -> Story {
    let rule = Rule {
        op,
        name,
        after,
        errno,
    };
    Story {
        rule,
        code,
        resumes: false,
        is_slow: false,
    }
}

impl Story {
    fn resumes(mut self) -> Self {
        self.resumes = true;
        self
    }

    fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }
}

fn image() -> Image {
    let layers = [("small", 300_000), ("large", 6_000_000)].map(|(name, size)| {
        let text = format!("file /{name} 0644 0:0 random={size} seed={size}");
        Layer::of(&text, Compression::None)
    });
    Image::build("two", Format::Oci, node_architecture(), layers.into(), |_, _| {})
}

fn spool(world: &TestNode) -> PathBuf {
    world.host().join("var/lib/containers/spoke-precache")
}

#[test]
fn a_failing_spool_is_named_and_the_next_run_goes_on() {
    needs!(root(), fuse());
    use libc::{EIO, ENOSPC};
    let stories = [
        story(Op::Write, ".partial", 40, EIO, 7).resumes(),
        story(Op::Write, ".partial", 40, ENOSPC, 3).resumes(),
        story(Op::Write, ".partial", 0, ENOSPC, 3),
        story(Op::Create, ".partial", 1, ENOSPC, 3),
        story(Op::Create, ".partial", 0, EIO, 7),
        story(Op::Rename, ".partial", 0, EIO, 7).resumes(),
        // Only for the unpacker, which opens it anew.
        story(Op::Read, "sha256:", 2, EIO, 7).resumes(),
        story(Op::Open, "sha256:", 0, EIO, 7).resumes(),
        story(Op::List, "", 0, EIO, 7),
        story(Op::Statfs, "", 0, EIO, 7),
        story(Op::Create, "lock", 0, ENOSPC, 3),
        // Of no importance to this run.
        story(Op::Write, "lock", 0, EIO, 0),
        story(Op::Unlink, "sha256:", 0, EIO, 0),
        story(Op::Create, ".history", 0, ENOSPC, 0),
        story(Op::Write, ".history", 0, ENOSPC, 0),
        story(Op::Rename, ".history", 0, EIO, 0),
        // A power loss would cost more.
        story(Op::Create, ".journal", 0, ENOSPC, 0).slow(),
        // The error of the disk for bytes that it accepted earlier.
        story(Op::Sync, ".partial", 0, EIO, 7).slow().resumes(),
        story(Op::Write, ".journal", 0, ENOSPC, 3).slow().resumes(),
        story(Op::Sync, ".journal", 0, EIO, 7).slow().resumes(),
    ];
    let (registry, image) = (Registry::start(), image());
    registry.push("two", Some("latest"), &image);
    let args = ["--image", &registry.tagged("two")];
    let mut wrong = Vec::new();
    let mut failed = 0;
    for story in stories {
        if story.is_slow && !long() {
            continue;
        }
        let world = TestNode::trusting(&[registry.host()]);
        let disk = Failing::mount(&world.out("backing"), &spool(&world));
        if story.is_slow {
            registry.fault(Fault::on(&image.layers[1].digest).slow(SLOW));
        }
        disk.fail(story.rule);
        let run = world.run(&args);
        registry.end_faults();
        let rule = story.rule;
        match disk.end_faults() {
            0 => wrong.push(format!("{rule:?}: nothing failed: {run}")),
            count => failed += count,
        }
        if run.code != story.code {
            wrong.push(format!("{rule:?}: not {}: {run}", story.code));
        }
        let is_named = run.stderr.contains("spoke-precache") && run.report["phase"] == "UnrecoverableError";
        if run.code != 0 && !is_named {
            wrong.push(format!("{rule:?}: not named: {run}"));
        }
        if run.code != 0 && rule.op != Op::Statfs && !run.stderr.contains("hint: ") {
            wrong.push(format!("{rule:?}: no hint: {run}"));
        }
        let next = world.run(&args);
        if next.code != 0 || story.resumes && next.total("bytesResumed") == 0 {
            wrong.push(format!("{rule:?}: the next run: {next}after: {run}"));
        }
        let mut rests = inconsistencies(&world.graph_root());
        let files = fs::read_dir(spool(&world)).unwrap().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        rests.extend(names.filter(|name| name != "lock" && !name.contains("history.json")));
        if !rests.is_empty() {
            wrong.push(format!("{rule:?}: {rests:?}: {run}{next}"));
        }
    }
    // Not `eprintln!`: the test runner hides what passing tests print.
    let _ = writeln!(std::io::stderr(), "{failed} operations of the spool failed");
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n=====\n")
    );
}

/// It is the disk's fault and not the image's, however the layer is compressed.
#[test]
fn a_blob_that_cannot_be_read_back_is_not_the_images_fault() {
    needs!(root(), fuse());
    let registry = Registry::start();
    for (name, compression) in [
        ("none", Compression::None),
        ("gzip", Compression::Gzip),
        ("zstd", Compression::Zstd),
    ] {
        let layer = Layer::of("file /a 0644 0:0 random=3000000", compression);
        let image = Image::build(name, Format::Oci, node_architecture(), vec![layer], |_, _| {});
        registry.push(name, Some("latest"), &image);
        let args = ["--image", &registry.tagged(name)];
        for after in [0, 4] {
            let world = TestNode::trusting(&[registry.host()]);
            let disk = Failing::mount(&world.out("backing"), &spool(&world));
            disk.fail(Rule {
                op: Op::Read,
                name: "sha256:",
                after,
                errno: libc::EIO,
            });
            let run = world.run(&args);
            assert!(disk.end_faults() > 0, "{name}: nothing failed: {run}");
            let run = run.exits(7).says("the disk fails").says("Input/output error");
            assert_eq!(run.images("pending"), [&registry.tagged(name)], "{run}");
            assert_eq!(
                inconsistencies(&world.graph_root()),
                Vec::<String>::new(),
                "{run}"
            );
            let next = world.run(&args).exits(0);
            assert_eq!(next.total("bytesFetched"), 0, "{next}");
        }
    }
}

/// Everything is stored, but the report cannot be written: that is no success.
#[test]
fn a_report_that_cannot_be_written_is_no_success() {
    needs!(root(), fuse());
    use libc::{EACCES, EIO, ENOSPC};
    let (registry, image) = (Registry::start(), image());
    registry.push("two", Some("latest"), &image);
    let args = ["--image", &registry.tagged("two")];
    // The first file of each kind is the trial at the start.
    for (op, after, errno, code) in [
        (Op::Create, 0, ENOSPC, 3),
        (Op::Create, 0, EIO, 7),
        (Op::Create, 0, EACCES, 2),
        (Op::Create, 1, ENOSPC, 3),
        (Op::Write, 0, ENOSPC, 3),
        (Op::Write, 0, EIO, 7),
        (Op::Sync, 1, EIO, 7),
        (Op::Rename, 0, EIO, 7),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        let backing = world.host().join("backing");
        let disk = Failing::mount(&backing, &world.out(""));
        let name = ".report.tmp-";
        disk.fail(Rule {
            op,
            name,
            after,
            errno,
        });
        let run = world.run(&args);
        assert!(disk.end_faults() > 0, "{op:?}: nothing failed: {run}");
        let run = run.exits(code).says("cannot write the report `");
        assert!(run.report.is_null(), "{op:?}: {run}");
        let names = fs::read_dir(&backing)
            .unwrap()
            .flatten()
            .map(|file| file.file_name());
        let rests: Vec<_> = names
            .filter(|name| name.to_string_lossy().contains(".tmp-"))
            .collect();
        assert!(rests.is_empty(), "{op:?}: {rests:?}");
        let next = world.run(&args).exits(0);
        assert_eq!(next.report["phase"], "Succeeded", "{next}");
    }
}
