//! Tests that every field of every object exists in its kind.
//!
//! Of Kubernetes' own kinds k8s-openapi has the types: what is lost on the way through one is a field that it does not have.
//! Of the others the fields that we use are listed here, as their CustomResourceDefinitions have them.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{ConfigMap, EnvVar, Namespace, PersistentVolumeClaim, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{files, list, objects, parse, text, title, top};

/// Kinds that are not Kubernetes' own, and their fields that may be used: the path (`[]` for a list's elements), its type, and
/// `+` before it if it is required; null counts as missing, because kubectl omits it. `{}` after a path is an object or list of
/// any form.
const FOREIGN: &[(&str, &str, &[&str])] = &[
    (
        "security.openshift.io/v1",
        "SecurityContextConstraints",
        &[
            "+allowHostDirVolumePlugin boolean",
            "+allowHostIPC boolean",
            "+allowHostNetwork boolean",
            "+allowHostPID boolean",
            "+allowHostPorts boolean",
            "allowPrivilegeEscalation boolean",
            "+allowPrivilegedContainer boolean",
            "+readOnlyRootFilesystem boolean",
            "+allowedCapabilities[] string",
            "+defaultAddCapabilities[] string",
            "+requiredDropCapabilities[] string",
            "+priority integer",
            "+volumes[] string",
            "fsGroup.type string",
            "supplementalGroups.type string",
            "runAsUser.type string",
            "seLinuxContext.type string",
            "seccompProfiles[] string",
            "users[] string",
            "groups[] string",
        ],
    ),
    (
        "policy.open-cluster-management.io/v1",
        "Policy",
        &[
            "+spec.disabled boolean",
            "spec.remediationAction string",
            "+spec.policy-templates[].objectDefinition{}",
        ],
    ),
    (
        "policy.open-cluster-management.io/v1",
        "ConfigurationPolicy",
        &[
            "spec.remediationAction string",
            "spec.severity string",
            "spec.pruneObjectBehavior string",
            "+spec.object-templates[].complianceType string",
            "+spec.object-templates[].objectDefinition{}",
        ],
    ),
    (
        "policy.open-cluster-management.io/v1",
        "PlacementBinding",
        &[
            "+placementRef.apiGroup string",
            "+placementRef.kind string",
            "+placementRef.name string",
            "+subjects[].apiGroup string",
            "+subjects[].kind string",
            "+subjects[].name string",
        ],
    ),
    (
        "cluster.open-cluster-management.io/v1beta1",
        "Placement",
        &[
            "spec.clusterSets[] string",
            "spec.predicates[].requiredClusterSelector.labelSelector.matchLabels{}",
            "spec.tolerations[].key string",
            "spec.tolerations[].operator string",
        ],
    ),
    (
        "cluster.open-cluster-management.io/v1beta2",
        "ManagedClusterSetBinding",
        &["+spec.clusterSet string"],
    ),
    (
        "ran.openshift.io/v1alpha1",
        "PreCachingConfig",
        &[
            "spec.overrides.preCacheImage string",
            "spec.spaceRequired string",
            "spec.excludePrecachePatterns[] string",
            "spec.additionalImages[] string",
        ],
    ),
    (
        "ran.openshift.io/v1alpha1",
        "ClusterGroupUpgrade",
        &[
            "spec.clusters[] string",
            "spec.enable boolean",
            "spec.preCaching boolean",
            "spec.preCachingConfigRef.name string",
            "spec.preCachingConfigRef.namespace string",
            "spec.managedPolicies[] string",
            "+spec.remediationStrategy.maxConcurrency integer",
            "spec.remediationStrategy.timeout integer",
        ],
    ),
    (
        "kustomize.config.k8s.io/v1beta1",
        "Kustomization",
        &[
            "resources[] string",
            "sortOptions.order string",
            "nameSuffix string",
            "images[].name string",
            "images[].newName string",
            "images[].newTag string",
            "patches[].target.kind string",
            "patches[].patch string",
            "replacements[].source.kind string",
            "replacements[].source.name string",
            "replacements[].source.fieldPath string",
            "replacements[].targets[].select.kind string",
            "replacements[].targets[].fieldPaths[] string",
            "replacements[].targets[].options.create boolean",
        ],
    ),
    (
        "kustomize.config.k8s.io/v1alpha1",
        "Component",
        &[
            "resources[] string",
            "patches[].target.kind string",
            "patches[].patch string",
        ],
    ),
];

/// What is wrong with an object, and with those in it.
pub(super) fn flaws(object: &Value) -> Vec<String> {
    let (group, kind) = (&object["apiVersion"], &object["kind"]);
    let mut flaws = match (group.as_str(), kind.as_str()) {
        (Some("v1"), Some("Namespace")) => lost::<Namespace>(object),
        (Some("v1"), Some("ServiceAccount")) => lost::<ServiceAccount>(object),
        (Some("v1"), Some("ConfigMap")) => lost::<ConfigMap>(object),
        (Some("v1"), Some("PersistentVolumeClaim")) => lost::<PersistentVolumeClaim>(object),
        (Some("batch/v1"), Some("Job")) => lost::<Job>(object),
        (Some("batch/v1"), Some("CronJob")) => lost::<CronJob>(object),
        (Some("scheduling.k8s.io/v1"), Some("PriorityClass")) => lost::<PriorityClass>(object),
        (Some("rbac.authorization.k8s.io/v1"), Some("Role")) => lost::<Role>(object),
        (Some("rbac.authorization.k8s.io/v1"), Some("RoleBinding")) => lost::<RoleBinding>(object),
        (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRole")) => lost::<ClusterRole>(object),
        (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRoleBinding")) => {
            lost::<ClusterRoleBinding>(object)
        }
        (group, kind) => {
            let known = FOREIGN
                .iter()
                .find(|it| (Some(it.0), Some(it.1)) == (group, kind));
            known.map_or_else(
                || vec![format!("no kind `{group:?}` `{kind:?}` is known")],
                |(_, _, fields)| unlisted(object, fields),
            )
        }
    };
    let title = title(object);
    flaws
        .iter_mut()
        .for_each(|flaw| *flaw = format!("{title}: {flaw}"));
    flaws.extend(inner(object).iter().flat_map(self::flaws));
    flaws
}

/// The objects that a policy creates.
pub(super) fn inner(object: &Value) -> Vec<Value> {
    let templates = [
        &object["spec"]["policy-templates"],
        &object["spec"]["object-templates"],
    ];
    let definitions = templates.iter().flat_map(|it| list(it));
    definitions.map(|it| it["objectDefinition"].clone()).collect()
}

/// What `T` does not know, or means otherwise.
fn lost<T: DeserializeOwned + Serialize>(object: &Value) -> Vec<String> {
    let typed: T = match serde_json::from_value(object.clone()) {
        Ok(typed) => typed,
        Err(error) => return vec![error.to_string()],
    };
    let known: BTreeSet<_> = leaves(&serde_json::to_value(typed).unwrap())
        .into_iter()
        .collect();
    let written = leaves(object).into_iter();
    let lost = written.filter(|leaf| !known.contains(leaf));
    lost.map(|(path, value)| format!("no field `{path}` that may be `{value}`"))
        .collect()
}

fn unlisted(object: &Value, fields: &[&str]) -> Vec<String> {
    let general = [
        "+apiVersion string",
        "+kind string",
        "metadata{}",
        // A Job in a policy that only informs.
        "status.succeeded integer",
    ];
    let leaves = leaves(object);
    let mut flaws = Vec::new();
    let mut missing: BTreeSet<&str> = fields
        .iter()
        .filter_map(|field| field.strip_prefix('+'))
        .collect();
    for (path, value) in &leaves {
        let path = path.replace(|c: char| c.is_ascii_digit(), "");
        let found = general.iter().chain(fields).find(|field| {
            let field = field.trim_start_matches('+');
            match field.strip_suffix("{}") {
                Some(above) => path.starts_with(above),
                None => field.split_once(' ').is_some_and(|(name, kind)| {
                    let is_empty_list = value == "[]" && format!("{path}[]") == name;
                    is_empty_list || (path == name && kind == type_of(value))
                }),
            }
        });
        match found {
            Some(field) => {
                missing.remove(field.trim_start_matches('+'));
            }
            None => flaws.push(format!("no field `{path}` that may be `{value}`")),
        }
    }
    flaws.extend(missing.iter().map(|field| format!("`{field}` is missing")));
    flaws
}

/// Every value that is no object and no list with something in it, as JSON, with its path: `spec.containers[0].name`.
fn leaves(value: &Value) -> Vec<(String, String)> {
    fn below(path: String, value: &Value, leaves: &mut Vec<(String, String)>) {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                for (name, value) in fields {
                    let dot = if path.is_empty() { "" } else { "." };
                    below(format!("{path}{dot}{name}"), value, leaves);
                }
            }
            Value::Array(elements) if !elements.is_empty() => {
                for (index, value) in elements.iter().enumerate() {
                    below(format!("{path}[{index}]"), value, leaves);
                }
            }
            leaf => leaves.push((path, leaf.to_string())),
        }
    }
    let mut leaves = Vec::new();
    below(String::new(), value, &mut leaves);
    leaves
}

fn type_of(json: &str) -> &'static str {
    match serde_json::from_str(json) {
        Ok(Value::String(_)) => "string",
        Ok(Value::Bool(_)) => "boolean",
        Ok(Value::Number(_)) => "integer",
        Ok(Value::Null) => "null",
        _ => "another",
    }
}

#[test]
fn every_file_has_objects_that_kubernetes_knows() {
    let mut flaws = Vec::new();
    for path in files() {
        if path.ends_with("talm/subscription-patch.yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let objects = parse(&text);
        assert!(!objects.is_empty(), "{}", path.display());
        assert!(
            text.starts_with("# ") || text.starts_with("apiVersion"),
            "{}",
            path.display()
        );
        for object in objects {
            let found = self::flaws(&object).into_iter();
            flaws
                .extend(found.map(|flaw| format!("{}: {flaw}", path.strip_prefix(top()).unwrap().display())));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

/// It is no object, but OLM's SubscriptionConfig has Kubernetes' variables.
#[test]
fn the_patch_of_talm_s_subscription_sets_the_variable_that_talm_reads() {
    let patch = objects("overlays/talm/subscription-patch.yaml").remove(0);
    let env = &list(&patch["spec"]["config"]["env"])[0];
    assert_eq!(lost::<EnvVar>(env), [""; 0]);
    assert_eq!(patch, json!({"spec": {"config": {"env": [env]}}}));
    assert_eq!(text(&env["name"]), "PRECACHE_IMG");
}

/// A test that finds nothing must be able to find something.
#[test]
fn an_unknown_field_is_found() {
    let mut job = super::job();
    job["spec"]["template"]["spec"]["restartpolicy"] = "Never".into();
    assert_eq!(
        flaws(&job),
        ["Job/pre-cache: no field `spec.template.spec.restartpolicy` that may be `\"Never\"`"]
    );
    let mut config = objects("overlays/talm/pre-caching-config.yaml").remove(0);
    config["spec"]["spaceRequired"] = 40.into();
    assert_eq!(
        flaws(&config),
        ["PreCachingConfig/pre-cache: no field `spec.spaceRequired` that may be `40`"]
    );
    let mut constraints = objects("base/security-context-constraints.yaml").remove(0);
    constraints.as_object_mut().unwrap().remove("volumes");
    assert_eq!(
        flaws(&constraints),
        ["SecurityContextConstraints/spoke-precache: `volumes[] string` is missing"]
    );
}
