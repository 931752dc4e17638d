//! Compares the manifests with the program: flags and variables, exit codes, API requests, version spec.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::{CommandFactory as _, Parser as _};
use serde_json::Value;
use spoke_precache::cancel::StopReason;
use spoke_precache::cli::Cli;
use spoke_precache::cluster::{PinnedImageSets, RULES, RuleScope};
use spoke_precache::exit_code::{Ending, Failure};
use spoke_precache::oci::Reference;
use spoke_precache::spec::from_document;

use super::{container, job, list, objects, text, top};

/// Variables without a flag: the node whose kubelet is asked, as in TALM's Job, and the pod whose Job is annotated.
const OTHER_VARIABLES: [&str; 2] = ["NODE_NAME", "POD_NAME"];

/// Whether a flag, or the variable of one, is that of `run` or `delta create`.
fn is_flag(name: &str) -> bool {
    let command = Cli::command();
    let create = command
        .find_subcommand("delta")
        .and_then(|delta| delta.find_subcommand("create"));
    let flags = command.find_subcommand("run").unwrap().get_arguments();
    let flags = flags.chain(create.unwrap().get_arguments());
    let mut long = flags.filter_map(|flag| Some(flag.get_long()?.to_owned()));
    // Every flag has its variable (`documentation.rs`).
    long.any(|flag| {
        let variable = format!("SPOKE_PRECACHE_{}", flag.replace('-', "_").to_uppercase());
        name == variable || name == format!("--{flag}")
    })
}

#[test]
fn arguments_and_variables_are_the_program_s() {
    let job = job();
    let container = container(&job);
    assert_eq!(
        container["command"],
        Value::Null,
        "the image's entry point is the program"
    );
    let words = list(&container["args"])
        .iter()
        .map(|word| OsString::from(text(word)));
    let words = std::iter::once(OsString::from("spoke-precache")).chain(words);
    Cli::try_parse_from(words).unwrap();

    for variable in list(&container["env"]) {
        let name = text(&variable["name"]);
        assert!(is_flag(name) || OTHER_VARIABLES.contains(&name), "{name}");
    }
}

/// Flags and variables in comments and patches exist.
#[test]
fn every_flag_that_is_named_is_the_program_s() {
    const OF_OC: [&str; 2] = ["--type", "--patch-file"];
    for path in super::files() {
        let text = std::fs::read_to_string(&path).unwrap();
        let words = text.split(|c: char| c.is_whitespace() || "`,;)=".contains(c));
        let is_meant =
            |word: &&str| (word.starts_with("--") && *word != "---") || word.starts_with("SPOKE_PRECACHE_");
        for word in words.filter(is_meant) {
            assert!(
                is_flag(word) || OF_OC.contains(&word),
                "{}: `{word}`",
                path.display()
            );
        }
    }
}

#[test]
fn the_job_fails_at_once_where_another_run_does_not_help() {
    use Failure::*;
    let job = job();
    let spec = &job["spec"];
    assert_eq!(
        text(&spec["template"]["spec"]["restartPolicy"]),
        "Never",
        "a policy needs it"
    );
    let [first, second] = list(&spec["podFailurePolicy"]["rules"]) else {
        panic!("two rules");
    };
    // Before the codes: a pod that is evicted leaves one too.
    assert_eq!(
        (text(&first["action"]), text(&first["onPodConditions"][0]["type"])),
        ("Ignore", "DisruptionTarget")
    );
    assert_eq!(
        (text(&second["action"]), text(&second["onExitCodes"]["operator"])),
        ("FailJob", "In")
    );
    assert_eq!(second["onExitCodes"]["containerName"], container(&job)["name"]);
    let written: BTreeSet<u64> = list(&second["onExitCodes"]["values"])
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let hopeless = [Usage, Space, Credentials, Payload, Content, Store, Registry].map(Ending::Failed);
    let ended = [Ending::Stopped(StopReason::Deadline)];
    let codes = hopeless.iter().chain(&ended).map(|ending| ending.code().into());
    assert_eq!(written, codes.collect());
    for counted in [
        Ending::Failed(Incomplete),
        Ending::Stopped(StopReason::Signal(15)),
        Ending::Complete,
    ] {
        assert!(!written.contains(&counted.code().into()));
    }
}

/// Group, resource, verb, and where: `cluster`, `own` or a namespace, of what is asked always, or only with a flag.
fn asked(only_with: Option<&str>) -> BTreeSet<(String, String, String, String)> {
    let rules = RULES.iter().filter(|rule| rule.only_with == only_with);
    let asked = rules.map(|rule| {
        let place = match rule.scope {
            RuleScope::Cluster | RuleScope::OptionalNamespace(_) => "cluster",
            RuleScope::Own => "own",
            RuleScope::Namespace(namespace) => namespace,
        };
        [rule.group, rule.resource, rule.verb, place]
            .map(str::to_owned)
            .into()
    });
    asked.collect()
}

/// What a file's roles allow, each bound only to the Job's service account.
fn allowed(path: &str) -> BTreeSet<(String, String, String, String)> {
    let (roles, bindings): (Vec<Value>, Vec<Value>) = objects(path)
        .into_iter()
        .partition(|object| text(&object["kind"]).ends_with("Role"));
    let job = job();
    let mut allowed = BTreeSet::new();
    for role in roles {
        let binding = bindings.iter().find(|it| {
            it["kind"] == format!("{}Binding", text(&role["kind"]))
                && it["metadata"]["namespace"] == role["metadata"]["namespace"]
                && it["roleRef"]["kind"] == role["kind"]
                && it["roleRef"]["name"] == role["metadata"]["name"]
        });
        let [subject] = list(&binding.expect("every role is bound")["subjects"]) else {
            panic!("one subject");
        };
        assert_eq!(
            subject["name"],
            job["spec"]["template"]["spec"]["serviceAccountName"]
        );
        assert_eq!(subject["namespace"], job["metadata"]["namespace"]);
        let place = match role["metadata"]["namespace"].as_str() {
            None => "cluster",
            Some(namespace) if job["metadata"]["namespace"] == namespace => "own",
            Some(namespace) => namespace,
        };
        for rule in list(&role["rules"]) {
            for group in list(&rule["apiGroups"]) {
                for resource in list(&rule["resources"]) {
                    for verb in list(&rule["verbs"]) {
                        let [group, resource, verb] = [group, resource, verb].map(|it| text(it).to_owned());
                        allowed.insert((group, resource, verb, place.to_owned()));
                    }
                }
            }
        }
    }
    allowed
}

#[test]
fn the_roles_allow_what_is_asked_and_nothing_else() {
    let mut allowed_to_run = allowed("base/rbac.yaml");
    // Of the pod's admission, not of the program.
    let admission = (
        "security.openshift.io",
        "securitycontextconstraints",
        "use",
        "own",
    );
    assert!(allowed_to_run.remove(&<[&str; 4]>::from(admission).map(str::to_owned).into()));
    assert_eq!(allowed_to_run, asked(None));
    for (flag, roles) in [
        ("--pin api", "components/pin/rbac.yaml"),
        ("--only-used", "components/only-used/rbac.yaml"),
        ("--from-cluster", "overlays/standalone/rbac.yaml"),
    ] {
        assert_eq!(allowed(roles), asked(Some(flag)), "{flag}");
    }
    let flags: BTreeSet<_> = RULES.iter().filter_map(|rule| rule.only_with).collect();
    assert_eq!(flags.len(), 3, "a file for each");
}

/// With the token, only these sets can be changed or removed.
#[test]
fn the_rights_to_pin_are_bound_to_the_names_that_are_made() {
    let roles = objects("components/pin/rbac.yaml");
    let role = roles
        .iter()
        .find(|object| object["kind"] == "ClusterRole")
        .unwrap();
    let [rule] = list(&role["rules"]) else {
        panic!("one rule");
    };
    let written: Vec<_> = list(&rule["resourceNames"]).iter().map(text).collect();
    assert_eq!(written, PinnedImageSets::names().collect::<Vec<_>>());
}

/// What the Job asks of the node is what the constraints let it have, and no more.
#[test]
fn the_constraints_are_the_job_s() {
    let constraints = objects("base/security-context-constraints.yaml").remove(0);
    let job = job();
    let pod = &job["spec"]["template"]["spec"];
    let context = &container(&job)["securityContext"];
    assert_eq!(constraints["allowedCapabilities"], context["capabilities"]["add"]);
    assert_eq!(context["capabilities"]["drop"], serde_json::json!(["ALL"]));
    assert_eq!(
        constraints["readOnlyRootFilesystem"],
        context["readOnlyRootFilesystem"]
    );
    assert_eq!(
        (
            text(&constraints["seccompProfiles"][0]),
            text(&context["seccompProfile"]["type"])
        ),
        ("runtime/default", "RuntimeDefault")
    );
    assert_eq!(context["privileged"], false);
    // Kubernetes refuses it beside CAP_SYS_ADMIN.
    assert_eq!(context["allowPrivilegeEscalation"], Value::Null);
    for host in ["hostNetwork", "hostPID", "hostIPC"] {
        assert_eq!(pod[host], Value::Null);
    }
    let mut kinds: BTreeSet<&str> = ["projected"].into();
    for volume in list(&pod["volumes"]) {
        kinds.extend(
            volume
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .filter(|key| *key != "name"),
        );
    }
    assert_eq!(kinds, list(&constraints["volumes"]).iter().map(text).collect());
}

#[test]
fn the_example_is_what_the_program_writes() {
    let written = std::fs::read_to_string(top().join("base/pre-cache-spec.yaml")).unwrap();
    let document = from_document(written.as_bytes()).unwrap();
    assert_eq!(document.warnings, [""; 0]);
    document.spec.validate().unwrap();
    for (key, value) in document.spec.keys() {
        assert!(!value.is_empty(), "an example of `{key}`");
    }
    let (comment, config_map) = written.split_once('\n').unwrap();
    assert!(comment.starts_with("# "));
    assert_eq!(config_map, document.spec.to_yaml());
}

#[test]
fn talm_s_example_is_a_version_spec_too() {
    let written = std::fs::read_to_string(top().join("overlays/talm/pre-caching-config.yaml")).unwrap();
    let spec = from_document(written.as_bytes()).unwrap().spec;
    assert_eq!(spec.space_required, 40 << 30);
    assert_eq!(
        (spec.exclude_patterns.len(), spec.additional_images.len()),
        (3, 1)
    );
}

/// One image, everywhere.
#[test]
fn the_image_is_the_same_everywhere() {
    let job = job();
    let image = text(&container(&job)["image"]);
    image.parse::<Reference>().unwrap();
    let config = objects("overlays/talm/pre-caching-config.yaml").remove(0);
    let patch = objects("overlays/talm/subscription-patch.yaml").remove(0);
    assert_eq!(text(&config["spec"]["overrides"]["preCacheImage"]), image);
    assert_eq!(text(&patch["spec"]["config"]["env"][0]["value"]), image);
    for overlay in ["single-node", "several-nodes", "standalone"] {
        let kustomization = objects(&format!("overlays/{overlay}/kustomization.yaml")).remove(0);
        let [entry] = list(&kustomization["images"]) else {
            panic!("one image");
        };
        assert_eq!(entry["name"], entry["newName"]);
        assert_eq!(
            format!("{}:{}", text(&entry["name"]), text(&entry["newTag"])),
            image
        );
    }
}
