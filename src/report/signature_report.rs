//! Describes the node's signature policy, and the signatures of one image, in the report.

use std::fmt;

use serde::Serialize;

use super::Count;

/// The node's signature policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignaturePolicyReport {
    /// The policy for all images; absent if the node has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The namespaces with a policy of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// What is unknown, and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
}

impl fmt::Display for SignaturePolicyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "signature policy: `{file}`")?,
            None => write!(f, "signature policy: none")?,
        }
        if !self.namespaces.is_empty() {
            write!(f, "; of namespaces: `{}`", self.namespaces.join("`, `"))?;
        }
        match &self.unknown {
            Some(unknown) => write!(f, "; {unknown}"),
            None => Ok(()),
        }
    }
}

/// The signatures of one image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SignatureReport {
    /// How many signatures the image has.
    pub count: usize,
    /// The scope and the requirements of the policy.
    pub rule: String,
    /// Whether the rule accepts the image.
    pub accepted: bool,
    /// Which signatures satisfy the rule, or why none does.
    pub result: String,
}

impl fmt::Display for SignatureReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.accepted {
            true => "accepted",
            false => "refused",
        };
        let count = Count(self.count, "signature");
        write!(f, "{count}; {verdict} by {}: {}", self.rule, self.result)
    }
}
