//! Reads from the API by which properties of the cluster the cluster-version operator (CVO) filters the manifests of a release.
//!
//! ```text
//! openshift-cluster-version deployments/cluster-version-operator   env CLUSTER_PROFILE, EXCLUDE_MANIFESTS
//! config.openshift.io/v1 featuregates/cluster                      .spec.featureSet
//!                                                                  .status.featureGates[version].enabled[].name
//! ```
//!
//! The operator's own defaults apply to what its environment and the FeatureGate leave open (`pkg/start/start.go`). A value that
//! cannot be read causes no warning: the code that shows the manifests states what was assumed, and why.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::ClusterError;
use super::api_client::{Api, Effort};
use super::rbac::{GET_FEATURE_GATE, GET_VERSION_OPERATOR};

/// The Deployment of the CVO, and its container.
const OPERATOR: &str = "cluster-version-operator";

/// The singleton of FeatureGate.
const FEATURE_GATE: &str = "cluster";

/// By what the CVO filters manifests, besides the capabilities; each value, or why it is unknown.
#[derive(Clone, Debug)]
pub struct ManifestFilters {
    /// The environment of the CVO.
    pub operator: Result<OperatorSettings, String>,
    /// The feature set and the feature gates.
    pub feature_gates: Result<FeatureGates, String>,
}

/// What the environment of the CVO contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatorSettings {
    /// `None` for the default profile.
    pub profile: Option<String>,
    /// The identifier whose manifests are excluded, which hosted control planes set.
    pub exclude: Option<String>,
}

/// The feature set of the cluster, and the gates that it enables in each release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FeatureGates {
    /// Empty for the default one.
    pub feature_set: String,
    /// The enabled gates by version. An update adds its version when it begins.
    pub enabled: BTreeMap<String, BTreeSet<String>>,
}

impl Default for ManifestFilters {
    fn default() -> Self {
        Self::unknown("the cluster's API is not available")
    }
}

impl ManifestFilters {
    /// No value, for this reason.
    pub(super) fn unknown(why: &str) -> Self {
        Self {
            operator: Err(why.to_owned()),
            feature_gates: Err(why.to_owned()),
        }
    }

    pub(super) async fn query(api: &Api, effort: Effort) -> Self {
        let operator = async {
            let deployment = api
                .get::<Deployment>(&GET_VERSION_OPERATOR, OPERATOR, effort)
                .await;
            deployment
                .map_err(|error| error.to_string())
                .and_then(Deployment::settings)
        };
        let (operator, feature_gates) = tokio::join!(operator, feature_gates(api, effort));
        Self {
            operator,
            feature_gates: feature_gates.map_err(|error| error.to_string()),
        }
    }
}

/// A cluster without a FeatureGate has the default feature set.
async fn feature_gates(api: &Api, effort: Effort) -> Result<FeatureGates, ClusterError> {
    let object: FeatureGate = match api.get(&GET_FEATURE_GATE, FEATURE_GATE, effort).await {
        Err(error) if error.is_not_found() => FeatureGate::default(),
        found => found?,
    };
    let versions = object
        .status
        .unwrap_or_default()
        .feature_gates
        .unwrap_or_default();
    let enabled = versions.into_iter().map(|details| {
        let gates = details.enabled.unwrap_or_default().into_iter();
        (details.version, gates.map(|gate| gate.name).collect())
    });
    Ok(FeatureGates {
        feature_set: object.spec.unwrap_or_default().feature_set,
        enabled: enabled.collect(),
    })
}

impl Deployment {
    fn settings(self) -> Result<OperatorSettings, String> {
        let mut containers = self.spec.template.spec.containers.into_iter();
        let operator = containers.find(|container| container.name == OPERATOR);
        let operator = operator.ok_or_else(|| format!("the Deployment has no container `{OPERATOR}`"))?;
        let mut settings = OperatorSettings::default();
        for variable in operator.env.unwrap_or_default() {
            let setting = match variable.name.as_str() {
                "CLUSTER_PROFILE" => &mut settings.profile,
                "EXCLUDE_MANIFESTS" => &mut settings.exclude,
                _ => continue,
            };
            if variable.value_from.is_some() {
                return Err(format!(
                    "`{}` of the Deployment has no literal value",
                    variable.name
                ));
            }
            *setting = variable.value.filter(|value| !value.is_empty());
        }
        Ok(settings)
    }
}

#[derive(Deserialize)]
struct Deployment {
    spec: DeploymentSpec,
}

#[derive(Deserialize)]
struct DeploymentSpec {
    template: PodTemplate,
}

#[derive(Deserialize)]
struct PodTemplate {
    spec: PodSpec,
}

#[derive(Deserialize)]
struct PodSpec {
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    env: Option<Vec<Variable>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Variable {
    name: String,
    value: Option<String>,
    value_from: Option<serde::de::IgnoredAny>,
}

#[derive(Default, Deserialize)]
struct FeatureGate {
    spec: Option<FeatureGateSpec>,
    status: Option<FeatureGateStatus>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FeatureGateSpec {
    feature_set: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct FeatureGateStatus {
    feature_gates: Option<Vec<FeatureGateDetails>>,
}

#[derive(Deserialize)]
struct FeatureGateDetails {
    version: String,
    enabled: Option<Vec<FeatureGateName>>,
}

#[derive(Deserialize)]
struct FeatureGateName {
    name: String,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn settings(env: &str) -> Result<OperatorSettings, String> {
        let deployment = format!(
            r#"{{"spec": {{"template": {{"spec": {{"containers": [{{"name": "sidecar"}},
                {{"name": "cluster-version-operator", "env": {env}}}]}}}}}}}}"#
        );
        serde_json::from_str::<Deployment>(&deployment)
            .unwrap()
            .settings()
    }

    #[test]
    fn the_environment_of_the_operator_has_the_profile() {
        assert_eq!(settings("null"), Ok(OperatorSettings::default()));
        let env = r#"[{"name": "NODE_NAME", "valueFrom": {}}, {"name": "CLUSTER_PROFILE", "value": "x"}, {"name": "EXCLUDE_MANIFESTS"}]"#;
        let expected = OperatorSettings {
            profile: Some("x".to_owned()),
            exclude: None,
        };
        assert_eq!(settings(env), Ok(expected));
        settings(r#"[{"name": "CLUSTER_PROFILE", "valueFrom": {}}]"#).unwrap_err();
        let other = r#"{"spec": {"template": {"spec": {"containers": []}}}}"#;
        serde_json::from_str::<Deployment>(other)
            .unwrap()
            .settings()
            .unwrap_err();
    }
}
