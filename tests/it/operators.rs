//! Pulls operators: from an index image's catalog to all images that an installation needs.

use std::time::Duration;

use serde_json::{Value, json};

use crate::compare::inconsistencies;
use crate::image::operator::{
    OPERATORS, bundle, channel, database_index, index, operand, package, pull_spec,
};
use crate::image::release::{EXCLUDE, EXCLUDED, Release};
use crate::image::{Compression, Format, Image, Layer, node_architecture};
use crate::needs::needs;
use crate::registry::Registry;
use crate::registry::faults::Fault;
use crate::test_node::{Run, TestNode};

const INDEX: &str = "operators/index";

/// A registry with these images of operators and this catalog, and the pull spec of the catalog.
fn registry(
    operands: &[&str],
    catalog: impl Fn(&dyn Fn(&str) -> String) -> Vec<Value>,
) -> (Registry, String) {
    let registry = Registry::start();
    for name in operands {
        registry.push(OPERATORS, None, &operand(name));
    }
    let host = registry.host();
    let documents = catalog(&|name| pull_spec(&host, name));
    let index = push_index(&registry, &documents);
    (registry, index)
}

fn push_index(registry: &Registry, documents: &[Value]) -> String {
    let image = index(documents);
    registry.push(INDEX, None, &image);
    registry.at(INDEX, &image.digest())
}

/// A package with one bundle in its default channel `stable`.
fn simple(name: &str, spec: &dyn Fn(&str) -> String) -> Vec<Value> {
    let version = format!("{name}.v1");
    vec![
        package(name, "stable"),
        channel(name, "stable", &[&version]),
        bundle(
            name,
            &version,
            &spec(&format!("{name}-bundle")),
            &[spec(&format!("{name}-controller"))],
        ),
    ]
}

/// `package:channel bundle state`, in the report's order.
fn operators(run: &Run) -> Vec<String> {
    let rows = run.report["operators"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |row: &Value| {
        let text = |field: &str| row[field].as_str().unwrap_or("-").to_owned();
        format!(
            "{}:{} {} {}",
            text("package"),
            text("channel"),
            text("bundle"),
            text("state")
        )
    };
    rows.iter().map(row).collect()
}

/// The status of a step's condition.
fn status<'a>(run: &'a Run, step: &str) -> &'a str {
    let conditions = run.report["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let condition = conditions.iter().find(|condition| condition["type"] == step);
    condition
        .and_then(|condition| condition["status"].as_str())
        .unwrap_or("none")
}

/// Sums of states are sums of requests.
#[track_caller]
fn adds_up(run: &Run) {
    let states = ["imagesPresent", "imagesPulled", "imagesFailed"].map(|name| run.total(name));
    let pending = run.images("pending").len() as u64;
    assert_eq!(
        states.iter().sum::<u64>() + pending,
        run.total("imagesWanted"),
        "{run}"
    );
    let listed = run.report["images"].as_array().unwrap().len();
    assert_eq!(
        listed - run.images("excluded").len(),
        run.total("imagesWanted") as usize,
        "{run}"
    );
    let rows = operators(run);
    let pending = rows.iter().filter(|row| row.ends_with("pending")).count() as u64;
    let known = run.total("operatorsFound") + run.total("operatorsFailed");
    assert_eq!(known + pending, run.total("operatorsWanted"), "{run}");
    assert_eq!(rows.len() as u64, run.total("operatorsWanted"), "{run}");
}

#[test]
fn a_release_and_its_operators_are_pulled_together() {
    needs!(root(), stock());
    let (registry, index) = registry(&["ptp-bundle", "ptp-daemon", "sriov-bundle", "proxy"], |spec| {
        vec![
            package("ptp", "4.16"),
            channel("ptp", "4.15", &["ptp.v4.15"]),
            channel(
                "ptp",
                "4.16",
                &["ptp.v1", "ptp.v2<ptp.v1", "ptp.v3<ptp.v1+ptp.v2"],
            ),
            bundle("ptp", "ptp.v4.15", &spec("ptp-bundle"), &[spec("proxy")]),
            bundle("ptp", "ptp.v1", "localhost:1/none:1", &[]),
            bundle("ptp", "ptp.v2", "localhost:1/none:2", &[]),
            bundle(
                "ptp",
                "ptp.v3",
                &spec("ptp-bundle"),
                &[
                    spec("ptp-daemon"),
                    spec("proxy"),
                    spec("ptp-bundle"),
                    String::new(),
                ],
            ),
            package("sriov", "stable"),
            channel("sriov", "stable", &["sriov.v1"]),
            bundle("sriov", "sriov.v1", &spec("sriov-bundle"), &[spec("proxy")]),
            package("unwanted", "stable"),
            channel("unwanted", "stable", &["unwanted.v1"]),
            bundle("unwanted", "unwanted.v1", "localhost:1/none:3", &[]),
        ]
    });
    let release = Release::build(&registry.host(), 10_000);
    registry.push_release(&release);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &format!("{index}\n{index} \n")),
        (
            "operators.packagesAndChannels",
            "ptp: 4.16\nptp:4.15\n# a comment\nsriov:%!s(<nil>)\n",
        ),
        // Excludes are for the release's images alone.
        ("excludePrecachePatterns", "operators\naws"),
    ]);
    let run = world
        .run(&[])
        .exits(0)
        .says("1 related image without a pull spec");
    let operands = ["ptp-bundle", "ptp-daemon", "proxy", "sriov-bundle"];
    for name in operands.map(|name| pull_spec(&registry.host(), name)) {
        assert!(run.images("pulled").contains(&name.as_str()), "{name}: {run}");
        world.podman(&["image", "exists", &name]).ok();
    }
    world.podman(&["image", "exists", &index]).ok();
    assert_eq!(run.images("pulled").len(), 7 + 1 + 4, "{run}");
    assert_eq!(
        operators(&run),
        [
            "ptp:4.16 ptp.v3 found",
            "ptp:4.15 ptp.v4.15 found",
            "sriov: sriov.v1 found"
        ]
    );
    let first = &run.report["operators"][0];
    assert_eq!(first["index"], index);
    assert_eq!(
        first["images"],
        json!([
            pull_spec(&registry.host(), "ptp-bundle"),
            pull_spec(&registry.host(), "ptp-daemon"),
            pull_spec(&registry.host(), "proxy")
        ])
    );
    let sources: Vec<&str> = run.report["images"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|image| image["state"] != "excluded")
        .filter_map(|image| image["source"].as_str())
        .collect();
    assert!(sources.is_sorted_by_key(|source| *source != "release"), "{run}");
    for step in run.report["conditions"].as_array().unwrap() {
        // The release is given by tag, and a signature is for a digest.
        let is_known = step["type"] != "ReleaseVerified";
        assert_eq!(step["status"], if is_known { "True" } else { "Unknown" }, "{run}");
    }
    adds_up(&run);
    assert_eq!(inconsistencies(&world.graph_root()), Vec::<String>::new());

    // All are named by digest and present: no request is sent, and the catalogs are read again.
    registry.clear_log();
    let again = world.run(&[]).exits(0);
    assert_eq!(again.total("imagesPresent"), 12, "{again}");
    assert_eq!(operators(&again), operators(&run));
    assert!(registry.log().is_empty(), "{:?}", registry.log());
    let verified = world.verify(&[]).exits(0);
    assert_eq!(verified.total("imagesPresent"), 12, "{verified}");
}

#[test]
fn a_catalog_in_a_database_is_as_good_as_one_in_files() {
    needs!(root(), stock());
    let registry = Registry::start();
    for name in ["p-bundle", "p-controller"] {
        registry.push(OPERATORS, None, &operand(name));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.db");
    let (image, related) = (
        pull_spec(&registry.host(), "p-bundle"),
        pull_spec(&registry.host(), "p-controller"),
    );
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute_batch(&format!(
            "CREATE TABLE schema_migrations (version bigint NOT NULL, timestamp DATETIME);
             INSERT INTO schema_migrations VALUES (13, 0);
             CREATE TABLE operatorbundle (name TEXT PRIMARY KEY, csv TEXT, bundle TEXT, bundlepath TEXT, skiprange TEXT,
                 version TEXT, replaces TEXT, skips TEXT, substitutesfor TEXT);
             CREATE TABLE package (name TEXT PRIMARY KEY, default_channel TEXT);
             CREATE TABLE channel (name TEXT, package_name TEXT, head_operatorbundle_name TEXT);
             CREATE TABLE channel_entry (entry_id INTEGER PRIMARY KEY, channel_name TEXT, package_name TEXT,
                 operatorbundle_name TEXT, replaces INTEGER, depth INTEGER);
             CREATE TABLE related_image (image TEXT, operatorbundle_name TEXT);
             CREATE TABLE properties (type TEXT, value TEXT, operatorbundle_name TEXT,
                 operatorbundle_version TEXT, operatorbundle_path TEXT);
             CREATE TABLE deprecated (operatorbundle_name TEXT PRIMARY KEY);
             INSERT INTO package VALUES ('p', 'stable');
             INSERT INTO channel VALUES ('stable', 'p', 'p.v1');
             INSERT INTO channel_entry VALUES (1, 'stable', 'p', 'p.v1', NULL, 0);
             INSERT INTO operatorbundle (name, version, bundlepath) VALUES ('p.v1', '1.0.0', '{image}');
             INSERT INTO related_image VALUES ('{related}', 'p.v1');"
        ))
        .unwrap();
    let index = database_index(&std::fs::read(&path).unwrap());
    registry.push(INDEX, Some("v4.10"), &index);
    let world = TestNode::trusting(&[registry.host()]);
    let index = format!("{}/{INDEX}:v4.10", registry.host());
    let run = world
        .run(&["--operator-index", &index, "--package", "p"])
        .exits(0);
    let mut expected = vec![index.as_str(), &image, &related];
    expected.sort_unstable();
    assert_eq!(run.images("pulled"), expected, "{run}");
    assert_eq!(operators(&run), ["p: p.v1 found"]);
    adds_up(&run);
}

/// An error of one operator does not stop the others.
#[test]
fn a_package_in_no_catalog_is_named_and_the_rest_is_pulled() {
    needs!(root());
    let (registry, index) = registry(&["good-bundle", "good-controller"], |spec| {
        let mut documents = simple("good", spec);
        documents.extend([
            package("forked", "stable"),
            channel("forked", "stable", &["forked.v1", "forked.v2"]),
            bundle("forked", "forked.v1", &spec("good-bundle"), &[]),
            bundle("forked", "forked.v2", &spec("good-bundle"), &[]),
            package("hollow", "stable"),
            channel("hollow", "stable", &["hollow.v1"]),
            bundle("hollow", "hollow.v1", "", &[]),
            package("mute", ""),
            channel("mute", "a", &["mute.v1"]),
        ]);
        documents
    });
    for (line, state, says) in [
        ("goood:stable", "goood:stable - failed", "did you mean `good`?"),
        ("good:stabel", "good:stabel - failed", "did you mean `stable`?"),
        (
            "forked:stable",
            "forked:stable - failed",
            "has 2 heads, which no other entry replaces or skips: `forked.v1`, `forked.v2`",
        ),
        ("hollow:", "hollow: - failed", "`hollow.v1` of package `hollow`"),
        ("mute:", "mute: - failed", "has no default channel"),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        world.spec(&[
            ("operators.indexes", &index),
            ("operators.packagesAndChannels", &format!("{line}\ngood:stable")),
        ]);
        let run = world.run(&[]).exits(5).says(says).says(&index);
        assert_eq!(operators(&run), [state, "good:stable good.v1 found"], "{run}");
        assert_eq!(run.images("pulled").len(), 3, "{run}");
        assert!(run.stdout.contains("1 found, 1 failed, 0 pending"), "{run}");
        for step in ["Operators", "Verify"] {
            assert_eq!(status(&run, step), "False", "{run}");
        }
        adds_up(&run);
        let plan = world.plan(&[]).exits(5).says(says);
        assert!(plan.stdout.contains("operator "), "{plan}");
        let verify = world.verify(&[]).exits(5).says(says);
        adds_up(&verify);
    }
}

#[test]
fn a_line_that_is_no_package_and_channel_stops_the_run() {
    needs!(root());
    let world = TestNode::trusting(&[]);
    for line in ["malformed-no-colon", "too:many:colons", ":stable"] {
        world.spec(&[
            ("operators.indexes", "127.0.0.1:1/index:1"),
            ("operators.packagesAndChannels", &format!("ptp:stable\n{line}\n")),
        ]);
        let run = world.run(&[]).exits(5).says(&format!("`{line}`"));
        assert_eq!(run.images("pending"), ["127.0.0.1:1/index:1"], "{run}");
        adds_up(&run);
    }
}

#[test]
fn images_that_are_no_catalogs_are_named() {
    needs!(root());
    let registry = Registry::start();
    registry.push(OPERATORS, None, &operand("plain"));
    let plain = pull_spec(&registry.host(), "plain");
    let broken = push_index(&registry, &[json!({"schema": "olm.package"})]);
    for (index, says) in [
        (&plain, "the image is not an operator catalog"),
        (&broken, "`/configs/catalog.json` of the catalog, line 1"),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        let args = ["--operator-index", index, "--package", "ptp:stable"];
        let run = world.run(&args).exits(5).says(says);
        assert_eq!(operators(&run), ["ptp:stable - failed"], "{run}");
        assert_eq!(run.images("failed"), [index.as_str()], "{run}");
        adds_up(&run);
    }
}

/// It is unknown which of the catalogs the cluster installs from.
#[test]
fn a_package_of_several_catalogs_is_taken_from_all() {
    needs!(root());
    let (registry, first) = registry(
        &["p-bundle", "p-controller", "q-bundle", "q-controller", "other"],
        |spec| {
            let mut documents = simple("p", spec);
            documents.extend(simple("q", spec));
            documents
        },
    );
    let other = pull_spec(&registry.host(), "other");
    let second = push_index(
        &registry,
        &[
            package("p", "stable"),
            channel("p", "stable", &["p.v2"]),
            bundle("p", "p.v2", &other, &[]),
        ],
    );
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("operators.indexes", &format!("{first}\n{second}")),
        ("operators.packagesAndChannels", "p:stable\nq:stable\n"),
    ]);
    let run = world.run(&[]).exits(0);
    assert_eq!(
        operators(&run),
        [
            "p:stable p.v1 found",
            "q:stable q.v1 found",
            "p:stable p.v2 found"
        ]
    );
    let from: Vec<&str> = run.report["operators"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["index"].as_str())
        .collect();
    assert_eq!(from, [&first, &first, &second], "{run}");
    assert!(run.images("pulled").contains(&other.as_str()), "{run}");
    assert_eq!(run.total("imagesPulled"), 7, "{run}");
    adds_up(&run);
}

#[test]
fn an_unavailable_catalog_does_not_delay_the_rest() {
    needs!(root());
    let (registry, index) = registry(&["p-bundle", "p-controller"], |spec| simple("p", spec));
    let gone = format!("{}/{INDEX}:gone", registry.host());
    let release = Release::build(&registry.host(), 5_000);
    registry.push_release(&release);
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &format!("{gone}\n{index}")),
        ("operators.packagesAndChannels", "p:stable\nlost:stable\n"),
    ]);
    let run = world.run(&[]).exits(8);
    assert_eq!(
        operators(&run),
        ["p:stable p.v1 found", "lost:stable - failed"],
        "{run}"
    );
    assert_eq!(run.images("failed"), [gone.as_str()], "{run}");
    assert_eq!(run.total("imagesPulled"), 8 + 3, "{run}");
    adds_up(&run);
}

/// That its manifest cannot be believed is known when the round for the images that name others is planned.
#[test]
fn an_index_that_contradicts_itself_does_not_stop_the_rest() {
    needs!(root());
    let (registry, good) = registry(&["p-bundle", "p-controller", "extra"], |spec| simple("p", spec));
    let layer = Layer::of("file /a 0644 0:0 \"a\"", Compression::Gzip);
    let layers = vec![layer.clone(), layer];
    let liar = Image::build("liar", Format::Oci, node_architecture(), layers, |_, manifest| {
        manifest["layers"][1]["size"] = 7.into();
    });
    registry.push("liar", None, &liar);
    let liar = registry.at("liar", &liar.digest());
    let extra = pull_spec(&registry.host(), "extra");
    for indexes in [liar.clone(), format!("{liar}\n{good}")] {
        let world = TestNode::trusting(&[registry.host()]);
        world.spec(&[
            ("operators.indexes", &indexes),
            ("operators.packagesAndChannels", "p:stable"),
            ("additionalImages", &extra),
        ]);
        let run = world.run(&[]).exits(5).says("contradictory manifest");
        assert_eq!(run.images("failed"), [liar.as_str()], "{run}");
        assert!(run.images("pulled").contains(&extra.as_str()), "{run}");
        let expected = match indexes == liar {
            true => "p:stable - failed",
            false => "p:stable p.v1 found",
        };
        assert_eq!(operators(&run), [expected], "{run}");
        assert_eq!(status(&run, "Operators"), "False", "{run}");
        adds_up(&run);
    }
}

/// Patterns are for the release alone.
#[test]
fn an_image_excluded_from_the_release_is_pulled_for_an_operator() {
    needs!(root());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 5_000);
    registry.push_release(&release);
    let needed = release.component(EXCLUDED);
    let index = push_index(
        &registry,
        &[
            package("p", "stable"),
            channel("p", "stable", &["p.v1"]),
            bundle("p", "p.v1", &needed, &[]),
        ],
    );
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("platform.image", &release.by_digest()),
        ("operators.indexes", &index),
        ("operators.packagesAndChannels", "p:stable"),
        ("excludePrecachePatterns", EXCLUDE),
    ]);
    let plan = world.plan(&["-o", "json"]).exits(0);
    let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
    assert_eq!(plan["excluded"], json!([]), "{plan}");
    let run = world.run(&[]).exits(0);
    assert!(run.images("pulled").contains(&needed.as_str()), "{run}");
    assert!(run.images("excluded").is_empty(), "{run}");
    adds_up(&run);
    world.verify(&[]).exits(0);
}

/// Present is what is there at the end, and not what was seen at the beginning.
#[test]
fn an_operators_image_that_is_removed_meanwhile_is_pulled_again() {
    needs!(root(), stock());
    let (registry, index) = registry(&["p-bundle", "p-controller"], |spec| simple("p", spec));
    registry.push(OPERATORS, None, &operand("extra"));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--operator-index", &index, "--package", "p:stable"];
    world.run(&args).exits(0);
    let slow = operand("extra");
    registry.fault(Fault::on(&slow.layers[0].digest).slow(20_000));
    let extra = pull_spec(&registry.host(), "extra");
    let running = world.start("run", &[&args[..], &["--image", &extra]].concat());
    let controller = pull_spec(&registry.host(), "p-controller");
    while registry.layer_requests().len() < 4 {
        std::thread::sleep(Duration::from_millis(10));
    }
    world.podman(&["rmi", &controller]).ok();
    let run = running
        .wait()
        .exits(0)
        .says("was removed from the store during the run");
    let mut pulled = [controller.as_str(), extra.as_str()];
    pulled.sort_unstable();
    assert_eq!(run.images("pulled"), pulled, "{run}");
    adds_up(&run);
    world.podman(&["image", "exists", &controller]).ok();
}

#[test]
fn a_related_image_that_is_not_there_is_a_failure() {
    needs!(root());
    let (registry, index) = registry(&["p-bundle"], |spec| simple("p", spec));
    let world = TestNode::trusting(&[registry.host()]);
    let args = ["--operator-index", &index, "--package", "p:stable"];
    let run = world.run(&args).exits(8);
    let lost = pull_spec(&registry.host(), "p-controller");
    assert_eq!(run.images("failed"), [lost.as_str()], "{run}");
    assert_eq!(run.total("imagesPulled"), 2, "{run}");
    adds_up(&run);
    let verify = world.verify(&args).exits(1);
    assert_eq!(verify.images("failed"), [lost.as_str()], "{verify}");
    // It was only late.
    registry.push(OPERATORS, None, &operand("p-controller"));
    world.run(&args).exits(0);
    world.verify(&args).exits(0);
}

#[test]
fn an_index_without_packages_is_pulled_with_a_warning() {
    needs!(root());
    let (registry, index) = registry(&[], |spec| simple("p", spec));
    let world = TestNode::trusting(&[registry.host()]);
    let run = world
        .run(&["--operator-index", &index])
        .exits(0)
        .says("only the index images of the operators are pulled");
    assert_eq!(run.images("pulled"), [index.as_str()], "{run}");
    adds_up(&run);
}

/// The report of a run that is cut off lists what it did not come to.
#[test]
fn a_run_that_is_cut_off_reports_what_is_pending() {
    needs!(root());
    let (registry, index) = registry(&["p-bundle", "p-controller"], |spec| simple("p", spec));
    registry.fault(Fault::on("/manifests/").stall(0));
    let world = TestNode::trusting(&[registry.host()]);
    world.spec(&[
        ("operators.indexes", &index),
        ("operators.packagesAndChannels", "p:stable"),
        ("additionalImages", &pull_spec(&registry.host(), "p-bundle")),
    ]);
    let run = world.run(&["--deadline", "1s"]).exits(124);
    assert_eq!(operators(&run), ["p:stable - pending"], "{run}");
    assert_eq!(run.images("pending").len(), 2, "{run}");
    adds_up(&run);
}
