//! Tests that the Job's rights are sufficient and that each of them is necessary.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{container, job, list, text};
use crate::compare::{compare, inconsistencies};
use crate::image::Images;
use crate::needs::needs;
use crate::registry::Registry;
use crate::stock::docker_registry::DockerRegistry;
use crate::test_node::{Run, TestNode};

/// A line for every capability, and more.
const IMAGE: &str = r#"
image job/rights docker
layer gzip
dir     /etc 0755 0:0
dir     /home/user 0555 1000:1000
file    /home/user/mine 0400 1000:1000 "another's, in a directory that its owner may not write"
file    /bin/write 02755 0:5 "setgid of a group that is not root's"
file    /bin/su 04711 0:0 "setuid"
file    /bin/ping 0755 0:0 "with a capability"
xattr   security.capability=0x0100000200200000000000000000000000000000
char    /dev/null 1:3 0666
dir     /var/cache 0755 0:0
file    /var/cache/old 0644 0:0 "old"
layer gzip
opaque  /var/cache
whiteout /bin/su
file    /var/cache/new 0644 33:33 "new" mtime=1400000000
"#;

/// What the Job's container may do, as setpriv and podman write it.
fn capabilities() -> Vec<String> {
    let job = job();
    let added = list(&container(&job)["securityContext"]["capabilities"]["add"]);
    added.iter().map(|name| text(name).to_lowercase()).collect()
}

/// A run with these capabilities and no other.
fn run_with(world: &TestNode, capabilities: &[&String], name: &str) -> Run {
    let mut set = "-all".to_owned();
    for capability in capabilities {
        set += &format!(",+{capability}");
    }
    let setpriv = ["/usr/bin/setpriv", "--inh-caps", "-all", "--bounding-set", &set];
    world.start_under(&setpriv, "run", &["--image", name]).wait()
}

#[test]
fn with_the_job_s_capabilities_the_store_is_as_podman_s_and_with_one_less_it_is_not() {
    needs!(root(), stock());
    let registry = Registry::start();
    registry.push_all(&Images::of(IMAGE, &[]));
    let name = registry.tagged("job/rights");
    let theirs = TestNode::trusting(&[registry.host()]);
    theirs.podman_pull(&name);
    let capabilities = capabilities();
    for without in capabilities.iter().map(Some).chain([None]) {
        let ours = TestNode::trusting(&[registry.host()]);
        let set: Vec<&String> = capabilities.iter().filter(|it| Some(*it) != without).collect();
        let run = run_with(&ours, &set, &name);
        let differences = match run.code {
            0 => compare(&ours.graph_root(), &theirs.graph_root(), &[]),
            _ => vec![run.to_string()],
        };
        match without {
            Some(capability) => assert!(!differences.is_empty(), "it works without `{capability}`"),
            None => assert!(differences.is_empty(), "{}", differences.join("\n")),
        }
    }
}

/// The Job itself, as far as podman can be a kubelet: its arguments, mounts, capabilities, read-only root and the default
/// seccomp profile, and nothing else.
#[test]
fn podman_runs_the_job_s_container() {
    needs!(root(), stock(), docker_registry());
    let (source, registry) = (Registry::start(), DockerRegistry::start());
    source.push_all(&Images::of(IMAGE, &[]));
    let world = TestNode::trusting(&[source.host(), registry.host()]);
    let name = format!("{}/job/rights:latest", registry.host());
    let from = format!("docker://{}", source.tagged("job/rights"));
    let copy = [
        "copy",
        "--src-tls-verify=false",
        "--dest-tls-verify=false",
        &from,
        &format!("docker://{name}"),
    ];
    world.skopeo(&copy).ok();
    world.spec(&[("additionalImages", &name)]);
    let last_words = world.out("termination-log");
    fs::write(&last_words, "").unwrap();

    let job = job();
    // Of this machine, for in another Debian's tree the product is not seen.
    let here = Path::new("/");
    let is_old = world.podman_of(here, &["--version"]).ok().contains(" 4.");
    let mut words = container_flags(is_old);
    words.extend(volumes(&world, &job, &last_words));
    words.extend(program(&world));
    words.extend(
        list(&container(&job)["args"])
            .iter()
            .map(|word| text(word).to_owned()),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = world.tool_command(here, "run", &words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:#?}\n{said}");
    assert!(!said.contains("WARN"), "{said}");
    assert!(
        !fs::read_to_string(&last_words).unwrap().is_empty(),
        "no last words"
    );
    world.podman(&["image", "exists", &name]).ok();
    assert_eq!(inconsistencies(&world.graph_root()), [""; 0]);
}

/// The Job's settings of its container, for podman in a small machine ([`TestNode::podman_run`]).
fn container_flags(is_old_podman: bool) -> Vec<String> {
    let limits: &[&str] = match is_old_podman {
        true => &["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"],
        false => &["--ulimit=host"],
    };
    let fixed = [
        "podman",
        "run",
        "--rm",
        "--network=host",
        "--cgroups=disabled",
        "--read-only",
        "--read-only-tmpfs=false",
        "--user=0:0",
        "--cap-drop=all",
    ];
    let flags = fixed.iter().chain(limits).map(|flag| (*flag).to_owned());
    flags
        .chain(capabilities().iter().map(|it| format!("--cap-add={it}")))
        .collect()
}

/// The Job's mounts, with this node as the host; what a hostPath expects there is made.
fn volumes(world: &TestNode, job: &Value, last_words: &Path) -> Vec<String> {
    let container = container(job);
    let volumes = list(&job["spec"]["template"]["spec"]["volumes"]);
    let flag = |from: &Path, to: &str, options: &str| format!("--volume={}:{to}:{options}", from.display());
    let mut flags = vec![flag(last_words, text(&container["terminationMessagePath"]), "rw")];
    for mount in list(&container["volumeMounts"]) {
        let to = text(&mount["mountPath"]);
        let Some(path) = to.strip_prefix("/host/") else {
            // The ConfigMap.
            flags.push(flag(&world.host().join("../config"), to, "ro"));
            continue;
        };
        let from = world.host().join(path);
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"])
            .unwrap();
        match text(&volume["hostPath"]["type"]) {
            "File" if path.ends_with(".json") => world.write(path, "{}"),
            "File" => world.write(path, ""),
            _ => fs::create_dir_all(&from).unwrap(),
        }
        let mut options = if mount["readOnly"] == true { "ro" } else { "rw" }.to_owned();
        if mount["mountPropagation"] == "HostToContainer" {
            options += ",rslave";
        }
        flags.push(flag(&from, to, &options));
    }
    flags
}

/// The product in an otherwise empty root; libraries for a build that is not static.
fn program(world: &TestNode) -> Vec<String> {
    let root = world.out("root");
    fs::create_dir(&root).unwrap();
    let product = format!(
        "--volume={}:/spoke-precache:ro",
        crate::test_node::product().display()
    );
    let mut words: Vec<String> = ["/lib", "/lib64", "/usr/lib"]
        .map(|dir| format!("--volume={dir}:{dir}:ro"))
        .into();
    words.extend([
        product,
        // The machine's disk may be fuller than a node's may be.
        "--env=SPOKE_PRECACHE_IMAGE_GC_HIGH_THRESHOLD=100".to_owned(),
        "--rootfs".to_owned(),
        root.display().to_string(),
        "/spoke-precache".to_owned(),
    ]);
    words
}
