//! What is asked of the API, and so what the service account must be allowed: nothing is sent that is no [`Rule`].

use super::ClusterError;

/// One thing that is asked of the API: a rule of a Role or ClusterRole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `batch`; empty for the core group.
    pub group: &'static str,
    /// `v1`. A role does not name it.
    pub version: &'static str,
    /// `jobs`; `nodes/proxy` for a subresource.
    pub resource: &'static str,
    /// `get`, `patch`, `create` or `delete`.
    pub verb: &'static str,
    /// Where such objects are.
    pub place: Scope,
    /// The flag that needs it; always needed, if there is none.
    pub only_with: Option<&'static str>,
}

/// Where objects are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In no namespace: a ClusterRole.
    Cluster,
    /// In the namespace of our own pod: a Role there.
    Own,
    /// In this one: a Role there.
    Namespace(&'static str),
}

/// Where OpenShift keeps the ConfigMaps that its configuration names.
pub const CONFIG_NAMESPACE: &str = "openshift-config";

const fn rule(group: &'static str, resource: &'static str, verb: &'static str, place: Scope) -> Rule {
    Rule {
        group,
        version: "v1",
        resource,
        verb,
        place,
        only_with: None,
    }
}

/// The kubelet's configuration, through the API server. Not asked where `--image-gc-high-threshold` is given.
pub(super) const GET_CONFIGZ: Rule = rule("", "nodes/proxy", "get", Scope::Cluster);
/// Our own pod, for its owner.
pub(super) const GET_POD: Rule = rule("", "pods", "get", Scope::Own);
/// Our own Job, for its start and its deadline, and before each patch for its version.
pub(super) const GET_JOB: Rule = rule("batch", "jobs", "get", Scope::Own);
/// Our own Job's annotations.
pub(super) const PATCH_JOB: Rule = rule("batch", "jobs", "patch", Scope::Own);
/// What happened to our own Job.
pub(super) const CREATE_EVENT: Rule = rule("events.k8s.io", "events", "create", Scope::Own);
/// The cluster's proxy, and who is trusted beside the system's authorities.
pub(super) const GET_PROXY: Rule = rule("config.openshift.io", "proxies", "get", Scope::Cluster);
/// Who is trusted for single registries.
pub(super) const GET_IMAGE_CONFIG: Rule = rule("config.openshift.io", "images", "get", Scope::Cluster);
/// The certificates that those two name.
pub(super) const GET_CONFIG_MAP: Rule = rule("", "configmaps", "get", Scope::Namespace(CONFIG_NAMESPACE));
/// Server-side apply.
pub(super) const PATCH_PINS: Rule = Rule {
    only_with: Some("--pin api"),
    ..rule(
        "machineconfiguration.openshift.io",
        "pinnedimagesets",
        "patch",
        Scope::Cluster,
    )
};
/// The API server wants this too where an apply makes a new object.
const CREATE_PINS: Rule = Rule {
    verb: "create",
    ..PATCH_PINS
};
/// Sets that an earlier run needed and this one does not: an empty one is none that the API takes.
pub(super) const DELETE_PINS: Rule = Rule {
    verb: "delete",
    ..PATCH_PINS
};

/// Everything that is ever asked. The roles in `manifests/` allow this and nothing else.
pub const RULES: [Rule; 11] = [
    GET_CONFIGZ,
    GET_POD,
    GET_JOB,
    PATCH_JOB,
    CREATE_EVENT,
    GET_PROXY,
    GET_IMAGE_CONFIG,
    GET_CONFIG_MAP,
    PATCH_PINS,
    CREATE_PINS,
    DELETE_PINS,
];

impl Rule {
    /// `get jobs.batch`, as `kubectl auth can-i` takes it.
    pub(super) fn question(&self) -> String {
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

    /// The URL's path of the object `name`, or of all of them if there is no name yet.
    pub(super) fn path(&self, own_namespace: &str, name: &str) -> Result<String, ClusterError> {
        let mut path = match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        };
        match self.place {
            Scope::Cluster => {}
            Scope::Own => path += &format!("/namespaces/{}", checked(own_namespace)?),
            Scope::Namespace(namespace) => path += &format!("/namespaces/{namespace}"),
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

/// A name as Kubernetes allows it (RFC 1123), which leads nowhere else when it is put into a path.
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
    fn a_rule_is_a_path_and_a_question() {
        for (rule, name, path, question) in [
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
            assert_eq!(rule.question(), question);
        }
    }

    #[test]
    fn no_name_leads_elsewhere() {
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
