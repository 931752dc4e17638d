//! Describes one requested operator in the report.

use serde::Serialize;

/// One channel of one package, in one catalog, or in none if no catalog contains it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorReport {
    /// The requested package: `ptp-operator`.
    pub package: String,
    /// The requested channel; empty for the package's default channel.
    pub channel: String,
    /// Whether a catalog contains it.
    pub state: OperatorState,
    /// The index image of this row's catalog. Absent until one was read, and if none contains the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The channel's head: the bundle that OLM installs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Normalised references of the bundle and of the images that it runs. Each has its own row in the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

/// Whether a catalog contains an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorState {
    /// The catalog names its images.
    Found,
    /// No catalog contains it, or the catalog is invalid.
    Failed,
    /// Not every catalog was read yet.
    Pending,
}

impl OperatorReport {
    /// An operator that is requested and not yet found.
    pub fn pending(package: &str, channel: &str) -> Self {
        Self {
            package: package.to_owned(),
            channel: channel.to_owned(),
            state: OperatorState::Pending,
            index: None,
            bundle: None,
            reason: None,
            images: Vec::new(),
        }
    }

    /// For people: `ptp-operator:stable`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.package, self.channel)
    }
}
