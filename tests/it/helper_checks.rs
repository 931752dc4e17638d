//! Tests the test helpers: podman pulls from the fake registry, and the comparison detects differences.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::compare::{compare, inconsistencies};
use crate::image::samples::{STOCK_TAR_SPLIT_IS_WRONG, sample_images};
use crate::needs::needs;
use crate::registry::faults::Fault;
use crate::registry::{Auth, Registry};
use crate::stock::docker_registry::DockerRegistry;
use crate::stock::hello;
use crate::test_node::TestNode;

#[test]
fn two_pulls_of_the_zoo_by_podman_are_equal_and_wrong_where_we_say_so() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let (a, b) = (
        TestNode::trusting(&[registry.host()]),
        TestNode::trusting(&[registry.host()]),
    );
    for image in &images.images {
        for world in [&a, &b] {
            world.podman_pull(&registry.tagged(&image.name));
        }
    }
    let differences = compare(&a.graph_root(), &b.graph_root(), &[]);
    assert!(differences.is_empty(), "{}", differences.join("\n"));

    for image in &images.images {
        let file = a.out("saved");
        let name = registry.tagged(&image.name);
        let saved = a.podman(&[
            "save",
            "--quiet",
            "--format=oci-archive",
            "-o",
            file.to_str().unwrap(),
            &name,
        ]);
        let wrong = STOCK_TAR_SPLIT_IS_WRONG.contains(&image.name.as_str());
        assert_eq!(saved.is_ok(), !wrong, "{}: {saved}", image.name);
        let _ = fs::remove_file(file);
    }
    let bad_layers: Vec<String> = inconsistencies(&a.graph_root());
    assert!(
        bad_layers.len() <= STOCK_TAR_SPLIT_IS_WRONG.len(),
        "{}",
        bad_layers.join("\n")
    );
}

#[test]
fn a_planted_difference_is_found() {
    needs!(root(), stock());
    let registry = Registry::start();
    let images = sample_images(b"no program");
    registry.push_all(&images);
    let name = registry.tagged("zoo/base");
    let (a, b) = (
        TestNode::trusting(&[registry.host()]),
        TestNode::trusting(&[registry.host()]),
    );
    a.podman_pull(&name);
    b.podman_pull(&name);
    let [id] = &fs::read_dir(a.graph_root().join("overlay"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.len() == 64)
        .collect::<Vec<_>>()[..]
    else {
        panic!("one layer");
    };
    let diff = a.graph_root().join("overlay").join(id).join("diff");
    fs::set_permissions(diff.join("etc/motd"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(diff.join("bin/hello")).unwrap();
    fs::remove_file(
        a.graph_root()
            .join("overlay-layers")
            .join(format!("{id}.tar-split.gz")),
    )
    .unwrap();

    let found = compare(&a.graph_root(), &b.graph_root(), &[]).join("\n");
    for what in ["tree etc/motd", "tree bin/hello", "tar-split 00000"] {
        assert!(
            found.contains(&format!("layer {id} {what}")),
            "{what} is not in:\n{found}"
        );
    }
    assert!(inconsistencies(&b.graph_root()).is_empty());
    assert!(!inconsistencies(&a.graph_root()).is_empty());
}

#[test]
fn podman_runs_what_it_pulled_and_pushes_it_elsewhere() {
    needs!(root(), stock(), static_program(), docker_registry());
    let registry = Registry::start();
    let elsewhere = DockerRegistry::start();
    let images = sample_images(hello::program().unwrap());
    registry.push("zoo/base", Some("latest"), images.image("zoo/base"));
    let world = TestNode::trusting(&[registry.host(), elsewhere.host()]);
    let name = registry.tagged("zoo/base");
    world.podman_pull(&name);
    let said = world
        .podman_run(&name, "1000:1000", &["/bin/hello", "/etc/motd"])
        .ok();
    assert_eq!(said, "hello from uid 1000 gid 1000\nwelcome");
    world
        .podman(&[
            "push",
            "--quiet",
            &name,
            &format!("{}/copy/base:1", elsewhere.host()),
        ])
        .ok();
    let inspected = world.skopeo(&[
        "inspect",
        "--tls-verify=false",
        &format!("docker://{}/copy/base:1", elsewhere.host()),
    ]);
    assert_eq!(
        inspected.json()["Architecture"],
        images.image("zoo/base").architecture
    );
}

/// What a client sees of each fault, with another client than the program's.
#[tokio::test(flavor = "multi_thread")]
async fn the_registry_fails_as_scripted() {
    let registry = Registry::start();
    let images = sample_images(b"no program");
    let image = images.image("zoo/compressions");
    registry.push("zoo/c", Some("latest"), image);
    let layer = &image.layers[0];
    let url = format!("http://{}/v2/zoo/c/blobs/{}", registry.host(), layer.digest);
    let client = reqwest::Client::builder()
        .read_timeout(std::time::Duration::from_millis(300))
        .build()
        .unwrap();
    let ask = |range: Option<&'static str>| {
        let mut request = client.get(&url);
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        async move {
            let response = request.send().await.unwrap();
            let range = response
                .headers()
                .get("content-range")
                .map(|value| value.to_str().unwrap().to_owned());
            let status = response.status().as_u16();
            (status, range, response.bytes().await.ok())
        }
    };
    let all = layer.blob.clone();
    let size = all.len();
    let part = |from: usize, to: usize| Some(all.slice(from..to));
    let range = |from: usize, to: usize| Some(format!("bytes {from}-{}/{size}", to - 1));
    let asked = Some("bytes=100-299");

    let on = || Fault::on("/blobs/").times(1);
    for (fault, asks, sees) in [
        (None, None, (200, None, part(0, size))),
        (None, asked, (206, range(100, 300), part(100, 300))),
        (None, Some("bytes=100-"), (206, range(100, size), part(100, size))),
        (Some(on().cut(1000)), None, (200, None, None)),
        (Some(on().stall(1000)), None, (200, None, None)),
        (Some(on().ignore_range()), asked, (200, None, part(0, size))),
        (
            Some(on().shift_range(7)),
            asked,
            (206, range(107, 307), part(107, 307)),
        ),
        (
            Some(on().header("Content-Range", "bytes 0-9/10")),
            asked,
            (206, Some("bytes 0-9/10".into()), part(100, 300)),
        ),
        (
            Some(on().replace("garbage")),
            None,
            (200, None, Some("garbage".into())),
        ),
        (
            Some(Fault::on("/blobs/").after(1).times(1).status(500)),
            None,
            (200, None, part(0, size)),
        ),
    ] {
        if let Some(fault) = fault.clone() {
            registry.fault(fault);
        }
        assert_eq!(ask(asks).await, sees, "{fault:?} {asks:?}");
    }
    assert_eq!(ask(None).await.0, 500, "the fault that let one pass");
    registry.fault(on().refuse_range());
    assert_eq!(ask(asked).await.0, 416);
    registry.fault(on().status(429).header("Retry-After", "7"));
    assert_eq!(ask(None).await.0, 429);

    let cdn = registry.twin();
    registry.fault(on().redirect(&cdn.host()));
    assert_eq!(ask(None).await, (200, None, part(0, size)));
    assert_eq!(cdn.log().len(), 1);
    let sent: Vec<String> = registry.log().iter().take(4).map(ToString::to_string).collect();
    let path = format!("GET /v2/zoo/c/blobs/{}", layer.digest);
    assert_eq!(
        sent,
        [
            format!("{path} 200 {size}"),
            format!("{path} [bytes=100-299] 206 200"),
            format!("{path} [bytes=100-] 206 {}", size - 100),
            format!("{path} 200 1000"),
        ]
    );
}

#[test]
fn podman_gets_in_with_the_right_credentials_only() {
    needs!(root(), stock());
    for auth in [Auth::basic("me", "secret"), Auth::bearer("me", "secret")] {
        let registry = Registry::start();
        registry.push("zoo/a", Some("latest"), sample_images(b"").image("zoo/tails"));
        registry.require(auth);
        let world = TestNode::trusting(&[registry.host()]);
        let name = registry.tagged("zoo/a");
        for (credentials, enters) in [("me:wrong", false), ("me:secret", true)] {
            let pulled = world.podman(&["pull", "--quiet", "--creds", credentials, &name]);
            assert_eq!(pulled.is_ok(), enters, "{pulled}");
        }
    }
    let registry = Registry::start();
    registry.push("zoo/a", Some("latest"), sample_images(b"").image("zoo/tails"));
    registry.require(Auth::anonymous_bearer());
    TestNode::trusting(&[registry.host()]).podman_pull(&registry.tagged("zoo/a"));
}
