//! Holds a signature policy and finds the rule for an image.

use super::named_reference::NamedReference;
use super::policy_json::{self, Scopes};
use super::requirement::Requirement;
use super::rule::{Rule, Scope};
use crate::oci::{self, Reference};

/// The longest policy that is read. The machine-config operator's have a few hundred bytes for each scope.
const MAX_SIZE: usize = 16 << 20;

/// The bytes are no valid `policy.json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is too long to be one.
    #[error("it is longer than {MAX_SIZE} bytes")]
    Size,
    /// Not the JSON of a policy.
    #[error("{0}")]
    Format(String),
}

/// A signature policy, as far as it concerns images of registries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    default: Vec<Requirement>,
    /// The scopes of transport `docker`.
    docker: Option<Scopes>,
}

impl Policy {
    /// Parses `policy.json`; containers/image accepts the same files, except those with invalid Unicode.
    pub fn parse(text: &[u8]) -> Result<Self, PolicyError> {
        if text.len() > MAX_SIZE {
            return Err(PolicyError::Size);
        }
        let (default, docker) =
            policy_json::policy(text).map_err(|error| PolicyError::Format(error.to_string()))?;
        Ok(Self { default, docker })
    }

    /// The rule for an image: of the longest scope that contains it, else the transport's default, else the policy's.
    pub fn rule(&self, image: &Reference) -> Rule<'_> {
        let docker = self.docker.as_ref();
        let named = docker.and_then(|docker| {
            let scopes = scopes_of(&NamedReference::of(image));
            scopes.iter().find_map(|scope| docker.get_key_value(scope))
        });
        let (scope, requirements) = match (named, docker.and_then(|docker| docker.get(""))) {
            (Some((scope, requirements)), _) => (Scope::Named(scope), requirements),
            (None, Some(requirements)) => (Scope::Transport, requirements),
            (None, None) => (Scope::Default, &self.default),
        };
        Rule { scope, requirements }
    }
}

/// The scopes that contain an image, the smallest first.
pub(super) fn scopes_of(image: &NamedReference) -> Vec<String> {
    oci::scopes_of(&image.to_string(), image.name())
}
