//! Runs the pipeline of TALM's scripts and ours on the same inputs: same images, or the bug that explains the difference.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::image::operator::{bundle, channel, index, package};
use crate::image::release::{Release, image_references, release_image};
use crate::image::{Compression, Layer};
use crate::needs::{needs, note};
use crate::registry::Registry;
use crate::test_node::TestNode;

/// A version spec in which `$R` is the registry, and what the scripts leave out and take besides, with the bug's number;
/// images are named by the end of their pullspecs.
struct Case {
    keys: &'static [(&'static str, &'static str)],
    bugs: &'static [u32],
    lost: &'static [&'static str],
    besides: &'static [&'static str],
}

const CASES: &[Case] = &[
    Case {
        keys: &[
            ("platform.image", "$RELEASE"),
            ("excludePrecachePatterns", "aws\n^\"etcd\n  hyper \n"),
        ],
        bugs: &[],
        lost: &[],
        besides: &[],
    },
    Case {
        keys: &[("platform.image", "$RELEASE\n"), ("excludePrecachePatterns", "")],
        bugs: &[],
        lost: &[],
        besides: &[],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:1\n$R/index:1\n"),
            ("operators.packagesAndChannels", "chain:stable\n# gone:stable\n"),
            ("additionalImages", "\"$R/a:1\"\n$R/b:1\n"),
        ],
        bugs: &[],
        lost: &[],
        besides: &[],
    },
    Case {
        keys: &[("additionalImages", "$R/a:1\n$R/b:1")],
        bugs: &[1],
        lost: &["b:1"],
        besides: &[],
    },
    Case {
        keys: &[
            ("platform.image", "$RELEASE"),
            ("additionalImages", "$R/a:1\n\n$R/b:1\n"),
        ],
        bugs: &[2],
        lost: &["b:1", "release"],
        besides: &[],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:2\n$R/index:1\n"),
            ("operators.packagesAndChannels", "chain:stable\n"),
        ],
        bugs: &[2],
        lost: &["chain:3"],
        besides: &[],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:1\n"),
            ("operators.packagesAndChannels", "skipping:stable\n"),
        ],
        bugs: &[4],
        lost: &["skipping:3"],
        besides: &["skipping:2"],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:1\n"),
            ("operators.packagesAndChannels", "chain:old\nchain:stable\n"),
        ],
        bugs: &[5],
        lost: &["chain:1"],
        besides: &[],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:1\n"),
            ("operators.packagesAndChannels", "bare:stable\n"),
            ("additionalImages", "$R/a:1\n"),
        ],
        bugs: &[6],
        lost: &["bare:1", "a:1"],
        besides: &[],
    },
    Case {
        keys: &[
            ("operators.indexes", "$R/index:1\n"),
            ("operators.packagesAndChannels", "chain:\n"),
        ],
        bugs: &[3, 2],
        lost: &["chain:3"],
        besides: &[],
    },
];

fn catalog(registry: &str) -> Vec<Value> {
    let image = |name: &str| format!("{registry}/{name}");
    let related = |name: &str| vec![image(name)];
    let mut bare = bundle("bare", "bare.v1", &image("bare:1"), &[]);
    bare["relatedImages"] = Value::Null;
    vec![
        package("chain", "stable"),
        channel(
            "chain",
            "stable",
            &["chain.v1", "chain.v3<chain.v2", "chain.v2<chain.v1"],
        ),
        channel("chain", "old", &["chain.v1"]),
        bundle("chain", "chain.v1", &image("chain:1"), &related("chain:1")),
        bundle("chain", "chain.v2", &image("chain:2"), &related("chain:2")),
        bundle("chain", "chain.v3", &image("chain:3"), &related("chain:3")),
        package("skipping", "stable"),
        channel(
            "skipping",
            "stable",
            &[
                "skipping.v1",
                "skipping.v3<skipping.v1+skipping.v2",
                "skipping.v2<skipping.v1",
            ],
        ),
        bundle(
            "skipping",
            "skipping.v2",
            &image("skipping:2"),
            &related("skipping:2"),
        ),
        bundle(
            "skipping",
            "skipping.v3",
            &image("skipping:3"),
            &related("skipping:3"),
        ),
        package("bare", "stable"),
        channel("bare", "stable", &["bare.v1"]),
        bare,
    ]
}

/// What the scripts would pull, and whether they fail.
fn scripts(dir: &Path) -> (BTreeSet<String>, bool) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/talm/scripts.py");
    let output = Command::new("python3").arg(script).arg(dir).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let answer: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let lists = ["platform", "additional"].map(|list| answer[list].as_array().unwrap().clone());
    let images = lists.iter().flatten();
    let images = images.map(|image| image.as_str().unwrap().trim().to_owned());
    (images.collect(), answer["fails"] == true)
}

/// The images of our plan, except those that name others.
fn ours(world: &TestNode) -> BTreeSet<String> {
    let run = world.plan(&["-o", "json"]);
    let plan: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    let images = plan["images"].as_array().unwrap().iter();
    let names = images.map(|image| image["name"].as_str().unwrap().to_owned());
    names
        .filter(|name| !name.contains("/index:") && !name.contains("/release:"))
        .collect()
}

#[test]
fn the_scripts_name_the_same_images_but_for_their_bugs() {
    needs!(root(), stock());
    let registry = Registry::start();
    let host = registry.host();
    let documents = catalog(&host);
    let other = vec![package("other", "stable")];
    registry.push("index", Some("1"), &index(&documents));
    registry.push("index", Some("2"), &index(&other));
    let names = ["etcd", "aws-driver", "hyperkube", "pod"];
    let digest = |name: &str| format!("{host}/release@{}", crate::image::sha256(name.as_bytes()));
    let references = image_references(names.iter().map(|name| (*name, digest(name))));
    let base = Layer::of("file /base 0644 0:0 \"base\"", Compression::Gzip);
    registry.push(
        "release",
        Some("1"),
        &release_image(&base, &references.to_string()),
    );
    let mut differences = 0;
    for case in CASES {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let fill = |text: &str| {
            text.replace("$RELEASE", &format!("{host}/release:1"))
                .replace("$R", &host)
        };
        let keys: Vec<(&str, String)> = case.keys.iter().map(|(key, text)| (*key, fill(text))).collect();
        for (key, text) in &keys {
            write(&format!("config/{key}"), text);
        }
        write("image-references", &references.to_string());
        for (number, documents) in [(1, &documents), (2, &other)] {
            let lines: String = documents.iter().map(|document| format!("{document}\n")).collect();
            write(&format!("catalogs/{number}/catalog.json"), &lines);
            write(
                &format!("catalogs/{number}/pullspec"),
                &format!("{host}/index:{number}"),
            );
        }
        let world = TestNode::trusting(std::slice::from_ref(&host));
        let given: Vec<(&str, &str)> = keys.iter().map(|(key, text)| (*key, text.as_str())).collect();
        world.spec(&given);
        let ((theirs, _), ours) = (scripts(dir.path()), ours(&world));
        let differs = |left: &BTreeSet<String>, right: &BTreeSet<String>, expected: &[&str]| {
            let difference: Vec<&String> = left.difference(right).collect();
            let is_known = |name: &&String| expected.iter().any(|end| name.contains(&format!("/{end}")));
            let all_known = difference.iter().all(is_known);
            let all_seen = expected
                .iter()
                .all(|end| difference.iter().any(|name| name.contains(&format!("/{end}"))));
            assert!(
                all_known && all_seen,
                "{:?}, bugs {:?}: {difference:?} is not {expected:?}",
                case.keys,
                case.bugs
            );
        };
        differs(&ours, &theirs, case.lost);
        differs(&theirs, &ours, case.besides);
        differences += usize::from(!case.bugs.is_empty());
    }
    note(&format!(
        "{} version specs, {differences} of which the scripts get wrong, each by a bug of the list",
        CASES.len()
    ));
}

/// The release of the other tests, whole, with the script's own jq and grep.
#[test]
fn a_release_is_selected_as_jq_and_grep_select_it() {
    needs!(root(), stock());
    let registry = Registry::start();
    let release = Release::build(&registry.host(), 1_000);
    registry.push_release(&release);
    let references = image_references(
        release
            .components
            .iter()
            .map(|(name, _)| (*name, release.component(name))),
    );
    for patterns in [
        "",
        "aws",
        "o\\|e",
        "^\"p",
        "r$",
        "[[:digit:]]\\{70\\}",
        "*",
        "c*d",
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("config")).unwrap();
        let release = release.by_digest();
        fs::write(dir.path().join("config/platform.image"), &release).unwrap();
        fs::write(dir.path().join("config/excludePrecachePatterns"), patterns).unwrap();
        fs::write(dir.path().join("image-references"), references.to_string()).unwrap();
        let world = TestNode::trusting(&[registry.host()]);
        world.spec(&[
            ("platform.image", &release),
            ("excludePrecachePatterns", patterns),
        ]);
        let plan = world.plan(&["-o", "json"]).exits(0);
        let plan: Value = serde_json::from_str(&plan.stdout).unwrap();
        let images = plan["images"].as_array().unwrap().iter();
        let ours: BTreeSet<String> = images
            .filter(|image| image["tags"] != json!(null))
            .map(|image| image["name"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ours, scripts(dir.path()).0, "{patterns}");
    }
}
