//! Compares the Job of `manifests/hub` with the program, and with the strictest level of Pod Security.

use std::ffi::OsString;

use clap::Parser as _;
use spoke_precache::cli::{Cli, Command, DeltaCommand};

use super::{container, list, objects, text};

#[test]
fn the_program_accepts_the_arguments_and_its_memory_fits_the_limit() {
    let job = objects("hub/job.yaml").remove(0);
    let container = container(&job);
    let words = list(&container["args"])
        .iter()
        .map(|word| OsString::from(text(word)));
    let words = std::iter::once(OsString::from("spoke-precache")).chain(words);
    let Command::Delta(delta) = Cli::try_parse_from(words).unwrap().command else {
        panic!("another command");
    };
    let DeltaCommand::Create(flags) = delta.command;
    let gib = |amount: &str| {
        amount
            .strip_suffix("Gi")
            .and_then(|number| number.parse::<u64>().ok())
    };
    let limit = gib(text(&container["resources"]["limits"]["memory"])).unwrap();
    // Lists of files, buffers and the page cache need the rest.
    assert!(flags.memory.is_some_and(|memory| memory <= (limit << 30) * 3 / 4));
    let volumes = list(&container["volumeMounts"]);
    let is_below = |path: &str| {
        volumes
            .iter()
            .any(|volume| path.starts_with(text(&volume["mountPath"])))
    };
    assert!(is_below(flags.work_dir.to_str().unwrap()));
    let authfile = flags.registries.authfile.unwrap();
    assert!(is_below(authfile.to_str().unwrap()));
    assert!(is_below(flags.registries.certs_dir.unwrap().to_str().unwrap()));
    assert!(is_below(
        flags.registries.registries_conf.unwrap().to_str().unwrap()
    ));
}

/// Pod Security Standards, "Restricted".
#[test]
fn the_pod_needs_no_privilege() {
    let job = objects("hub/job.yaml").remove(0);
    let pod = &job["spec"]["template"]["spec"];
    let container = container(&job);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let context = &container["securityContext"];
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["capabilities"]["drop"][0], "ALL");
    assert!(context["capabilities"]["add"].is_null());
    let allowed = ["configMap", "secret", "persistentVolumeClaim"];
    for volume in list(&pod["volumes"]) {
        let kinds: Vec<&String> = volume
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != "name")
            .collect();
        assert!(
            kinds.iter().all(|kind| allowed.contains(&kind.as_str())),
            "{volume}"
        );
    }
    let claims = objects("hub/volume.yaml");
    assert_eq!(
        pod["volumes"][0]["persistentVolumeClaim"]["claimName"],
        claims[0]["metadata"]["name"]
    );
    let namespace = &objects("hub/namespace.yaml")[0]["metadata"];
    assert_eq!(
        namespace["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
    for object in objects("hub/job.yaml").iter().chain(&claims) {
        assert_eq!(object["metadata"]["namespace"], namespace["name"]);
    }
}
