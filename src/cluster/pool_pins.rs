//! Reads the PinnedImageSets of this node's pools. The machine-config daemon takes the operating system from the store only if
//! a pool has one (machine-config-operator `update.go`: `isPinnedImageSetConfigured`), whatever images it contains.
//!
//! ```text
//! nodes/$NODE_NAME     .metadata.labels ─┐
//! machineconfigpools   .spec.nodeSelector┴→ pools of the node ─→ .spec.pinnedImageSets[].name
//! pinnedimagesets/…                                               .spec.pinnedImages[].name ←┘
//! ```

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::pinned_image_set::ROLE;
use super::rbac::{GET_NODE, GET_PINS, LIST_POOLS, Rule};

/// How long all answers may take together.
const PATIENCE: Duration = Duration::from_secs(5);

/// The most sets that are read; each has up to 500 images.
const SETS: usize = 32;

/// The pools of the node and their sets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolPins {
    /// Names of the pools that count for the node.
    pub pools: Vec<String>,
    /// Names of their PinnedImageSets.
    pub sets: Vec<String>,
    /// The images of these sets.
    pub images: HashSet<String>,
}

impl PoolPins {
    /// Asks the API, for a few seconds at most.
    ///
    /// # Errors
    /// If the API does not say, also if the cluster has no pools.
    pub async fn query(api: &Api) -> Result<Self, ClusterError> {
        let effort = Effort::patient(PATIENCE);
        let mut pins = Self::names_of(api, effort).await?;
        for name in pins.sets.iter().take(SETS) {
            match api.get::<PinnedImageSet>(&GET_PINS, name, effort).await {
                Ok(set) => {
                    let images = set.spec.pinned_images.into_iter().flatten();
                    pins.images.extend(images.map(|image| image.name));
                }
                // Somebody deleted it, and the pool does not know yet.
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(pins)
    }

    /// The same without the images.
    ///
    /// # Errors
    /// If the API does not say, also if the cluster has no pools.
    pub async fn names(api: &Api) -> Result<Self, ClusterError> {
        Self::names_of(api, Effort::patient(PATIENCE)).await
    }

    /// A warning if the sets that `--pin api` makes are for no pool of this node.
    pub fn not_selected(&self) -> Option<String> {
        let is_selected = self.pools.is_empty() || self.pools.iter().any(|pool| pool == ROLE.1);
        (!is_selected).then(|| {
            format!(
                "the PinnedImageSets are for pool `{}`, and this node is in pool `{}`: its images are not pinned\nhint: write the \
                 sets with `--pin FILE`, and change their label `{}`",
                ROLE.1,
                self.pools.join("`, `"),
                ROLE.0
            )
        })
    }

    async fn names_of(api: &Api, effort: Effort) -> Result<Self, ClusterError> {
        let Some(name) = &api.account.node else {
            return Err(unexpected(&GET_NODE, "`NODE_NAME` is not set"));
        };
        let node: Node = api.get(&GET_NODE, name, effort).await?;
        let list: PoolList = api.get(&LIST_POOLS, "", effort).await?;
        let labels = node.metadata.labels.unwrap_or_default();
        let pools = pools_of_node(&labels, list.items.unwrap_or_default());
        let sets = pools
            .iter()
            .flat_map(|pool| pool.spec.pinned_image_sets.iter().flatten());
        Ok(Self {
            sets: sets.map(|set| set.name.clone()).collect(),
            pools: pools.iter().map(|pool| pool.metadata.name.clone()).collect(),
            images: HashSet::new(),
        })
    }
}

/// The pools that count for a node (machine-config-operator `helpers.go`: `GetPoolsForNode`): `master` before all others;
/// otherwise a custom pool, if there is only one, and `worker`.
fn pools_of_node(labels: &BTreeMap<String, String>, pools: Vec<Pool>) -> Vec<Pool> {
    let matching = pools
        .into_iter()
        .filter(|pool| pool.spec.node_selector.matches(labels));
    let (mut master, mut worker, mut custom) = (None, None, Vec::new());
    for pool in matching {
        match pool.metadata.name.as_str() {
            "master" => master = Some(pool),
            "worker" => worker = Some(pool),
            _ => custom.push(pool),
        }
    }
    match (custom.len(), master) {
        (0, Some(master)) => vec![master],
        (0 | 1, master) => master
            .or_else(|| custom.pop())
            .into_iter()
            .chain(worker)
            .collect(),
        // An error there, after which the daemon continues without sets.
        _ => Vec::new(),
    }
}

fn unexpected(rule: &Rule, why: &str) -> ClusterError {
    ClusterError::Unexpected {
        request: rule.request(),
        why: why.to_owned(),
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Node {
    metadata: Metadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    labels: Option<BTreeMap<String, String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolList {
    items: Option<Vec<Pool>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Pool {
    metadata: Metadata,
    spec: PoolSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PoolSpec {
    node_selector: Selector,
    pinned_image_sets: Option<Vec<Named>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    match_labels: Option<BTreeMap<String, String>>,
    match_expressions: Option<Vec<Expression>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Expression {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PinnedImageSet {
    spec: PinnedImageSetSpec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PinnedImageSetSpec {
    pinned_images: Option<Vec<Named>>,
}

impl Selector {
    /// An empty selector matches nothing here.
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut expressions = self.match_expressions.iter().flatten();
        let mut equal = self.match_labels.iter().flatten();
        let is_empty = equal.clone().next().is_none() && expressions.clone().next().is_none();
        !is_empty
            && equal.all(|(key, value)| labels.get(key) == Some(value))
            && expressions.all(|expression| expression.matches(labels))
    }
}

impl Expression {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        let is_listed = value.is_some_and(|value| self.values.iter().flatten().any(|it| it == value));
        match self.operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    /// Names of the pools that count for a node with these roles.
    fn pools(roles: &[&str]) -> Vec<String> {
        let role = |role: &str| format!("node-role.kubernetes.io/{role}");
        let labels = roles.iter().map(|name| (role(name), String::new())).collect();
        let pool = |name: &str| json!({"metadata": {"name": name}, "spec": {"nodeSelector": {"matchLabels": {role(name): ""}}}});
        let infra = json!({"metadata": {"name": "infra"}, "spec": {"nodeSelector": {"matchExpressions": [
            {"key": role("infra"), "operator": "Exists"},
            {"key": role("edge"), "operator": "NotIn", "values": ["", "x"]},
        ]}}});
        let nothing = json!({"metadata": {"name": "nothing"}, "spec": {"nodeSelector": {}}});
        let items = json!([pool("worker"), pool("master"), pool("edge"), infra, nothing]);
        let list: PoolList = serde_json::from_value(json!({"items": items})).unwrap();
        let pools = pools_of_node(&labels, list.items.unwrap());
        pools.into_iter().map(|pool| pool.metadata.name).collect()
    }

    #[test]
    fn the_pools_of_a_node_are_those_of_the_machine_config_operator() {
        for (roles, expected) in [
            (&["master", "worker", "control-plane"][..], &["master"][..]),
            (&["worker"], &["worker"]),
            (&["worker", "infra"], &["infra", "worker"]),
            (&["master", "worker", "infra"], &["master", "worker"]),
            (&["worker", "infra", "edge"], &["edge", "worker"]),
            (&["other"], &[]),
        ] {
            assert_eq!(pools(roles), expected, "{roles:?}");
        }
    }
}
