//! Checks the signatures of one image against the node's signature policy, as CRI-O does when it pulls the image.
//!
//! CRI-O trusts what is in the store: it assumes that every image there satisfied the policy when it was pulled
//! (`server/container_create.go`). So this check has to happen before an image is stored.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use super::error::Reason;
use crate::exit_code::Failure;
use crate::oci::{Digest, Reference};
use crate::report::{Count, SignaturePolicyReport, SignatureReport};
use crate::signature::{KeyFiles, Policy, Rule, Signature};

/// The signature policies of the node; `settings` reads them.
#[derive(Clone, Debug)]
pub struct SignaturePolicy {
    /// The policy for all images; none if the node has none.
    pub node: Option<PolicyFile>,
    /// The policies of namespaces. For pods there, each replaces the policy for all images.
    pub namespaces: BTreeMap<String, PolicyFile>,
    /// Reads the keys that a policy names.
    pub key_files: Arc<dyn KeyFiles + Send + Sync>,
    /// What is unknown about the policies, and why.
    pub unknown: Option<String>,
}

/// A policy and its file.
#[derive(Clone, Debug)]
pub struct PolicyFile {
    /// The file.
    pub path: PathBuf,
    /// Its content.
    pub policy: Policy,
}

/// The result for one image.
#[derive(Clone, Debug)]
pub(super) struct SignatureCheck {
    pub(super) report: SignatureReport,
    /// Why the policy refuses the image.
    pub(super) refusal: Option<Reason>,
}

impl SignaturePolicy {
    /// Whether the policy refuses the image whatever its signatures are. Then nothing has to be downloaded.
    pub(super) fn rejection(&self, image: &Reference) -> Option<Reason> {
        let rule = self.node.as_ref()?.policy.rule(image);
        let rejects = rule.rejects();
        rejects.then(|| self.check(image, Digest::of(b""), &[]).refusal)?
    }

    /// Whether the policy for all images needs the signatures of this one.
    pub(super) fn needs_signatures(&self, image: &Reference) -> bool {
        let rule = self.node.as_ref().map(|file| file.policy.rule(image));
        rule.is_some_and(|rule| !rule.accepts_anything())
    }

    /// Checks an image by the name under which it is requested. `manifest` is the digest of its instance, and `signatures` are
    /// those of that manifest, as the store keeps them.
    pub(super) fn check(
        &self,
        image: &Reference,
        manifest: Digest,
        signatures: &[Vec<u8>],
    ) -> SignatureCheck {
        let Some(file) = &self.node else {
            return SignatureCheck {
                report: SignatureReport {
                    count: signatures.len(),
                    rule: "no signature policy".to_owned(),
                    accepted: true,
                    result: "nothing is required".to_owned(),
                },
                refusal: None,
            };
        };
        let rule = file.policy.rule(image);
        let result = self.evaluate(&rule, image, manifest, signatures);
        let refusal = result.as_ref().err().map(|why| Reason {
            failure: Failure::Signature,
            message: format!("`{}` refuses the image: {why}", file.path.display()),
        });
        SignatureCheck {
            report: SignatureReport {
                count: signatures.len(),
                rule: rule.to_string(),
                accepted: refusal.is_none(),
                result: result.unwrap_or_else(|why| why),
            },
            refusal,
        }
    }

    /// The namespaces whose own policy refuses the image, each with the reason.
    pub(super) fn refusing_namespaces(
        &self,
        image: &Reference,
        manifest: Digest,
        signatures: &[Vec<u8>],
    ) -> Vec<(String, String)> {
        let refusals = self.namespaces.iter().filter_map(|(namespace, file)| {
            let rule = file.policy.rule(image);
            let why = self.evaluate(&rule, image, manifest, signatures).err()?;
            Some((namespace.clone(), why))
        });
        refusals.collect()
    }

    fn evaluate(
        &self,
        rule: &Rule<'_>,
        image: &Reference,
        manifest: Digest,
        blobs: &[Vec<u8>],
    ) -> Result<String, String> {
        // Such a rule does not read the signatures, so it does not matter what they are.
        let signatures = match rule.accepts_anything() {
            true => Vec::new(),
            false => {
                let parsed = blobs.iter().enumerate().map(|(index, blob)| {
                    Signature::from_blob(blob).map_err(|error| format!("signature {}: {error}", index + 1))
                });
                parsed.collect::<Result<Vec<_>, String>>()?
            }
        };
        let (keys, now) = (self.key_files.as_ref(), Timestamp::now());
        match rule.evaluate(image, manifest, &signatures, keys, now) {
            Ok(accepted) => Ok(accepted.to_string()),
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    pub(super) fn report(&self) -> SignaturePolicyReport {
        SignaturePolicyReport {
            file: self.node.as_ref().map(|file| file.path.display().to_string()),
            namespaces: self.namespaces.keys().cloned().collect(),
            unknown: self.unknown.clone(),
        }
    }
}

/// Warns that pods of single namespaces cannot use images: one warning for each namespace. `refusals` are of several images.
pub(super) fn namespace_warnings<'r>(
    refusals: impl Iterator<Item = (&'r Reference, Vec<(String, String)>)>,
) -> Vec<String> {
    let mut of_namespaces: BTreeMap<String, Vec<(&Reference, String)>> = BTreeMap::new();
    for (image, refusals) in refusals {
        for (namespace, why) in refusals {
            of_namespaces.entry(namespace).or_default().push((image, why));
        }
    }
    let warnings = of_namespaces.into_iter().filter_map(|(namespace, images)| {
        let (image, why) = images.first()?;
        Some(format!(
            "pods in namespace `{namespace}` cannot use {}, because its own signature policy refuses them; `{image}`: {why}",
            Count(images.len(), "image")
        ))
    });
    warnings.collect()
}
