//! Renders the overlays with kubectl's kustomize and tests the result.

use std::collections::BTreeSet;
use std::fs;
use std::process;

use clap::Parser as _;
use serde_json::{Value, json};
use spoke_precache::cli::{Cli, Command};

use super::schema::{flaws, inner};
use super::{files, list, objects, parse, text, title, top};
use crate::needs::{Kubectl, kubectl, leave_out, skip};

const OVERLAYS: [&str; 5] = ["policy", "several-nodes", "single-node", "standalone", "talm"];

/// What an overlay, or another directory below `manifests/`, comes to.
fn rendered(kubectl: &Kubectl, dir: &str) -> Vec<Value> {
    let output = process::Command::new(&kubectl.0)
        .arg("kustomize")
        .arg(top().join(dir))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // It warns of what is deprecated.
    assert!(output.status.success() && said.is_empty(), "{dir}: {said}");
    parse(&String::from_utf8(output.stdout).unwrap())
}

/// The kubectl for rendering, or none, after a notice with the reason.
fn with_kubectl() -> Option<Kubectl> {
    match kubectl() {
        Ok(Some(kubectl)) => return Some(kubectl),
        Ok(None) => leave_out(
            "no kubectl here with kustomize 4 or later; `SPOKE_STOCK_ROOT=$(.ci/stock-trixie)` has one",
        ),
        Err(why) => skip(&why),
    }
    None
}

fn titles(objects: &[Value]) -> BTreeSet<String> {
    objects.iter().map(title).collect()
}

#[test]
fn every_overlay_is_what_kubernetes_knows() {
    let Some(kubectl) = with_kubectl() else { return };
    let there = fs::read_dir(top().join("overlays")).unwrap();
    let there: BTreeSet<_> = there
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(there, OVERLAYS.map(str::to_owned).into());
    for overlay in OVERLAYS {
        let objects = rendered(&kubectl, &format!("overlays/{overlay}"));
        let flaws: Vec<String> = objects.iter().flat_map(flaws).collect();
        assert!(flaws.is_empty(), "{overlay}: {}", flaws.join("\n"));
        // What is there twice would be applied twice, and the second would win.
        let mut ids = BTreeSet::new();
        for object in &objects {
            let id = (title(object), object["metadata"]["namespace"].to_string());
            assert!(ids.insert(id.clone()), "{overlay} has {id:?} twice");
        }
    }
}

/// kustomize changes nothing but the order, and fields whose order does not matter.
#[test]
fn a_single_node_gets_what_is_written() {
    let Some(kubectl) = with_kubectl() else { return };
    let rendered = rendered(&kubectl, "overlays/single-node");
    let files = [
        "namespace",
        "service-account",
        "security-context-constraints",
        "rbac",
        "priority-class",
        "pre-cache-spec",
    ];
    let mut written: Vec<Value> = files
        .iter()
        .flat_map(|file| objects(&format!("base/{file}.yaml")))
        .collect();
    written.extend(objects("job/job.yaml"));
    assert_eq!(rendered.len(), written.len());
    for object in written {
        assert!(rendered.contains(&object), "{}", title(&object));
    }
}

#[test]
fn each_of_several_nodes_gets_its_own_job() {
    let Some(kubectl) = with_kubectl() else { return };
    let objects = rendered(&kubectl, "overlays/several-nodes");
    let jobs: Vec<&Value> = objects.iter().filter(|object| object["kind"] == "Job").collect();
    let mut nodes = BTreeSet::new();
    for job in &jobs {
        let mut job = (*job).clone();
        let node = job["spec"]["template"]["spec"]
            .as_object_mut()
            .unwrap()
            .remove("nodeSelector");
        let node = node.expect("it is bound to a node");
        let node = text(&node["kubernetes.io/hostname"]);
        assert_eq!(text(&job["metadata"]["name"]), format!("pre-cache-{node}"));
        job["metadata"]["name"] = "pre-cache".into();
        assert_eq!(job, super::job());
        nodes.insert(node.to_owned());
    }
    assert_eq!((jobs.len(), nodes.len()), (3, 3));
    let single = titles(&rendered(&kubectl, "overlays/single-node"));
    let beside: BTreeSet<_> = titles(&objects)
        .into_iter()
        .filter(|it| !it.starts_with("Job/"))
        .collect();
    assert_eq!(
        beside,
        single.into_iter().filter(|it| !it.starts_with("Job/")).collect()
    );
}

/// Most of the policy is a copy, for nothing but a plugin of kustomize could make it; so it has to be the same.
#[test]
fn the_policy_has_the_objects_of_a_single_node() {
    let Some(kubectl) = with_kubectl() else { return };
    let mut single = rendered(&kubectl, "overlays/single-node");
    for object in &mut single {
        // If the Job removed itself, the policy would create it again at once.
        if object["kind"] == "Job" {
            let removed = object["spec"]
                .as_object_mut()
                .unwrap()
                .remove("ttlSecondsAfterFinished");
            removed.expect("a Job by itself is removed at last");
        }
    }
    let policy = rendered(&kubectl, "overlays/policy");
    let policy = policy.iter().find(|object| object["kind"] == "Policy").unwrap();
    let [agent, done] = &inner(policy)[..] else {
        panic!("two parts: the agent, and whether it is done");
    };
    let copied = inner(agent);
    assert_eq!(titles(&copied), titles(&single));
    for object in &copied {
        assert!(single.contains(object), "{}", title(object));
    }
    // Each alone, for one that stands above them would count for both.
    assert_eq!(policy["spec"]["remediationAction"], Value::Null);
    assert_eq!(
        (
            text(&agent["spec"]["remediationAction"]),
            text(&done["spec"]["remediationAction"])
        ),
        ("enforce", "inform")
    );
    let looked_at = inner(done);
    assert_eq!(titles(&looked_at), ["Job/pre-cache".to_owned()].into());
    assert_eq!(list(&looked_at[0]["spec"]), [Value::Null; 0]);
}

/// The CronJob's template is that Job but for what its kustomization changes; the example of a version spec names a release.
#[test]
fn a_cluster_without_a_hub_gets_the_job_each_night() {
    let Some(kubectl) = with_kubectl() else { return };
    let rendered = rendered(&kubectl, "overlays/standalone");
    let single = self::rendered(&kubectl, "overlays/single-node");
    let mut expected = titles(&single);
    expected.remove("Job/pre-cache");
    expected.remove("ConfigMap/pre-cache-spec");
    let mut there = titles(&rendered);
    assert!(there.remove("CronJob/pre-cache"));
    for kind in ["ClusterRole", "ClusterRoleBinding"] {
        assert!(there.remove(&format!("{kind}/spoke-precache-from-cluster")));
    }
    assert_eq!(there, expected);
    let [.., cron_job] = &rendered[..] else {
        panic!("no objects");
    };
    let spec = &cron_job["spec"];
    assert_eq!(spec["concurrencyPolicy"], "Forbid");
    let template = spec["jobTemplate"]["spec"].clone();
    let mut job = super::job()["spec"].take();
    job.as_object_mut().unwrap().remove("ttlSecondsAfterFinished");
    let pod = &mut job["template"]["spec"];
    pod["volumes"][0]["configMap"]["optional"] = true.into();
    let args = &template["template"]["spec"]["containers"][0]["args"];
    pod["containers"][0]["args"] = args.clone();
    assert_eq!(template, job);

    // They are the program's, and the agent ends before Kubernetes ends it.
    let words = std::iter::once("spoke-precache").chain(list(args).iter().map(text));
    let Command::Run(run) = Cli::try_parse_from(words).unwrap().command else {
        panic!("{args}");
    };
    let release = &run.flags.what.release;
    assert!(release.from_cluster && release.recommended, "{args}");
    let deadline = run.flags.bounds.deadline.unwrap().as_secs();
    let killed = job["activeDeadlineSeconds"].as_i64().unwrap();
    assert!((1..killed).contains(&deadline), "{args}");
}

/// Added as its first lines describe.
#[test]
fn a_component_adds_its_rights_and_a_variable_and_nothing_else() {
    let Some(kubectl) = with_kubectl() else { return };
    for (component, name, value) in [
        ("pin", "SPOKE_PRECACHE_PIN", "api"),
        ("only-used", "SPOKE_PRECACHE_ONLY_USED", "true"),
    ] {
        let copy = tempfile::tempdir().unwrap();
        for file in files() {
            let to = copy.path().join(file.strip_prefix(top()).unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(file, to).unwrap();
        }
        let text = fs::read_to_string(top().join(format!("components/{component}/kustomization.yaml")));
        let text = text.unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("#   ")).unwrap();
        let with_component = |overlay: &str| {
            let overlay = copy.path().join(overlay);
            let kustomization = overlay.join("kustomization.yaml");
            let text = fs::read_to_string(&kustomization).unwrap() + line + "\n";
            fs::write(kustomization, text).unwrap();
            rendered(&kubectl, overlay.to_str().unwrap())
        };
        let mut with = with_component("overlays/single-node");
        let mut expected = rendered(&kubectl, "overlays/single-node");
        expected.extend(objects(&format!("components/{component}/rbac.yaml")));
        for object in &mut expected {
            if object["kind"] == "Job" {
                let env = &mut object["spec"]["template"]["spec"]["containers"][0]["env"];
                let variable = json!({"name": name, "value": value});
                env.as_array_mut().unwrap().push(variable);
            }
        }
        let flaws: Vec<String> = with.iter().flat_map(flaws).collect();
        assert_eq!(flaws, [""; 0]);
        assert_eq!(with.len(), expected.len());
        with.retain(|object| !expected.contains(object));
        assert_eq!(titles(&with), BTreeSet::new(), "{component}");
        // The CronJob's template has it too.
        let each_night = with_component("overlays/standalone");
        let cron_job = each_night
            .iter()
            .find(|object| object["kind"] == "CronJob")
            .unwrap();
        let pod = &cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
        let variable = json!({"name": name, "value": value});
        assert!(
            list(&pod["containers"][0]["env"]).contains(&variable),
            "{component}"
        );
    }
}

/// `oc apply -k` goes by this order; the Job controller's first pod needs all that the Job does.
#[test]
fn a_job_is_applied_after_its_constraints_and_all_else() {
    let Some(kubectl) = with_kubectl() else { return };
    for overlay in ["single-node", "several-nodes"] {
        let objects = rendered(&kubectl, &format!("overlays/{overlay}"));
        let mut kinds = objects.iter().map(|object| text(&object["kind"]));
        let before = kinds.by_ref().take_while(|kind| *kind != "Job");
        let before: Vec<&str> = before.collect();
        assert!(before.contains(&"SecurityContextConstraints"), "{before:?}");
        assert_eq!(before[0], "Namespace");
        assert!(kinds.all(|kind| kind == "Job"), "{overlay}");
    }
}

/// Names that one object has and another refers to.
#[test]
fn what_refers_to_each_other_is_there() {
    let Some(kubectl) = with_kubectl() else { return };
    let there = titles(&rendered(&kubectl, "overlays/single-node"));
    let pod = &super::job()["spec"]["template"]["spec"];
    for wanted in [
        format!("ServiceAccount/{}", text(&pod["serviceAccountName"])),
        format!("PriorityClass/{}", text(&pod["priorityClassName"])),
        format!("ConfigMap/{}", text(&pod["volumes"][0]["configMap"]["name"])),
    ] {
        assert!(there.contains(&wanted), "{wanted}");
    }
    let talm = rendered(&kubectl, "overlays/talm");
    let [config, upgrade] = ["PreCachingConfig", "ClusterGroupUpgrade"]
        .map(|kind| talm.iter().find(|object| object["kind"] == kind).unwrap());
    for field in ["name", "namespace"] {
        assert_eq!(
            upgrade["spec"]["preCachingConfigRef"][field],
            config["metadata"][field]
        );
    }
}
