//! Runs the main job: a mounted version spec, a release, its components in the store.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::compare::inconsistencies;
use crate::image::release::{
    COMPONENTS, EXCLUDE, EXCLUDED, RELEASE, Release, image_references, release_image,
};
use crate::image::samples::sample_images;
use crate::image::{Compression, Format, Image, Layer, List, sha256};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

/// Bytes of incompressible data in each layer.
const LAYER: usize = 50_000;

fn release() -> (Registry, Release) {
    let registry = Registry::start();
    let release = Release::build(&registry.host(), LAYER);
    registry.push_release(&release);
    (registry, release)
}

/// Pull specs of the components that are wanted, sorted, with the release image.
fn wanted(release: &Release, name_of_release: String) -> Vec<String> {
    let components = release.components.iter().filter(|(name, _)| *name != EXCLUDED);
    let mut names: Vec<String> = components.map(|(name, _)| release.component(name)).collect();
    names.push(name_of_release);
    names.sort();
    names
}

#[test]
fn a_mounted_spec_pulls_the_release_without_excluded_images() {
    needs!(root(), stock());
    let (registry, release) = release();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let additional = [
        registry.tagged("zoo/links"),
        registry.at("zoo/modes", &images.image("zoo/modes").digest()),
    ];
    let world = TestNode::trusting(&[registry.host()]);
    // As hubs have written it: a trailing blank, a carriage return, quotes, a blank line, no final newline.
    world.spec(&[
        ("platform.image", &format!("{}\n", release.by_digest())),
        ("operators.indexes", ""),
        ("operators.packagesAndChannels", "\n"),
        ("excludePrecachePatterns", &format!("\n  {EXCLUDE} \r\n")),
        (
            "additionalImages",
            &format!("{} \n\n\"{}\"", additional[0], additional[1]),
        ),
        ("spaceRequired", "1"),
    ]);
    let run = world.run(&[]).exits(0);

    let mut names = wanted(&release, release.by_digest());
    names.extend(additional);
    names.sort();
    assert_eq!(run.images("pulled"), names, "{run}");
    assert_eq!(run.images("excluded"), [release.component(EXCLUDED)], "{run}");
    assert_eq!(run.report["apiVersion"], "spoke-precache/v1");
    assert_eq!(run.report["kind"], "Report");
    assert_eq!(run.report["phase"], "Succeeded");
    assert_eq!(run.report["exitCode"], 0);
    assert_eq!(run.total("imagesWanted"), names.len() as u64, "{run}");
    assert_eq!(run.total("imagesPulled"), names.len() as u64, "{run}");
    assert_eq!(run.total("imagesFailed"), 0, "{run}");
    for step in run.report["conditions"].as_array().unwrap() {
        // The release is given by tag, and a signature is for a digest.
        let is_known = step["type"] != "ReleaseVerified";
        assert_eq!(step["status"], if is_known { "True" } else { "Unknown" }, "{run}");
        for field in [
            "type",
            "reason",
            "message",
            "startTime",
            "completeTime",
            "lastProbeTime",
            "lastTransitionTime",
        ] {
            assert!(step[field].is_string(), "no `{field}` in {step}: {run}");
        }
    }
    for name in &names {
        world.podman(&["image", "exists", name]).ok();
    }
    assert!(
        !world
            .podman(&["image", "exists", &release.component(EXCLUDED)])
            .is_ok()
    );
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

#[test]
fn flags_do_what_the_spec_does() {
    needs!(root(), stock());
    let (registry, release) = release();
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&[
        "--platform-image",
        &release.by_digest(),
        "--exclude",
        EXCLUDE,
        "--space-required",
        "1",
    ]);
    assert_eq!(
        run.exits(0).images("pulled"),
        wanted(&release, release.by_digest())
    );
}

#[test]
fn every_shared_layer_crosses_the_link_once() {
    needs!(root());
    let (registry, release) = release();
    let world = TestNode::trusting(&[registry.host()]);
    let run = world
        .run(&["--platform-image", &release.by_digest(), "--exclude", EXCLUDE])
        .exits(0);
    let requests = registry.layer_requests();
    let mut paths: Vec<&str> = requests
        .iter()
        .filter_map(|access| access.path.rsplit('/').next())
        .collect();
    paths.sort_unstable();
    let asked = paths.len();
    paths.dedup();
    assert_eq!(asked, paths.len(), "a blob was asked for twice: {requests:#?}");
    let sent: u64 = requests.iter().map(crate::registry::log::Access::sent).sum();
    assert!(
        run.total("bytesFetched") >= sent,
        "{sent} bytes of layers left the registry: {run}"
    );
}

#[test]
fn a_second_run_by_digest_asks_for_nothing() {
    needs!(root());
    let (registry, release) = release();
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let first = world.run(&args).exits(0);
    // Some of it arrived before it was planned.
    assert_eq!(
        first.total("bytesPlanned"),
        first.total("bytesFetched"),
        "{first}"
    );
    let images = first.report["images"].as_array().expect("a list").iter();
    let bytes: u64 = images.filter_map(|image| image["bytes"].as_u64()).sum();
    assert_eq!(
        bytes,
        first.total("bytesFetched"),
        "each image has its bytes: {first}"
    );
    registry.clear_log();
    let again = world.run(&args).exits(0);
    assert!(registry.log().is_empty(), "{:#?}", registry.log());
    assert_eq!(
        again.images("present"),
        wanted(&release, release.by_digest()),
        "{again}"
    );
    assert_eq!(again.total("bytesFetched"), 0);
    world.verify(&args).exits(0);
}

#[test]
fn a_second_run_by_tag_asks_whether_the_tag_moved() {
    needs!(root(), stock());
    let (registry, release) = release();
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", &release.by_tag(), "--exclude", EXCLUDE];
    let first = world.run(&args).exits(0);
    assert_eq!(
        first.images("pulled"),
        wanted(&release, release.by_tag()),
        "{first}"
    );
    registry.clear_log();
    world.run(&args).exits(0);
    assert!(registry.layer_requests().is_empty(), "{:#?}", registry.log());

    let moved = Release::build(&registry.host(), LAYER + 1);
    registry.push_release(&moved);
    world.run(&args).exits(0);
    let id = world
        .podman(&["image", "inspect", "--format", "{{.Id}}", &release.by_tag()])
        .ok();
    assert_eq!(id, moved.release.id());
}

#[test]
fn plan_shows_what_a_run_does_and_changes_nothing() {
    needs!(root());
    let (registry, release) = release();
    let world = TestNode::trusting(&[registry.host()]);
    let args = [
        "--platform-image",
        &release.by_digest(),
        "--exclude",
        EXCLUDE,
        "-o",
        "json",
    ];
    let plan = world.plan(&args).exits(0);
    let plan: serde_json::Value = serde_json::from_str(&plan.stdout).unwrap();
    for name in wanted(&release, release.by_digest()) {
        assert!(plan.to_string().contains(&name), "{name} is not in {plan:#}");
    }
    let (name, component) = &release.components[0];
    let digest = &component.layers.last().unwrap().digest;
    let asked = registry
        .log()
        .into_iter()
        .any(|access| access.path.ends_with(digest));
    assert!(!asked, "planning fetched a layer of {name}");
}

/// A release may be a list of one image for each architecture; `quay.io/openshift-release-dev` has such.
#[test]
fn a_release_that_is_a_list_is_pulled_for_the_node_s_platform() {
    needs!(root(), stock());
    let (registry, release) = release();
    let other = |architecture: &str| {
        let layers = vec![Layer::of("file /other 0644 0:0 \"other\"", Compression::Gzip)];
        Image::build(architecture, Format::Docker, architecture, layers, |_, _| {})
    };
    let list = |name: &str, instances| List::build(name, Format::Docker, instances);
    let whole = list(
        "whole",
        vec![other("s390x"), release.release.clone(), other("ppc64le")],
    );
    let without = list("without", vec![other("s390x"), other("ppc64le")]);
    for (tag, list) in [("whole", &whole), ("without", &without)] {
        registry.push_list(RELEASE, Some(tag), list);
        let named = [
            format!("{}/{RELEASE}:{tag}", registry.host()),
            registry.at(RELEASE, &list.digest()),
        ];
        for name in named {
            let world = TestNode::trusting(&[registry.host()]);
            world.spec(&[("platform.image", &name), ("excludePrecachePatterns", EXCLUDE)]);
            if tag == "without" {
                let run = world.run(&[]).exits(5).says("linux/s390x, linux/ppc64le");
                assert_eq!(run.images("failed"), [name.as_str()], "{run}");
                continue;
            }
            let run = world.run(&[]).exits(0);
            assert_eq!(run.images("pulled"), wanted(&release, name.clone()), "{run}");
            let id = world
                .podman(&["image", "inspect", "--format", "{{.Id}}", &name])
                .ok();
            assert_eq!(id.trim(), release.release.id());
        }
    }
}

/// Whose registry does not answer keeps others waiting for a minute, not for ever.
#[test]
fn a_release_whose_registry_is_silent_does_not_hold_up_the_additional_images() {
    if !crate::needs::long() {
        return crate::needs::leave_out("it takes two minutes, SPOKE_LONG=1");
    }
    needs!(root());
    let (silent, release) = release();
    // Thirty seconds each.
    silent.fault(Fault::on("/manifests/").times(3).stall(0));
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    let world = TestNode::trusting(&[silent.host(), registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("excludePrecachePatterns", EXCLUDE),
        ("additionalImages", &registry.tagged("zoo/links")),
    ]);
    let run = world
        .run(&["--deadline", "170s"])
        .exits(0)
        .says("pulling 1 others meanwhile");
    assert_eq!(run.images("pulled").len(), 8, "{run}");
}

/// On a slow link whatever else travels is taken from it, and nothing can be planned without it.
#[test]
fn the_release_image_is_downloaded_first_and_alone_on_a_slow_link() {
    needs!(root());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 600_000);
    registry.push_release(&release);
    // Six seconds, while the payload is here at once.
    let base = &release.release.layers[0];
    registry.fault(Fault::on(&base.digest).slow(100_000));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let mut run = world.start("run", &args);
    let sent_when_others_begin = loop {
        let log = registry.log();
        if log.iter().any(|access| access.path.contains(COMPONENTS)) {
            let of_base = log.iter().filter(|access| access.path.ends_with(&base.digest));
            break of_base.map(|access| access.sent()).sum::<u64>();
        }
        assert!(!run.has_ended(), "{}", run.stderr());
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(
        sent_when_others_begin >= base.size / 2,
        "{sent_when_others_begin} of {} bytes: {}",
        base.size,
        run.stderr()
    );
    let run = run.wait().exits(0);
    assert_eq!(
        run.images("pulled"),
        wanted(&release, release.by_digest()),
        "{run}"
    );
}

/// The link is busy until the release image is complete, and nothing that arrives meanwhile is downloaded again.
#[test]
fn what_a_release_names_is_fetched_while_its_image_is_on_its_way() {
    needs!(root());
    let (registry, release) = release();
    let base = &release.release.layers[0];
    registry.fault(Fault::on(&base.digest).times(1).stall(base.size / 2));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("excludePrecachePatterns", EXCLUDE),
    ]);
    let components = release.components.iter().filter(|(name, _)| *name != EXCLUDED);
    let own = components
        .flat_map(|(_, image)| &image.layers)
        .filter(|it| it.digest != base.digest);
    let own: Vec<&Layer> = own.collect();
    let sent = |layer: &Layer| -> u64 {
        let requests = registry.layer_requests();
        let of_it = requests
            .iter()
            .filter(|access| access.path.ends_with(&layer.digest));
        of_it.map(|access| access.sent()).sum()
    };

    let spool = world.host().join("var/lib/containers/spoke-precache");
    let mut run = world.start("run", &[]);
    let patience = Instant::now() + Duration::from_secs(20);
    while !own.iter().all(|layer| spool.join(&layer.digest).exists()) {
        assert!(
            !run.has_ended() && Instant::now() < patience,
            "{:?}",
            registry.log()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    run.signal(Signal::KILL);
    run.wait();

    let run = world.run(&[]).exits(0);
    assert_eq!(
        run.images("pulled"),
        wanted(&release, release.by_digest()),
        "{run}"
    );
    for layer in own {
        assert_eq!(sent(layer), layer.size, "each byte once: {run}");
    }
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

/// By then the images that it names are resolved and started; no task uses the results.
#[test]
fn a_release_whose_last_layer_turns_out_to_be_damaged_ends_the_run_nevertheless() {
    needs!(root());
    let (registry, release) = release();
    let specs = release.components.iter();
    let specs = specs.map(|(name, _)| (*name, release.component(name)));
    let base = Layer {
        diff_id: sha256(b"another layer"),
        ..release.release.layers[0].clone()
    };
    let damaged = Release {
        release: release_image(&base, &image_references(specs).to_string()),
        ..release
    };
    registry.push_release(&damaged);
    // It is unpacked long after the payload was read.
    registry.fault(Fault::on(&base.digest).slow(10_000));
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&["--platform-image", &damaged.by_digest()]).exits(6);
    assert_eq!(run.images("failed"), [damaged.by_digest()], "{run}");
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());
}

/// What a release image lacks before it can be read, or what it names lacks after.
#[test]
fn a_run_that_ends_before_the_release_image_is_whole_does_not_count_one_image() {
    needs!(root());
    let (registry, release) = release();
    let args = ["--platform-image", &release.by_digest(), "--exclude", EXCLUDE];
    let unknown = "the release image is incomplete, and it names more images";
    let layers: Vec<String> = release
        .release
        .layers
        .iter()
        .map(|it| it.digest.clone())
        .collect();
    let [base, .., payload] = &layers[..] else {
        panic!("a release image has a base and a payload: {layers:?}");
    };

    registry.fault(Fault::on(payload).stall(100));
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&[&args[..], &["--deadline", "3s"]].concat()).exits(124);
    assert!(run.stdout.starts_with(&format!("Timeout: {unknown}\n")), "{run}");
    registry.end_faults();

    // The payload is here, and only the layers below it are missing.
    registry.fault(Fault::on(base).stall(100));
    let world = TestNode::trusting(&[registry.host()]);
    let run = world.run(&[&args[..], &["--deadline", "5s"]].concat()).exits(124);
    let wanted = wanted(&release, release.by_digest());
    let missing = format!(
        "Timeout: 0 of {0} images are in the store, {0} missing\n",
        wanted.len()
    );
    assert!(run.stdout.starts_with(&missing), "{run}");
    assert_eq!(run.images("pending"), wanted, "{run}");
    registry.end_faults();

    let world = TestNode::trusting(&[registry.host()]);
    let run = world
        .run(&[&args[..], &["--space-required", "1000000"]].concat())
        .exits(3);
    let short = format!("UnrecoverableError: {unknown}\n");
    assert!(run.stdout.starts_with(&short), "{run}");
}
