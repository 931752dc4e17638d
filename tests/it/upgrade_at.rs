//! Tests runs before an upgrade whose begin an UpgradeConfig states: only images that can be whole by then are begun.

use std::fs;
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use crate::image::release::{COMPONENTS, RELEASE, image_references, release_image};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::TestNode;

const KB: u64 = 1_000;
/// Additional images, which come after the release in the plan.
const SMALL: usize = 3;
/// At [`LIMIT`] it takes almost three minutes, at [`RATE`] more.
const HUGE: u64 = 20_000 * KB;
const LIMIT: &str = "1Mbit";
/// Of a link, a second.
const RATE: u64 = 100 * KB;

/// A registry with a release that has one huge component, and small images.
struct Site {
    registry: Registry,
    /// The release image, by digest.
    release: String,
    huge: String,
    huge_layer: String,
    small: Vec<String>,
}

impl Site {
    fn new(huge: u64, small: u64) -> Self {
        let registry = Registry::start();
        let component = image("huge", vec![layer("huge", huge)]);
        let huge = registry.at(COMPONENTS, &component.digest());
        registry.push(COMPONENTS, None, &component);
        let references = image_references([("huge", huge.clone())].into_iter());
        let release = release_image(&layer("base", 20 * KB), &references.to_string());
        registry.push(RELEASE, Some("4.99.0"), &release);
        let small = (0..SMALL).map(|n| {
            let name = format!("small-{n}");
            registry.push(&name, Some("latest"), &image(&name, vec![layer(&name, small)]));
            registry.tagged(&name)
        });
        Self {
            small: small.collect(),
            release: registry.at(RELEASE, &release.digest()),
            huge,
            huge_layer: component.layers[0].digest.clone(),
            registry,
        }
    }

    /// What is requested, with an upgrade that begins at this time.
    fn args(&self, world: &TestNode, begins: Timestamp, more: &[&str]) -> Vec<String> {
        let config: PathBuf = world.out("upgradeconfig.yaml");
        let text = format!(
            "apiVersion: upgrade.managed.openshift.io/v1alpha1\nkind: UpgradeConfig\nmetadata: {{name: u}}\n\
             spec: {{upgradeAt: '{begins}', desired: {{image: '{}'}}}}\n",
            self.release
        );
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(&config, text).unwrap();
        let mut args = vec!["--config".to_owned(), config.to_str().unwrap().to_owned()];
        for name in &self.small {
            args.extend(["--image".to_owned(), name.clone()]);
        }
        args.extend(more.iter().map(|arg| (*arg).to_owned()));
        args
    }

    /// Everything but the huge image, sorted.
    fn others(&self) -> Vec<String> {
        let mut names = self.small.clone();
        names.push(self.release.clone());
        names.sort();
        names
    }
}

fn image(name: &str, layers: Vec<Layer>) -> Image {
    Image::build(name, Format::Docker, node_architecture(), layers, |_, _| {})
}

/// A layer that does not compress.
fn layer(name: &str, bytes: u64) -> Layer {
    let seed: u64 = name.bytes().map(u64::from).sum();
    Layer::of(
        &format!("file /{name} 0644 0:0 random={bytes} seed={seed}"),
        Compression::Gzip,
    )
}

fn after(seconds: i64) -> Timestamp {
    let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap();
    now + SignedDuration::from_secs(seconds)
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn an_image_that_cannot_be_whole_before_the_upgrade_is_not_begun() {
    needs!(root());
    let site = Site::new(HUGE, 10 * KB);
    let world = TestNode::trusting(&[site.registry.host()]);
    let begins = after(60);
    let args = site.args(&world, begins, &["--limit-rate", LIMIT]);

    let run = world.run(&strs(&args)).exits(124);
    assert_eq!(run.images("pulled"), site.others(), "{run}");
    assert_eq!(run.images("failed"), [site.huge.as_str()], "{run}");
    assert_eq!(site.registry.requests_of(&site.huge_layer), 0, "{run}");
    assert_eq!(run.report["phase"], "Timeout", "{run}");
    assert_eq!(run.report["upgradeAt"], begins.to_string(), "{run}");
    assert_eq!(
        run.report["deadline"],
        serde_json::json!({"time": begins.to_string(), "source": "Upgrade"}),
        "{run}"
    );
    let forecast = &run.report["forecast"];
    assert_eq!(forecast["largest"], serde_json::json!([site.huge]), "{run}");
    assert_eq!(forecast["images"], 1, "{run}");
    let misses = format!(
        "WARN at this rate the run misses the start of the upgrade at {begins}: 1 image will not be in the store by then"
    );
    assert_eq!(run.stderr.matches(&misses).count(), 1, "{run}");
    let run = run
        .says(&format!("the run ends when the upgrade begins, at {begins}"))
        .says(&format!(
            "the missing images cannot be complete before the upgrade begins at {begins}"
        ));
    assert!(run.stdout.contains("it was not started: "), "{run}");

    let plan = world.plan(&strs(&args)).exits(0);
    assert!(plan.stdout.contains("upgrade:   begins at "), "{plan}");

    // Without an upgrade, it is pulled like every other image.
    let rest = world.run(&["--platform-image", &site.release]).exits(0);
    assert_eq!(rest.images("pulled"), [site.huge.as_str()], "{rest}");
}

/// The small images take twelve seconds, so the rate is known when the huge one is the only one left.
#[test]
fn without_a_limit_the_measured_rate_decides() {
    needs!(root());
    let site = Site::new(HUGE, 400 * KB);
    let world = TestNode::trusting(&[site.registry.host()]);
    site.registry.fault(Fault::on("/blobs/").slow(RATE));
    let args = site.args(&world, after(60), &["--max-downloads", "1"]);
    let run = world.run(&strs(&args)).exits(124);
    assert_eq!(run.images("pulled"), site.others(), "{run}");
    assert_eq!(run.images("failed"), [site.huge.as_str()], "{run}");
    assert_eq!(site.registry.requests_of(&site.huge_layer), 0, "{run}");
    assert_eq!(run.report["forecast"]["images"], 1, "{run}");
}

#[test]
fn an_upgrade_that_should_have_begun_is_no_deadline() {
    needs!(root());
    let site = Site::new(500 * KB, 10 * KB);
    let world = TestNode::trusting(&[site.registry.host()]);
    let run = world.run(&strs(&site.args(&world, after(-3_600), &[]))).exits(0);
    assert_eq!(run.images("pulled").len(), SMALL + 2, "{run}");
    assert_eq!(run.stderr.matches("which is past").count(), 1, "{run}");
    let warnings = run.report["warnings"].as_array().unwrap().iter();
    let past = warnings.filter(|it| it.as_str().is_some_and(|text| text.contains("upgrade")));
    assert_eq!(past.count(), 1, "{run}");
    assert!(
        run.report["deadline"].is_null() && run.report["upgradeAt"].is_null(),
        "{run}"
    );
}

#[test]
fn an_earlier_deadline_begins_everything_because_another_run_continues() {
    needs!(root());
    let site = Site::new(HUGE, 10 * KB);
    let world = TestNode::trusting(&[site.registry.host()]);
    site.registry.fault(Fault::on(&site.huge_layer).slow(20 * KB));
    let begins = after(3_600);
    let args = site.args(&world, begins, &["--deadline", "10s"]);

    let run = world.run(&strs(&args)).exits(124);
    assert_eq!(run.images("pulled"), site.others(), "{run}");
    assert_eq!(run.images("pending"), [site.huge.as_str()], "{run}");
    assert!(site.registry.requests_of(&site.huge_layer) > 0, "{run}");
    assert_eq!(run.report["deadline"]["source"], "Flag", "{run}");
    assert_eq!(run.report["upgradeAt"], begins.to_string(), "{run}");
    assert_eq!(run.report["reason"], "stopped by the deadline", "{run}");
    run.says(&format!(", before the upgrade begins at {begins}"));

    site.registry.end_faults();
    let rest = world.run(&strs(&site.args(&world, begins, &[]))).exits(0);
    assert!(rest.total("bytesResumed") > 0, "{rest}");
    assert!(rest.report["forecast"].is_null(), "{rest}");
}
