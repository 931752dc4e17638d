//! Tests `--config` with ClusterVersions, UpgradeConfigs and policies, in files, directories and standard input.

use std::fs;
use std::path::{Path, PathBuf};

use crate::needs::{corpus, needs};
use crate::test_node::{Run, TestNode};

const IMAGE: &str = "quay.io/r@sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn file(world: &TestNode, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = world.out(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// `spec --config PATH --config PATH… ARGS`
fn spec(world: &TestNode, configs: &[&Path], args: &[&str]) -> Run {
    let configs = configs
        .iter()
        .flat_map(|path| ["--config", path.to_str().unwrap()]);
    let args: Vec<&str> = configs.chain(args.iter().copied()).collect();
    world.start("spec", &args).wait()
}

fn cluster_version(desired_update: &str) -> String {
    format!(
        "apiVersion: config.openshift.io/v1\nkind: ClusterVersion\nmetadata: {{name: version}}\n\
         spec: {{channel: stable-4.16, desiredUpdate: {desired_update}}}\n\
         status: {{availableUpdates: [{{version: 4.16.8, image: '{IMAGE}'}}]}}\n"
    )
}

fn upgrade_config(at: &str) -> String {
    format!(
        "apiVersion: upgrade.managed.openshift.io/v1alpha1\nkind: UpgradeConfig\nmetadata: {{name: u}}\n\
         spec: {{upgradeAt: '{at}', desired: {{version: 4.16.8, channel: stable-4.16}}}}\n"
    )
}

const PRE_CACHING_CONFIG: &str = "apiVersion: ran.openshift.io/v1alpha1\nkind: PreCachingConfig\nmetadata: {name: c}\nspec: {spaceRequired: 40 GiB}\n";

#[test]
fn a_directory_of_policies_is_what_the_hub_would_send() {
    needs!(corpus());
    let world = TestNode::trusting(&[]);
    let samples = corpus().unwrap().join("talm/samples-precache");
    let run = spec(&world, &[&samples], &["-o", "json"]).exits(0);
    let printed: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(
        printed["data"],
        serde_json::json!({
            "platform.image": "quay.io/openshift-release-dev/ocp-release@sha256:0f72e150329db15279a1aeda1286c9495258a4892bc5bf1bf5bb89942cd432de",
            "operators.indexes": "registry.redhat.io/redhat/redhat-operator-index:v4.9",
            "operators.packagesAndChannels": "cluster-logging:stable",
            "excludePrecachePatterns": "",
            "additionalImages": "",
            "spaceRequired": "35",
        })
    );
    assert!(!run.stderr.contains("WARN"), "{run}");
    // The hub adds the PreCachingConfig.
    let config = file(&world, "c.yaml", PRE_CACHING_CONFIG);
    spec(&world, &[&samples, &config], &[])
        .exits(0)
        .says("spaceRequired\n  40\n");
}

#[test]
fn a_real_cluster_version_names_its_release() {
    needs!(corpus());
    let world = TestNode::trusting(&[]);
    let real = |name: &str| corpus().unwrap().join("clusterversion").join(name);
    let tagged = spec(&world, &[&real("4.15.0-ec2-unavailable-mco-20m-cv.yaml")], &[]).exits(0);
    assert!(
        tagged.stdout.contains("ocp-release:4.15.0-ec.2-x86_64\n"),
        "{tagged}"
    );
    assert!(tagged.stderr.contains("cannot verify it"), "{tagged}");
    let nothing = real("4.12.16-longest-not-recommended-cv.yaml");
    spec(&world, &[&nothing], &[])
        .exits(2)
        .says("no update is requested; recommended: 4.12.64, 4.12.63, ");
    spec(&world, &[&nothing], &["--platform-image", IMAGE])
        .exits(0)
        .says(IMAGE);
    spec(&world, &[&nothing], &["--image", "quay.io/a:1"])
        .exits(0)
        .says("platform.image\n  (nothing)\n");
}

#[test]
fn several_files_and_standard_input_are_one_version_spec() {
    let world = TestNode::trusting(&[]);
    let version = file(&world, "version.yaml", cluster_version("null"));
    let past = file(&world, "past.yaml", upgrade_config("2020-01-01T00:00:00Z"));
    let future = file(&world, "future.yaml", upgrade_config("9000-01-01T00:00:00Z"));
    let run = spec(&world, &[&version, &past], &[]).exits(0).says(IMAGE);
    assert!(
        run.stderr
            .contains("WARN the upgrade was to begin at 2020-01-01T00:00:00Z, which is past"),
        "{run}"
    );
    assert!(
        run.stderr
            .contains("INFO the release 4.16.8 of UpgradeConfig `u` in `"),
        "{run}"
    );
    let script = format!(
        "cat {} | \"$@\" --config - --config {}",
        version.display(),
        future.display()
    );
    let piped = world
        .start_under(&["bash", "-c", &script, "bash"], "spec", &[])
        .wait()
        .exits(0);
    assert_eq!(piped.stdout, run.stdout);
    assert!(
        piped
            .stderr
            .contains("INFO the upgrade begins at 9000-01-01T00:00:00Z"),
        "{piped}"
    );
    spec(&world, &[&past], &[])
        .exits(2)
        .says("and only the cluster knows the image");
}

#[test]
fn a_directory_is_read_in_the_order_of_its_names() {
    let world = TestNode::trusting(&[]);
    let dir = world.out("site");
    let index = |name: &str, image: &str| {
        let text = format!(
            r#"{{"apiVersion": "operators.coreos.com/v1alpha1", "kind": "CatalogSource", "metadata": {{"name": "{name}"}}, "spec": {{"image": "{image}"}}}}"#
        );
        file(&world, &format!("site/{name}"), text);
    };
    index("b.yml", "quay.io/b:1");
    index("a.json", "quay.io/a:1");
    index("c.yaml", "quay.io/c:1");
    index(".hidden.yaml", "quay.io/hidden:1");
    index("inner/d.yaml", "quay.io/d:1");
    file(&world, "site/README.md", "# Policies");
    let run = spec(&world, &[&dir], &[])
        .exits(0)
        .says("operators.indexes\n  quay.io/a:1\n  quay.io/b:1\n  quay.io/c:1\n");
    assert!(
        run.stderr.contains("site/inner` is a directory, and is not read"),
        "{run}"
    );

    let keys = world.out("keys");
    file(&world, "keys/additionalImages", "quay.io/z:1");
    spec(&world, &[&keys, &dir], &[])
        .exits(2)
        .says("a complete version spec, which cannot be combined with another `--config`");
    file(&world, "site/platform.image", IMAGE);
    spec(&world, &[&dir], &[])
        .exits(2)
        .says("has the key `platform.image` of a mounted ConfigMap and the document `a.json`");
}

#[test]
fn files_that_cannot_be_combined_are_named() {
    let world = TestNode::trusting(&[]);
    let version = file(&world, "version.yaml", cluster_version("{version: 4.16.8}"));
    let broken = file(&world, "broken.yaml", "a: [");
    spec(&world, &[&version, &broken], &[])
        .exits(2)
        .says("broken.yaml`: not YAML");
    spec(&world, &[&version, &version], &[])
        .exits(2)
        .says("cannot use the version spec: two version specs: ClusterVersion `version` in `");
    let config_map =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {additionalImages: quay.io/a}\n";
    let config_map = file(&world, "m.yaml", config_map);
    spec(&world, &[&version, &config_map], &[])
        .exits(2)
        .says("is a complete version spec, which cannot be combined with ClusterVersion `version` in `");
    let large: Vec<PathBuf> = (0..3)
        .map(|number| file(&world, &format!("large{number}"), vec![b'#'; 3 << 20]))
        .collect();
    let large: Vec<&Path> = large.iter().map(PathBuf::as_path).collect();
    let run = spec(&world, &large, &[])
        .exits(2)
        .says("large2`: longer than 2097152 bytes");
    assert!(run.memory < 64 << 20, "{} bytes", run.memory);
    let many = world.out("many");
    for number in 0..1_001 {
        file(&world, &format!("many/{number}.yaml"), "");
    }
    spec(&world, &[&many], &[])
        .exits(2)
        .says("more than 1000 documents");
}
