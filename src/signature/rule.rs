//! Evaluates all requirements of the scope to which an image belongs.
//!
//! containers/image `signature/policy_eval.go`.

use std::fmt;

use jiff::Timestamp;

use super::evaluation::{Evaluation, KeyFiles, Satisfied};
use super::named_reference::NamedReference;
use super::refusal::{Reason, Refusal};
use super::requirement::Requirement;
use super::{Signature, list, shown};
use crate::oci::{Digest, Reference};

/// The part of a policy that applies to an image.
#[derive(Clone, Copy, Debug)]
pub struct Rule<'p> {
    pub(super) scope: Scope<'p>,
    /// Not empty.
    pub(super) requirements: &'p [Requirement],
}

/// Where a policy has a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope<'p> {
    /// A scope of transport `docker`.
    Named(&'p str),
    /// The scope `""` of transport `docker`.
    Transport,
    Default,
}

impl Rule<'_> {
    /// Whether every image meets it: no requirement rejects, and none needs signatures.
    pub fn accepts_anything(&self) -> bool {
        let is_free = |requirement| matches!(requirement, &Requirement::InsecureAcceptAnything);
        self.requirements.iter().all(is_free)
    }

    /// Whether no image meets it, whatever its signatures are.
    pub fn rejects(&self) -> bool {
        self.requirements.iter().any(is_never_met)
    }

    /// Evaluates the rule for `image`, the name that the user asked for. `manifest` is the digest of the manifest of the chosen
    /// instance, and `signatures` are those of that manifest.
    pub fn evaluate(
        &self,
        image: &Reference,
        manifest: Digest,
        signatures: &[Signature],
        files: &dyn KeyFiles,
        now: Timestamp,
    ) -> Result<Accepted, Refusal> {
        let evaluation = Evaluation {
            image: NamedReference::of(image),
            manifest,
            signatures,
            files,
            now,
        };
        // A requirement that is never met explains more than a missing signature.
        let mut requirements: Vec<_> = self.requirements.iter().collect();
        requirements.sort_by_key(|requirement| !is_never_met(requirement));
        let mut satisfied = Vec::new();
        for requirement in requirements {
            let result = match requirement {
                Requirement::InsecureAcceptAnything => continue,
                Requirement::Reject => Err(Reason::Rejected(evaluation.image.familiar())),
                Requirement::Unsupported(_) => Err(Reason::Unsupported),
                Requirement::SignedBy(required) => evaluation.signed_by(required),
                Requirement::SigstoreSigned(required) => evaluation.sigstore_signed(required),
            };
            match result {
                Ok(by) => satisfied.push((requirement.to_string(), by)),
                Err(reason) => {
                    return Err(Refusal {
                        reason,
                        requirement: requirement.to_string(),
                        scope: self.scope.to_string(),
                    });
                }
            }
        }
        Ok(Accepted { satisfied })
    }
}

fn is_never_met(requirement: &Requirement) -> bool {
    matches!(requirement, Requirement::Reject | Requirement::Unsupported(_))
}

/// `` `sigstoreSigned` for scope `quay.io/openshift-release-dev/ocp-release` ``
impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let requirements = self.requirements.iter().map(Requirement::to_string);
        f.write_str(&list(requirements, ", "))?;
        write!(f, " for {}", self.scope)
    }
}

impl fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(scope) => write!(f, "scope `{}`", shown(scope)),
            Self::Transport => f.write_str("the default of transport `docker`"),
            Self::Default => f.write_str("the policy's default"),
        }
    }
}

/// The image meets the rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Each requirement that needs signatures, and what satisfied it. Empty if there is none.
    satisfied: Vec<(String, Satisfied)>,
}

/// `` signature 1 by RSA key of `keyData` satisfies `sigstoreSigned` ``
impl fmt::Display for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.satisfied.is_empty() {
            return f.write_str("no signature is required");
        }
        let satisfied = self.satisfied.iter().map(|(requirement, by)| {
            let Satisfied { number, signer } = by;
            format!("signature {number} by {signer} satisfies {requirement}")
        });
        f.write_str(&list(satisfied, "; "))
    }
}
