//! Lists every API request that a run may send, as RBAC rules: no request is sent without a [`Rule`].

use super::ClusterError;

/// One kind of API request: a rule of a Role or ClusterRole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `batch`; empty for the core group.
    pub group: &'static str,
    /// `v1`; roles do not contain it.
    pub version: &'static str,
    /// `jobs`; `nodes/proxy` for a subresource.
    pub resource: &'static str,
    /// `get`, `list`, `patch`, `create` or `delete`.
    pub verb: &'static str,
    /// The scope of the objects.
    pub scope: RuleScope,
    /// The flag that needs the rule; `None` if it is always needed.
    pub only_with: Option<&'static str>,
}

/// The scope of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleScope {
    /// The cluster: a ClusterRole.
    Cluster,
    /// The namespace of this pod: a Role there.
    Own,
    /// This namespace: a Role there.
    Namespace(&'static str),
    /// This namespace, which many clusters do not have: a ClusterRole.
    OptionalNamespace(&'static str),
}

/// The namespace of the ConfigMaps that OpenShift's configuration refers to.
pub const CONFIG_NAMESPACE: &str = "openshift-config";

/// The namespace of the ConfigMaps that the cluster-version operator reads and writes.
pub const MANAGED_NAMESPACE: &str = "openshift-config-managed";

/// The group of the Machine Config Operator.
const MACHINE_CONFIG: &str = "machineconfiguration.openshift.io";

/// The namespace of the managed-upgrade operator and of its UpgradeConfig (its `config/config.go`).
const UPGRADE_NAMESPACE: &str = "openshift-managed-upgrade-operator";

const fn rule(group: &'static str, resource: &'static str, verb: &'static str, scope: RuleScope) -> Rule {
    Rule {
        group,
        version: "v1",
        resource,
        verb,
        scope,
        only_with: None,
    }
}

const fn list_templates(group: &'static str, resource: &'static str) -> Rule {
    Rule {
        only_with: Some("--only-used"),
        ..rule(group, resource, "list", RuleScope::Cluster)
    }
}

/// Reads the kubelet's configuration through the API server. Not sent with `--image-gc-high-threshold`.
pub(super) const GET_CONFIGZ: Rule = rule("", "nodes/proxy", "get", RuleScope::Cluster);
/// Reads this pod, to find its owner.
pub(super) const GET_POD: Rule = rule("", "pods", "get", RuleScope::Own);
/// Reads this Job: its start and deadline, and before each patch its `resourceVersion`.
pub(super) const GET_JOB: Rule = rule("batch", "jobs", "get", RuleScope::Own);
/// Patches this Job's annotations.
pub(super) const PATCH_JOB: Rule = rule("batch", "jobs", "patch", RuleScope::Own);
/// Creates events about this Job.
pub(super) const CREATE_EVENT: Rule = rule("events.k8s.io", "events", "create", RuleScope::Own);
/// Reads the cluster's proxy, and the name of its additional certificate authorities.
pub(super) const GET_PROXY: Rule = rule("config.openshift.io", "proxies", "get", RuleScope::Cluster);
/// Reads the name of the certificate authorities of single registries.
pub(super) const GET_IMAGE_CONFIG: Rule = rule("config.openshift.io", "images", "get", RuleScope::Cluster);
/// Reads the certificates that those two refer to.
pub(super) const GET_CONFIG_MAP: Rule = rule("", "configmaps", "get", RuleScope::Namespace(CONFIG_NAMESPACE));
/// Reads the releases, the capabilities and the signature stores of the cluster, and which release it requests.
pub(super) const GET_CLUSTER_VERSION: Rule = rule(
    "config.openshift.io",
    "clusterversions",
    "get",
    RuleScope::Cluster,
);
/// Reads the cluster's profile in the environment of the cluster-version operator. Only sent by `plan`.
pub(super) const GET_VERSION_OPERATOR: Rule = rule(
    "apps",
    "deployments",
    "get",
    RuleScope::Namespace("openshift-cluster-version"),
);
/// Reads the cluster's feature set. Only sent by `plan`.
pub(super) const GET_FEATURE_GATE: Rule =
    rule("config.openshift.io", "featuregates", "get", RuleScope::Cluster);
/// Reads the keyrings and the signature stores of the running release. Not sent if flags have keys and stores.
pub(super) const GET_VERIFICATION: Rule =
    rule("", "configmaps", "get", RuleScope::Namespace(MANAGED_NAMESPACE));
/// Reads the signatures that were put into the cluster. Not sent if a flag names a store.
pub(super) const LIST_SIGNATURES: Rule = Rule {
    verb: "list",
    ..GET_VERIFICATION
};
/// Reads which release the managed-upgrade operator is asked to install, and when.
pub(super) const GET_UPGRADE_CONFIG: Rule = Rule {
    version: "v1alpha1",
    only_with: Some("--from-cluster"),
    ..rule(
        "upgrade.managed.openshift.io",
        "upgradeconfigs",
        "get",
        RuleScope::OptionalNamespace(UPGRADE_NAMESPACE),
    )
};
/// Lists CronJobs, for the images of their pods.
pub(super) const LIST_CRON_JOBS: Rule = list_templates("batch", "cronjobs");
/// Lists Jobs, likewise.
pub(super) const LIST_JOBS: Rule = list_templates("batch", "jobs");
/// Lists Deployments, likewise.
pub(super) const LIST_DEPLOYMENTS: Rule = list_templates("apps", "deployments");
/// Lists DaemonSets, likewise.
pub(super) const LIST_DAEMON_SETS: Rule = list_templates("apps", "daemonsets");
/// Lists StatefulSets, likewise.
pub(super) const LIST_STATEFUL_SETS: Rule = list_templates("apps", "statefulsets");
/// Reads the labels of this node, which select its pools.
pub(super) const GET_NODE: Rule = rule("", "nodes", "get", RuleScope::Cluster);
/// Lists the pools: whether those of this node have PinnedImageSets.
pub(super) const LIST_POOLS: Rule = rule(MACHINE_CONFIG, "machineconfigpools", "list", RuleScope::Cluster);
/// Reads the images of these sets.
pub(super) const GET_PINS: Rule = rule(MACHINE_CONFIG, "pinnedimagesets", "get", RuleScope::Cluster);
/// Applies PinnedImageSets (server-side apply).
pub(super) const PATCH_PINS: Rule = Rule {
    only_with: Some("--pin api"),
    ..rule(MACHINE_CONFIG, "pinnedimagesets", "patch", RuleScope::Cluster)
};
/// The API server requires this too if the apply creates the object.
const CREATE_PINS: Rule = Rule {
    verb: "create",
    ..PATCH_PINS
};
/// Deletes the sets that an earlier run needed and this one does not; the API refuses empty sets.
pub(super) const DELETE_PINS: Rule = Rule {
    verb: "delete",
    ..PATCH_PINS
};

/// Every request. The roles in `manifests/` allow exactly these.
pub const RULES: [Rule; 25] = [
    GET_CONFIGZ,
    GET_POD,
    GET_JOB,
    PATCH_JOB,
    CREATE_EVENT,
    GET_PROXY,
    GET_IMAGE_CONFIG,
    GET_CONFIG_MAP,
    GET_CLUSTER_VERSION,
    GET_VERSION_OPERATOR,
    GET_FEATURE_GATE,
    GET_VERIFICATION,
    LIST_SIGNATURES,
    GET_UPGRADE_CONFIG,
    LIST_CRON_JOBS,
    LIST_JOBS,
    LIST_DEPLOYMENTS,
    LIST_DAEMON_SETS,
    LIST_STATEFUL_SETS,
    GET_NODE,
    LIST_POOLS,
    GET_PINS,
    PATCH_PINS,
    CREATE_PINS,
    DELETE_PINS,
];

impl Rule {
    /// `get jobs.batch`, as in `kubectl auth can-i`.
    pub(super) fn request(&self) -> String {
        let (plural, subresource) = self.split();
        let group = match self.group {
            "" => String::new(),
            group => format!(".{group}"),
        };
        let subresource = match subresource {
            "" => String::new(),
            name => format!(" --subresource={name}"),
        };
        format!("{} {plural}{group}{subresource}", self.verb)
    }

    /// The URL path of the object `name`, or of the collection if the name is empty.
    pub(super) fn path(&self, own_namespace: &str, name: &str) -> Result<String, ClusterError> {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match self.scope {
            RuleScope::Cluster => {}
            RuleScope::Own => path += &format!("/namespaces/{}", checked(own_namespace)?),
            RuleScope::Namespace(namespace) | RuleScope::OptionalNamespace(namespace) => {
                path += &format!("/namespaces/{namespace}")
            }
        }
        let (plural, subresource) = self.split();
        path += &format!("/{plural}");
        if !name.is_empty() {
            path += &format!("/{}", checked(name)?);
        }
        if !subresource.is_empty() {
            path += &format!("/{subresource}");
        }
        Ok(path)
    }

    fn split(&self) -> (&'static str, &'static str) {
        self.resource.split_once('/').unwrap_or((self.resource, ""))
    }
}

/// A name that Kubernetes allows (RFC 1123), so that it cannot change the path that it is inserted into.
fn checked(name: &str) -> Result<&str, ClusterError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = !name.is_empty() && name.len() <= 253 && name.bytes().all(plain);
    match is_name && name.starts_with(|first: char| first.is_ascii_alphanumeric()) {
        true => Ok(name),
        false => Err(ClusterError::Name(name.escape_debug().take(100).collect())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_rule_has_a_path_and_a_request() {
        for (rule, name, path, request) in [
            (
                GET_CONFIGZ,
                "node-1.site",
                "/api/v1/nodes/node-1.site/proxy",
                "get nodes --subresource=proxy",
            ),
            (
                PATCH_JOB,
                "pre-cache",
                "/apis/batch/v1/namespaces/own/jobs/pre-cache",
                "patch jobs.batch",
            ),
            (
                CREATE_EVENT,
                "",
                "/apis/events.k8s.io/v1/namespaces/own/events",
                "create events.events.k8s.io",
            ),
            (
                GET_CONFIG_MAP,
                "ca",
                "/api/v1/namespaces/openshift-config/configmaps/ca",
                "get configmaps",
            ),
        ] {
            assert_eq!(rule.path("own", name).unwrap(), path);
            assert_eq!(rule.request(), request);
        }
    }

    #[test]
    fn a_name_cannot_change_the_path() {
        for name in [
            "../secrets/x",
            "a/b",
            "a?b",
            "A",
            "..",
            ".a",
            "a%2f",
            "a b",
            &"a".repeat(254),
        ] {
            GET_JOB.path("own", name).unwrap_err();
            GET_JOB.path(name, "job").unwrap_err();
        }
        GET_JOB.path("", "job").unwrap_err();
    }
}
