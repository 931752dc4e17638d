//! Tests names of images: by which name they are requested, and by which they are stored so that CRI-O finds them.

use std::fs;

use serde_json::Value;

use crate::image::samples::sample_images;
use crate::needs::{long, needs, note};
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::TestNode;

/// Names in the store, sorted.
fn stored(world: &TestNode) -> Vec<String> {
    let text = fs::read(world.graph_root().join("overlay-images/images.json")).unwrap_or_default();
    let images: Vec<Value> = serde_json::from_slice(&text).unwrap_or_default();
    let names = images.iter().flat_map(|image| image["names"].as_array());
    let names = names.flatten().filter_map(|name| Some(name.as_str()?.to_owned()));
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}

/// A registry with one image under several names.
fn registry() -> Registry {
    let registry = Registry::start();
    let images = sample_images(b"no program");
    for repository in ["base", "zoo/base", "library/base", "a/b/c/d/e/f/g/h"] {
        registry.push(repository, Some("latest"), images.image("zoo/base"));
        registry.push(repository, Some("1"), images.image("zoo/base"));
    }
    registry
}

/// Additions to registries.conf, a drop-in, and the recorded aliases.
type Files<'a> = [&'a str; 3];

fn world(registry: &Registry, [main, drop_in, recorded]: Files<'_>) -> TestNode {
    let world = TestNode::trusting(&[registry.host()]);
    let text = |text: &str| text.replace("HOST", &registry.host());
    let conf = "etc/containers/registries.conf";
    let trusting = fs::read_to_string(world.host().join(conf)).unwrap();
    world.write(conf, &(text(main) + "\n" + &trusting));
    for (path, addition) in [
        ("etc/containers/registries.conf.d/50-site.conf", drop_in),
        ("var/cache/containers/short-name-aliases.conf", recorded),
    ] {
        if !addition.is_empty() {
            world.write(path, &text(addition));
        }
    }
    world
}

/// podman resolves with the code that CRI-O resolves with, and stores what it pulled under the name that it found.
#[test]
fn a_short_name_is_stored_under_the_name_that_stock_tools_give_it() {
    needs!(root(), stock());
    let registry = registry();
    let images = sample_images(b"no program");
    let digest = &images.image("zoo/base").digest();
    let by_digest = format!("base@{digest}");
    let search = "unqualified-search-registries = ['HOST']";
    let alias = "short-name-mode = 'enforcing'\naliases = { base = 'HOST/zoo/base', other = 'HOST/none' }";
    let table: [(Files<'_>, &str, &str); 10] = [
        ([search, "", ""], "base", "HOST/base:latest"),
        ([search, "", ""], "zoo/base:1", "HOST/zoo/base:1"),
        ([search, "", ""], &by_digest, "HOST/base@DIGEST"),
        (["", search, ""], "base:1", "HOST/base:1"),
        ([alias, "", ""], "base", "HOST/zoo/base:latest"),
        ([alias, "", ""], &by_digest, "HOST/zoo/base@DIGEST"),
        ([alias, search, ""], "zoo/base", "HOST/zoo/base:latest"),
        // Taken back, so it is searched for.
        (
            [
                alias,
                "unqualified-search-registries = ['HOST']\naliases = { base = '' }",
                "",
            ],
            "base",
            "HOST/base:latest",
        ),
        (
            [alias, "[aliases]\nbase = 'HOST/base'", ""],
            "base",
            "HOST/base:latest",
        ),
        (
            [alias, "", "[aliases]\nother = 'HOST/library/base'"],
            "other:1",
            "HOST/library/base:1",
        ),
    ];
    let mut compared = 0;
    for (number, (files, name, expected)) in table.iter().enumerate() {
        let expected = expected
            .replace("HOST", &registry.host())
            .replace("DIGEST", digest);
        let ours = world(&registry, *files);
        ours.run(&["--image", name]).exits(0);
        assert_eq!(stored(&ours), [expected.as_str()], "{name} with {files:?}");
        // What is there by its full name is there by its short one.
        ours.verify(&["--image", name]).exits(0);

        if number % 2 == 0 && !long() {
            continue;
        }
        compared += 1;
        let theirs = world(&registry, *files);
        theirs.podman_pull(name);
        assert_eq!(stored(&theirs), [expected], "podman: {name} with {files:?}");
    }
    note(&format!(
        "{} short names are stored as they should be, {compared} compared with podman",
        table.len()
    ));
}

#[test]
fn a_name_that_may_mean_several_images_or_none_is_refused_before_anything_is_asked() {
    needs!(root());
    let registry = registry();
    let two = "unqualified-search-registries = ['registry.access.redhat.com', 'HOST']\nshort-name-mode = ''";
    for (files, args, says) in [
        (
            [two, "", ""],
            &["--image", "base:1"][..],
            "`registry.access.redhat.com/base:1` or `HOST/base:1`",
        ),
        (
            [two, "", ""],
            &["--platform-image", "zoo/base"],
            "has several to search",
        ),
        (
            ["", "", ""],
            &["--image", "base"],
            "neither an alias for it nor a search registry",
        ),
        (
            ["unqualified-search-registries = []", "", ""],
            &["--image", "base"],
            "write the full name",
        ),
        (
            ["aliases = { base = 'HOST/base' }", "", ""],
            &["--image", "library/base"],
            "`library/base:latest` names no registry",
        ),
        (
            ["unqualified-search-registries = ['HOST']", "", ""],
            &["--image", "Foo/base"],
            "which is not an image reference",
        ),
    ] {
        let world = world(&registry, files);
        let run = world
            .run(args)
            .exits(2)
            .says(&says.replace("HOST", &registry.host()));
        assert_eq!(run.report["conditions"][0]["reason"], "InvalidSpec", "{run}");
        assert!(stored(&world).is_empty());
    }
    assert!(registry.log().is_empty(), "{:?}", registry.log());
}

#[test]
fn broken_aliases_matter_when_there_is_a_short_name() {
    needs!(root());
    let registry = registry();
    let search = "unqualified-search-registries = ['HOST']";
    let world = world(&registry, [search, "", "[aliases]\nbase = 'no registry'"]);
    world.run(&["--image", &registry.tagged("base")]).exits(0);
    let run = world
        .run(&["--image", "base"])
        .exits(7)
        .says("short-name-aliases.conf`: alias `base`");
    assert!(run.to_string().contains("Resolve"), "{run}");
}

/// CRI-O is root (containers/image, `newConfigWrapperWithHomeDir`).
#[test]
fn roots_own_registries_conf_stands_in_for_the_systems() {
    needs!(root());
    let registry = registry();
    let alias = "[aliases]\nbase = 'HOST/zoo/base'";
    let trust = "[[registry]]\nlocation = 'HOST'\ninsecure = true\n";
    let real = |text: &str| text.replace("HOST", &registry.host());
    let both = world(&registry, ["", "aliases = { base = 'HOST/base' }", ""]);
    both.write("root/.config/containers/registries.conf.d/x.conf", &real(alias));
    fs::create_dir(both.host().join("etc/containers/registries.conf.d/dir.conf")).unwrap();
    both.run(&["--image", "base"]).exits(0);
    assert_eq!(
        stored(&both),
        [real("HOST/zoo/base:latest")],
        "its drop-ins come last"
    );

    let only = world(&registry, ["nonsense", "nonsense", ""]);
    only.write(
        "root/.config/containers/registries.conf",
        &real(&format!("{trust}{alias}")),
    );
    only.run(&["--image", "base:1"]).exits(0);
    assert_eq!(stored(&only), [real("HOST/zoo/base:1")]);

    // Its target on the host is not visible here, so it must not count as missing.
    let link = only.host().join("root/.config/containers/registries.conf");
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("/nonexistent/elsewhere.conf", &link).unwrap();
    only.run(&["--image", "base"])
        .exits(7)
        .says("root/.config/containers/registries.conf");
}

/// What is asked for, what the registry is asked, and the name in the store.
#[test]
fn a_name_is_stored_as_cri_o_resolves_it() {
    needs!(root());
    let registry = registry();
    let digest = &sample_images(b"no program").image("zoo/base").digest();
    let hub = "[[registry]]\nprefix = 'docker.io'\nlocation = 'HOST'\ninsecure = true\n";
    for (name, asked, expected) in [
        ("docker.io/base", "library/base", "docker.io/library/base:latest"),
        (
            "index.docker.io/library/base:1",
            "library/base",
            "docker.io/library/base:1",
        ),
        ("docker.io/zoo/base", "zoo/base", "docker.io/zoo/base:latest"),
        (
            "HOST/a/b/c/d/e/f/g/h:1",
            "a/b/c/d/e/f/g/h",
            "HOST/a/b/c/d/e/f/g/h:1",
        ),
        // The digest wins, and CRI-O drops the tag, which need not exist.
        ("HOST/base:none@DIGEST", "base", "HOST/base@DIGEST"),
    ] {
        let real = |text: &str| text.replace("HOST", &registry.host()).replace("DIGEST", digest);
        let world = world(&registry, ["", hub, ""]);
        registry.clear_log();
        world.run(&["--image", &real(name)]).exits(0);
        assert_eq!(stored(&world), [real(expected)], "{name}");
        let path = format!("/v2/{asked}/");
        let log = registry.log();
        assert!(
            log.iter().all(|access| access.path.starts_with(&path)),
            "{name}: {log:?}"
        );
        world.verify(&["--image", &real(name)]).exits(0);
    }
}

/// skopeo 1.9 cannot write such a reference, so the content comes by way of IPv4.
#[test]
fn an_ipv6_literal_is_a_registry() {
    needs!(root(), stock(), docker_registry(), ipv6());
    let source = registry();
    let docker = DockerRegistry::start();
    let ipv6 = docker.twin_on_ipv6();
    let world = TestNode::trusting(&[ipv6.host()]);
    let copied = world.skopeo(&[
        "copy",
        "--src-tls-verify=false",
        "--dest-tls-verify=false",
        &format!("docker://{}", source.tagged("zoo/base")),
        &format!("docker://{}/x/y:1", docker.host()),
    ]);
    copied.ok();
    let name = format!("{}/x/y:1", ipv6.host());
    world.run(&["--image", &name]).exits(0);
    assert_eq!(stored(&world), [name.as_str()]);
    world.verify(&["--image", &name]).exits(0);
}
