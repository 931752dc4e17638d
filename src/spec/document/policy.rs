//! Takes the objects out of ACM's policies by the rules of TALM's hub (`stripPolicy`, `doManagedPoliciesExist`).
//!
//! ```text
//! Policy              spec.policy-templates[].objectDefinition ─→ ConfigurationPolicy
//! ConfigurationPolicy spec.object-templates[].objectDefinition, or object-templates-raw ─→ objects
//!
//! complianceType mustnothave      the object is left out
//! remediationAction enforce       the policy is left out: TALM ignores it
//! disabled: true                  the policy is left out: no cluster gets it
//! a policy and its copy in a      only the copy counts; its hub templates are resolved
//!   cluster's namespace
//! ```
//!
//! Whether a cluster is compliant is not considered, as by the hub.

use std::collections::HashSet;

use super::DocumentError;
use super::kube_object::KubeObject;
use super::raw_templates;
use super::yaml_tree::YamlValue;

/// Where a Policy has its ConfigurationPolicies.
const TEMPLATES: &str = "spec.policy-templates";

/// The group of ACM's policies.
const GROUP: &str = "policy.open-cluster-management.io";

/// Whether an object is a policy.
pub(super) fn is_policy(object: &KubeObject<'_>) -> bool {
    object.is(GROUP, "Policy") || is_configuration_policy(object)
}

fn is_configuration_policy(object: &KubeObject<'_>) -> bool {
    object.is(GROUP, "ConfigurationPolicy")
}

/// The objects in all policies; adds warnings for the user.
pub(super) fn objects<'a>(
    policies: &[KubeObject<'a>],
    warnings: &mut Vec<String>,
) -> Result<Vec<KubeObject<'a>>, DocumentError> {
    let mut objects = Vec::new();
    let copies = Copies::of(policies);
    for policy in policies {
        if is_configuration_policy(policy) {
            of_configuration_policy(policy, policy, "", &mut objects)?;
            continue;
        }
        if copies.has_copy_of(policy) {
            continue;
        }
        if let Some(reason) = left_out(policy) {
            warnings.push(format!(
                "{}: {reason}; its objects are left out, as by TALM's hub",
                policy.title()
            ));
            continue;
        }
        if policy.at(TEMPLATES).is_none() {
            return Err(policy.wrong(TEMPLATES, policy.node, "it is missing".to_owned()));
        }
        for (index, template) in policy.list_at(TEMPLATES)?.iter().enumerate() {
            let path = format!("{TEMPLATES}[{index}].objectDefinition.");
            let Some(definition) = template.field("objectDefinition") else {
                let why = "it has no `objectDefinition`".to_owned();
                return Err(policy.wrong(&format!("{TEMPLATES}[{index}]"), template, why));
            };
            of_configuration_policy(policy, &policy.inner(definition), &path, &mut objects)?;
        }
    }
    Ok(objects)
}

/// The copies of policies in the namespaces of clusters: their name is `<namespace of the policy>.<its name>`.
struct Copies<'a> {
    namespaced: HashSet<(&'a str, &'a str)>,
    /// For a policy in a file without a namespace.
    names: HashSet<&'a str>,
}

impl<'a> Copies<'a> {
    fn of(policies: &[KubeObject<'a>]) -> Self {
        let names = policies.iter().filter_map(|policy| policy.metadata("name"));
        let namespaced: HashSet<_> = names.filter_map(|name| name.split_once('.')).collect();
        let names = namespaced.iter().map(|(_, name)| *name).collect();
        Self { namespaced, names }
    }

    fn has_copy_of(&self, policy: &KubeObject<'_>) -> bool {
        let name = policy.metadata("name").unwrap_or_default();
        match policy.metadata("namespace") {
            Some(namespace) => self.namespaced.contains(&(namespace, name)),
            None => self.names.contains(name),
        }
    }
}

fn left_out(policy: &KubeObject<'_>) -> Option<&'static str> {
    let action = policy.at("spec.remediationAction").and_then(|node| node.text());
    let disabled = policy.at("spec.disabled").map(|node| &node.value);
    match (disabled, action) {
        (Some(YamlValue::Boolean(true)), _) => Some("it is disabled"),
        (_, Some(action)) if action.eq_ignore_ascii_case("enforce") => {
            Some("its `remediationAction` is `enforce`")
        }
        _ => None,
    }
}

/// The objects of `definition`; `path` is its prefix in `policy`, which messages name.
fn of_configuration_policy<'a>(
    policy: &KubeObject<'a>,
    definition: &KubeObject<'a>,
    path: &str,
    objects: &mut Vec<KubeObject<'a>>,
) -> Result<(), DocumentError> {
    let (listed, raw) = ("spec.object-templates", format!("spec.{}", raw_templates::FIELD));
    let wrong = |why: &str| {
        let spec = definition.at("spec").unwrap_or(definition.node);
        let hint = "hint: leave this policy out, or name what it installs with flags";
        policy.wrong(
            &format!("{path}spec"),
            spec,
            format!("{why}, which TALM's hub refuses\n{hint}"),
        )
    };
    let field = match (definition.at(listed), definition.at(&raw)) {
        (Some(_), Some(_)) => return Err(wrong("it has `object-templates` and `object-templates-raw`")),
        (None, None) => return Err(wrong("it has no `object-templates`")),
        (Some(_), None) => listed,
        (None, Some(_)) => &raw,
    };
    let templates = definition.list_at(field).map_err(|error| match error {
        DocumentError::Field { position, why, .. } => DocumentError::Field {
            object: policy.title(),
            field: format!("{path}{field}"),
            position,
            why: match field == raw {
                true => {
                    "without its templates it is not a YAML list, which TALM's hub refuses too".to_owned()
                }
                false => why,
            },
        },
        error => error,
    })?;
    for (index, template) in templates.iter().enumerate() {
        let compliance = template.field("complianceType").and_then(|node| node.text());
        if compliance.is_some_and(|word| word.eq_ignore_ascii_case("mustnothave")) {
            continue;
        }
        let Some(object) = template.field("objectDefinition") else {
            let why = "it has no `objectDefinition`".to_owned();
            return Err(policy.wrong(&format!("{path}{field}[{index}]"), template, why));
        };
        objects.push(policy.inner(object));
    }
    Ok(())
}
