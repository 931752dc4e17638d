//! What became of an operator that is asked for.

use serde::Serialize;

/// One channel of one package, in one catalog or, when no catalog has it, in none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorReport {
    /// The package as asked for: `ptp-operator`.
    pub package: String,
    /// The channel as asked for; empty for the package's default channel.
    pub channel: String,
    /// Whether it is in a catalog.
    pub state: OperatorState,
    /// The index image whose catalog this row is about. Absent as long as none was read, and when none has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// The channel's head: the bundle that an installation begins with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bundle: Option<String>,
    /// Why, when it cannot be had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Normalised references of the bundle and of what it runs; what became of each says its own row of the report.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
}

/// Whether an operator is in a catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperatorState {
    /// The catalog names its images.
    Found,
    /// No catalog has it, or one that does is not as expected.
    Failed,
    /// Not every catalog was read.
    Pending,
}

impl OperatorReport {
    /// One of which nothing is known yet.
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
