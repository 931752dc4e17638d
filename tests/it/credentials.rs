//! Tests pull secrets of every form: what the registry receives, and how a run with an unusable one ends.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::image::samples::sample_images;
use crate::needs::{long, needs, note};
use crate::registry::{Auth, Registry};
use crate::test_node::TestNode;

const PULL_SECRET: &str = "var/lib/kubelet/config.json";

/// Stands in every secret and in no message.
const SECRET: &str = "hunter2";

fn registry() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

/// `user:password` as an entry.
fn entry(both: &str) -> String {
    format!(r#"{{"auth":"{}"}}"#, STANDARD.encode(both))
}

/// An anonymous pull would pull the public image of that name, or fail with a misleading reason.
#[test]
fn a_pull_secret_that_cannot_be_used_ends_the_run_before_anything_is_asked() {
    needs!(root());
    let registry = registry();
    let name = registry.tagged("zoo/base");
    let no_colon = STANDARD.encode(SECRET);
    let conf = "credential-helpers = ['secretservice', 'containers-auth.json']\n";
    let after = "credential-helpers = ['containers-auth.json', 'secretservice']\n";
    let auths = |entry: &str| format!(r#"{{"auths":{{"HOST":{entry}}}}}"#);
    let good = auths(&entry("me:hunter2"));
    for (text, helpers, says) in [
        ("", "", "config.json` is not valid at line 1, column 0"),
        (
            "{\n \"auths\": {\"hunter2\"",
            "",
            "config.json` is not valid at line 2, column",
        ),
        (r#"{"auths":{"HOST":"hunter2"}}"#, "", "at line 1, column"),
        (
            r#"{"HOST":{"auth":"aHVudGVyMjpodW50ZXIy"}}"#,
            "",
            "the form of an old `.dockercfg`",
        ),
        (&auths(r#"{"auth":"hunter2!"}"#), "", "`HOST` of "),
        (
            &auths(&format!(r#"{{"auth":"{no_colon}"}}"#)),
            "",
            "not the base64 of `user:password`",
        ),
        (
            r#"{"credHelpers":{"HOST":"hunter2"}}"#,
            "",
            "refers to a credential helper",
        ),
        (
            r#"{"auths":{"HOST":{}},"credsStore":"hunter2"}"#,
            "",
            "refers to a credential helper",
        ),
        (&good, conf, "names the program `secretservice` for `HOST`"),
        ("{}", after, "names the program `secretservice` for `HOST`"),
    ] {
        let world = TestNode::trusting(&[registry.host()]);
        let place = "etc/containers/registries.conf";
        let trusting = fs::read_to_string(world.host().join(place)).unwrap();
        world.write(place, &(helpers.to_owned() + &trusting));
        world.write(PULL_SECRET, &text.replace("HOST", &registry.host()));
        let run = world
            .run(&["--image", &name])
            .exits(4)
            .says(&says.replace("HOST", &registry.host()));
        let said = run.to_string();
        assert!(!said.contains(SECRET) && !said.contains(&no_colon), "{run}");
        assert!(registry.log().is_empty(), "{run}\n{:?}", registry.log());
    }
}

#[test]
fn a_pull_secret_that_cannot_be_read_ends_the_run_before_anything_is_asked() {
    needs!(root());
    let registry = registry();
    let name = registry.tagged("zoo/base");
    let world = TestNode::trusting(&[registry.host()]);
    let path = world.host().join(PULL_SECRET);
    let refused = |says: &str| {
        let run = world
            .run(&["--image", &name])
            .exits(4)
            .says("config.json`: ")
            .says(says);
        assert!(registry.log().is_empty(), "{run}");
    };
    fs::create_dir(&path).unwrap();
    refused("Is a directory");
    fs::remove_dir(&path).unwrap();
    // On the host it may lead to the secret; from here it leads nowhere.
    symlink("/nonexistent/config.json", &path).unwrap();
    refused("No such file");
    fs::remove_file(&path).unwrap();
    symlink("config.json", &path).unwrap();
    refused("symbolic links");
    fs::remove_file(&path).unwrap();
    fs::write(&path, vec![b' '; 5 << 20]).unwrap();
    refused("too large");
    fs::remove_file(&path).unwrap();
    // There is none: that is a node without secrets.
    world.run(&["--image", &name]).exits(0);
}

/// The credentials that a client sends to a registry that rejects all: each `Authorization` once, without the empty one.
fn shown(registry: &Registry) -> BTreeSet<String> {
    let shown = registry
        .log()
        .into_iter()
        .filter_map(|access| access.authorization);
    shown
        .filter(|value| *value != format!("Basic {}", STANDARD.encode(":")))
        .collect()
}

/// Files, and who shows something else than skopeo.
#[test]
fn the_same_credentials_are_sent_as_skopeo_sends() {
    needs!(root(), stock());
    let registry = registry();
    let world = TestNode::trusting(&[registry.host()]);
    let path = world.host().join(PULL_SECRET);
    let (first, second, third) = (
        entry("first:hunter2"),
        entry("second:hunter2"),
        entry("third:hunter2"),
    );
    let wrapped = STANDARD.encode("user:a password that is so long that base64 wraps it");
    let wrapped = format!("{}\\n{}\\n", &wrapped[..60], &wrapped[60..]);
    let table = [
        ("nothing", "{}".to_owned()),
        ("host", format!(r#"{{"auths":{{"HOST":{first}}}}}"#)),
        (
            "another port",
            format!(r#"{{"auths":{{"HOST1":{first},"127.0.0.1":{second}}}}}"#),
        ),
        (
            "longest",
            format!(r#"{{"auths":{{"HOST":{first},"HOST/zoo":{second}}}}}"#),
        ),
        (
            "whole",
            format!(r#"{{"auths":{{"HOST/zoo":{first},"HOST/zoo/base":{second},"HOST":{third}}}}}"#),
        ),
        (
            "half a part",
            format!(r#"{{"auths":{{"HOST/zo":{first},"HOST/zoo/bas":{second}}}}}"#),
        ),
        (
            "with tag",
            format!(r#"{{"auths":{{"HOST/zoo/base:latest":{first}}}}}"#),
        ),
        (
            "slash",
            format!(r#"{{"auths":{{"HOST/":{first},"HOST/zoo/":{second}}}}}"#),
        ),
        ("https", format!(r#"{{"auths":{{"https://HOST":{first}}}}}"#)),
        (
            "http and path",
            format!(r#"{{"auths":{{"http://HOST/v1/":{first}}}}}"#),
        ),
        (
            "URL and namespace",
            format!(r#"{{"auths":{{"https://HOST/zoo":{first}}}}}"#),
        ),
        (
            "URL and host",
            format!(r#"{{"auths":{{"https://HOST/v2/":{first},"HOST":{second}}}}}"#),
        ),
        (
            "no content",
            format!(r#"{{"auths":{{"HOST/zoo":{{}},"HOST":{first}}}}}"#),
        ),
        (
            "null",
            format!(r#"{{"auths":{{"HOST/zoo":null,"HOST":{first}}}}}"#),
        ),
        (
            "colon",
            format!(r#"{{"auths":{{"HOST":{}}}}}"#, entry("user:hunter2:x")),
        ),
        (
            "no user",
            format!(r#"{{"auths":{{"HOST":{}}}}}"#, entry(":hunter2")),
        ),
        (
            "no password",
            format!(r#"{{"auths":{{"HOST":{}}}}}"#, entry("user:")),
        ),
        (
            "zeros",
            format!(r#"{{"auths":{{"HOST":{}}}}}"#, entry("user:hunter2\0\0")),
        ),
        (
            "umlaut",
            format!(r#"{{"auths":{{"HOST":{}}}}}"#, entry("üser:häslein")),
        ),
        (
            "wrapped",
            format!(r#"{{"auths":{{"HOST":{{"auth":"{wrapped}"}}}}}}"#),
        ),
        (
            "capitals",
            format!(r#"{{"AUTHS":{{"HOST":{}}}}}"#, first.replace("auth", "Auth")),
        ),
        ("capital key", format!(r#"{{"auths":{{"LOCALHOST":{first}}}}}"#)),
        (
            "twice",
            format!(r#"{{"auths":{{"HOST":{first},"HOST":{second}}}}}"#),
        ),
        (
            "email",
            format!(
                r#"{{"auths":{{"HOST":{}}}}}"#,
                first.replace('}', r#","email":"a@b.c"}"#)
            ),
        ),
        (
            "token",
            format!(
                r#"{{"auths":{{"HOST":{}}}}}"#,
                first.replace('}', r#","identitytoken":"x"}"#)
            ),
        ),
        (
            "helper elsewhere",
            format!(r#"{{"credHelpers":{{"quay.io":"x"}},"auths":{{"HOST":{first}}}}}"#),
        ),
        (
            "Docker's",
            format!(r#"{{"HttpHeaders":{{"a":"b"}},"credsStore":"x","auths":{{"HOST":{first}}}}}"#),
        ),
    ];
    let challenges = [
        Auth::basic("nobody", "nothing"),
        Auth::bearer("nobody", "nothing"),
    ];
    let pairs = table
        .iter()
        .flat_map(|row| challenges.iter().map(move |auth| (row, auth)));
    // Tokens are asked for with what was found in the same way; only half a credential is another matter.
    let pairs = pairs
        .enumerate()
        .filter(|(number, ((what, _), _))| number % 2 == 0 || what.starts_with("no") || long());
    for (_, ((what, text), auth)) in pairs {
        registry.require(auth.clone());
        fs::write(&path, text.replace("HOST", &registry.host())).unwrap();
        registry.clear_log();
        let image = format!("docker://{}", registry.tagged("zoo/base"));
        let authfile = path.to_str().unwrap();
        let theirs = world.skopeo(&[
            "inspect",
            "--raw",
            "--tls-verify=false",
            "--authfile",
            authfile,
            &image,
        ]);
        assert!(!theirs.is_ok() && !registry.log().is_empty(), "{what}: {theirs}");
        let expected = shown(&registry);
        registry.clear_log();
        let run = world.run(&["--image", &registry.tagged("zoo/base")]).exits(4);
        assert_eq!(
            shown(&registry),
            expected,
            "{what}, {auth:?}: {text}\n{run}\n{theirs}"
        );
    }
    note(&format!("{} files lead to the same credentials", table.len()));

    // The kubelet reads these and hands them to CRI-O; skopeo does not.
    registry.clear_log();
    let text = r#"{"auths":{"HOST":{"username":"me","password":"hunter2"}}}"#;
    fs::write(&path, text.replace("HOST", &registry.host())).unwrap();
    world.run(&["--image", &registry.tagged("zoo/base")]).exits(4);
    let basic = format!("Basic {}", STANDARD.encode("me:hunter2"));
    assert_eq!(shown(&registry), BTreeSet::from([basic]));
}
