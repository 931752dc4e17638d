//! Tests where the store is and which settings are refused, from storage.conf and crio.conf together.

use std::fs;

use crate::image::samples::sample_images;
use crate::needs::{needs, note};
use crate::registry::{Auth, Registry};
use crate::test_node::{Run, TestNode};

const ROOTS: &str = "driver = \"overlay\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/storage\"\n";

fn registry_with_samples() -> Registry {
    let registry = Registry::start();
    registry.push_all(&sample_images(b"no program"));
    registry
}

fn has_image(world: &TestNode, graph_root: &str) -> bool {
    world
        .host()
        .join(graph_root)
        .join("overlay-images/images.json")
        .exists()
}

/// The report's message about a step.
fn message<'r>(run: &'r Run, step: &str) -> &'r str {
    let conditions = run.report["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let condition = conditions.iter().find(|condition| condition["type"] == step);
    condition
        .and_then(|condition| condition["message"].as_str())
        .unwrap_or_default()
}

#[test]
fn crio_conf_and_its_drop_ins_say_where_the_store_is_and_flags_more_so() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("zoo/base");
    for (file, root, stored) in [
        ("crio.conf", "/var/lib/containers/a", "var/lib/containers/a"),
        (
            "crio.conf.d/20-b",
            "/var/lib/containers/b",
            "var/lib/containers/b",
        ),
        // Read before the other.
        (
            "crio.conf.d/10-c.conf",
            "/var/lib/containers/c",
            "var/lib/containers/b",
        ),
        // Sets nothing.
        ("crio.conf.d/30-d", "", "var/lib/containers/b"),
    ] {
        let text = format!("[crio]\nroot = \"{root}\"\n[crio.runtime]\nlog_level = \"info\"\n");
        world.write(&format!("etc/crio/{file}"), &text);
        let run = world.run(&["--image", &name]).exits(0);
        assert!(has_image(&world, stored), "{file}: {run}");
        assert!(message(&run, "Store").contains(stored), "{run}");
        fs::remove_dir_all(world.host().join(stored)).unwrap();
    }
    let given = world.host().join("var/lib/containers/e");
    world
        .run(&["--image", &name, "--graph-root", given.to_str().unwrap()])
        .exits(0);
    assert!(has_image(&world, "var/lib/containers/e"));
    let others = ["storage", "a", "b", "c"].map(|name| world.host().join("var/lib/containers").join(name));
    assert!(others.iter().all(|path| !path.exists()));
}

/// podman reads the same storage.conf: whatever it takes for the graph root, the product does.
#[test]
fn podman_and_the_product_agree_on_the_graph_root() {
    needs!(root(), stock());
    let cases = [
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"/var/lib/containers/one\"\nrunroot = \"/run/containers/storage\"\n",
        "[Storage]\nDriver = \"overlay\"\nGraphRoot = \"/var/lib/containers/two\"\nRunRoot = \"/run/containers/storage\"\n",
        "storage.driver = \"overlay\"\nstorage.runroot = \"/run/containers/storage\"\nstorage.graphroot = \"/var/lib/containers/../containers/three\"\n",
        "[storage]\ndriver = \"overlay2\"\nrunroot = \"/run/containers/storage\"\n",
        "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"/var/lib/containers/u$UID\"\nnovel = [1]\n[storage.options]\nnovel = 1\n",
        "[storage]\ndriver = \"overlay\"\nrunroot = \"/run/containers/storage\"\ngraphroot = \"\"\n[storage.options.vfs]\nignore_chown_errors = \"true\"\n",
    ];
    for text in cases {
        let world = TestNode::trusting(&[]);
        world.write("etc/containers/storage.conf", text);
        let theirs = world.podman(&["info", "--format", "{{.Store.GraphRoot}}"]);
        // Up to containers/storage 1.62 an existing file must set it; later versions, and this program, have a default.
        let theirs = match theirs.stderr.contains("graphroot must be set") {
            true => "/var/lib/containers/storage".to_owned(),
            false => theirs.ok(),
        };
        let ours = world.plan(&["--image", "127.0.0.1:1/a:1", "--give-up-after", "1ms"]);
        let said = message(&ours, "Store");
        let path = said.split('`').nth(1).unwrap_or_default();
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let path = path
            .strip_prefix(fs::canonicalize(world.host()).unwrap())
            .unwrap();
        assert_eq!(format!("/{}", path.display()), theirs, "{text}: {ours}");
    }
    note(&format!(
        "{} storage.conf with podman {}",
        cases.len(),
        TestNode::trusting(&[]).podman_version()
    ));
}

/// Each is named with its file and key, and nothing is asked or written.
#[test]
fn a_setting_that_changes_layers_is_refused_by_file_and_key() {
    needs!(root());
    let registry = registry_with_samples();
    let storage_conf = [
        (
            "[storage.options.overlay]\nmount_program = \"/usr/bin/fuse-overlayfs\"",
            "options.overlay.mount_program",
        ),
        (
            "[storage.options]\nmount_program = \"/usr/bin/fuse-overlayfs\"",
            "options.mount_program",
        ),
        (
            "[storage.options.overlay]\nforce_mask = \"shared\"",
            "options.overlay.force_mask",
        ),
        ("[storage.options]\nforce_mask = 0o700", "options.force_mask"),
        (
            "[storage.options.overlay]\nuse_composefs = \"true\"",
            "options.overlay.use_composefs",
        ),
        (
            "[storage.options.overlay]\nignore_chown_errors = \"true\"",
            "options.overlay.ignore_chown_errors",
        ),
        (
            "[storage.options]\nignore_chown_errors = \"1\"",
            "options.ignore_chown_errors",
        ),
        (
            "[storage.options]\nremap-uids = \"0:1000:65536\"",
            "options.remap-uids",
        ),
        (
            "[storage.options]\nremap-gids = \"0:1000:65536\"",
            "options.remap-gids",
        ),
        (
            "[storage.options]\nremap-user = \"containers\"",
            "options.remap-user",
        ),
        (
            "[storage.options]\nremap-group = \"containers\"",
            "options.remap-group",
        ),
        ("imagestore = \"/var/lib/images\"", "imagestore"),
    ];
    let crio_conf = [
        ("storage_driver = \"btrfs\"", "storage_driver"),
        ("imagestore = \"/var/lib/images\"", "imagestore"),
        ("root = \"$HOME/storage\"", "root"),
        (
            "storage_option = [\"overlay.mount_program=/usr/bin/fuse-overlayfs\"]",
            "storage_option",
        ),
        (
            "storage_option = [\"overlay.size=1G\", \"overlay.force_mask=700\"]",
            "storage_option",
        ),
        ("storage_option = [\"use_composefs=true\"]", "storage_option"),
        (
            "storage_option = [\"overlay2.ignore_chown_errors=true\"]",
            "storage_option",
        ),
        (
            "storage_option = [\"overlay.imagestore=relative\"]",
            "storage_option",
        ),
        ("storage_option = [\"overlay.unheard_of=1\"]", "storage_option"),
        ("storage_option = [\"overlay.mountopt\"]", "storage_option"),
    ];
    let storage_conf = storage_conf.map(|(text, key)| {
        (
            "etc/containers/storage.conf",
            format!("[storage]\n{ROOTS}{text}\n"),
            format!("storage.{key}"),
        )
    });
    let crio_conf = crio_conf.map(|(text, key)| {
        (
            "etc/crio/crio.conf.d/99",
            format!("[crio]\n{text}\n"),
            format!("crio.{key}"),
        )
    });
    let cases = [&storage_conf[..], &crio_conf[..]].concat();
    for (file, text, key) in &cases {
        let world = TestNode::trusting(&[registry.host()]);
        world.write(file, text);
        let run = world.run(&["--image", &registry.tagged("zoo/base")]).exits(7);
        let said = message(&run, "Store");
        let named = format!("in `{}`", world.host().join(file).display());
        assert!(
            said.contains(&format!("`{key} = ")) && said.contains(&named),
            "{text}: {run}"
        );
        assert_eq!(
            fs::read_dir(world.host().join("var/lib/containers"))
                .unwrap()
                .count(),
            0,
            "{text}"
        );
    }
    assert!(registry.log().is_empty());
    note(&format!("{} refusals", cases.len()));
}

#[test]
fn a_drop_in_to_storage_conf_that_matters_is_refused() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let name = registry.tagged("zoo/base");
    let drop_in = "etc/containers/storage.conf.d/10-site.conf";
    for (text, says) in [
        (
            "[storage]\ngraphroot = \"/var/lib/containers/other\"",
            "older versions",
        ),
        (
            "[storage.options]\nadditionalimagestores = [\"/var/lib/more\"]",
            "older versions",
        ),
        (
            "[storage.options.overlay]\nuse_composefs = \"true\"",
            "older versions",
        ),
        ("[storage", "not TOML"),
    ] {
        world.write(drop_in, text);
        world
            .run(&["--image", &name])
            .exits(7)
            .says("10-site.conf")
            .says(says);
    }
    let named = world.host().join("etc/containers/storage.conf");
    world
        .run(&["--image", &name, "--storage-conf", named.to_str().unwrap()])
        .exits(0);
    world.write(
        drop_in,
        "[storage.options.pull_options]\nenable_partial_images = \"true\"",
    );
    world.run(&["--image", &name]).exits(0);
}

#[test]
fn a_broken_crio_conf_is_named() {
    needs!(root());
    for (file, text, says) in [
        ("crio.conf", "[crio", "TOML parse error"),
        ("crio.conf.d/deep/er", "[crio]\nroot = 5", "invalid type"),
        (
            "crio.conf.d/x",
            "[crio.image]\nshort_name_mode = \"permissive\"",
            "unknown variant",
        ),
    ] {
        let world = TestNode::trusting(&[]);
        world.write(&format!("etc/crio/{file}"), text);
        let run = world.run(&["--image", "127.0.0.1:1/a:1"]).exits(7);
        let said = message(&run, "Store");
        assert!(said.contains(file) && said.contains(says), "{run}");
    }
    // CRI-O takes a symlink for a file, and fails to read the directory behind it.
    let world = TestNode::trusting(&[]);
    world.write("etc/crio/crio.conf.d/1", "");
    std::os::unix::fs::symlink("/tmp", world.host().join("etc/crio/crio.conf.d/2")).unwrap();
    world
        .run(&["--image", "127.0.0.1:1/a:1"])
        .exits(7)
        .says("crio.conf.d/2");
}

/// The kubelet's own logins go first, for it hands them to CRI-O with each request.
#[test]
fn the_login_of_crio_conf_is_used_where_the_kubelet_has_none() {
    needs!(root());
    let registry = registry_with_samples();
    registry.require(Auth::basic("me", "right"));
    let name = registry.tagged("zoo/base");
    let world = TestNode::trusting(&[registry.host()]);
    let secret = |login: &str| {
        world.pull_secret(&registry.host(), login);
        fs::read_to_string(world.host().join("var/lib/kubelet/config.json")).unwrap()
    };
    let (right, wrong) = (secret("me:right"), secret("me:wrong"));
    world.write(
        "etc/crio/crio.conf",
        "[crio.image]\nglobal_auth_file = \"/etc/crio/auth.json\"\n",
    );
    for (kubelet, global, code) in [
        (None, None, 4),
        (None, Some(&right), 0),
        (Some("{}"), Some(&right), 0),
        (Some(right.as_str()), Some(&wrong), 0),
        (Some(wrong.as_str()), Some(&right), 4),
    ] {
        for (file, text) in [
            ("var/lib/kubelet/config.json", kubelet),
            ("etc/crio/auth.json", global.map(String::as_str)),
        ] {
            match text {
                Some(text) => world.write(file, text),
                None => drop(fs::remove_file(world.host().join(file))),
            }
        }
        let _ = fs::remove_dir_all(world.graph_root());
        let run = world.run(&["--image", &name]);
        assert_eq!(run.code, code, "{kubelet:?} {global:?}: {run}");
    }
    world.write("given.json", &wrong);
    world.write("etc/crio/auth.json", &right);
    let given = world.host().join("given.json");
    world
        .run(&["--image", &name, "--authfile", given.to_str().unwrap()])
        .exits(4);
}

#[test]
fn insecure_registries_of_crio_conf_are_reported_and_not_trusted() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let text = format!("[crio.image]\ninsecure_registries = [\"{}\"]\n", registry.host());
    world.write("etc/crio/crio.conf", &text);
    world
        .run(&["--image", &registry.tagged("zoo/base")])
        .exits(0)
        .says("`insecure_registries` has no effect here");
}

/// CRI-O's environment is not ours.
#[test]
fn variables_of_containers_storage_change_nothing() {
    needs!(root());
    let registry = registry_with_samples();
    let world = TestNode::trusting(&[registry.host()]);
    let variables = [
        "env",
        "STORAGE_DRIVER=vfs",
        "STORAGE_OPTS=overlay.force_mask=700",
        "CONTAINERS_STORAGE_CONF=/nonexistent",
    ];
    world
        .start_under(&variables, "run", &["--image", &registry.tagged("zoo/base")])
        .wait()
        .exits(0);
    assert!(has_image(&world, "var/lib/containers/storage"));
}
