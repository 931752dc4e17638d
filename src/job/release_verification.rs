//! Verifies the release's signature while the release image is pulled, and reports the verdict once.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::config::{JobConfig, ReleaseSignatureConfig};
use super::error::Reason;
use super::run_blocking;
use super::steps::Steps;
use crate::cancel::Cancel;
use crate::exit_code::Failure;
use crate::oci::Reference;
use crate::registry::Registries;
use crate::release_signature::{self, Inputs, Verdict};
use crate::report::Step;
use crate::store::Store;

/// A running verification. Dropping it stops it.
pub(super) struct ReleaseVerification {
    verdict: watch::Receiver<Option<Verdict>>,
    required: bool,
    is_reported: bool,
    /// Contains one task.
    _task: JoinSet<()>,
}

impl ReleaseVerification {
    pub(super) fn start(
        release: Reference,
        config: &JobConfig,
        store: Arc<Store>,
        registries: Arc<Registries>,
        cancel: Cancel,
    ) -> Self {
        let (sender, verdict) = watch::channel(None);
        let (settings, platform) = (config.release_signature.clone(), config.platform.clone());
        let required = settings.required;
        let mut task = JoinSet::new();
        task.spawn(async move {
            let of_release = release.clone();
            let inputs = run_blocking(move || {
                let ReleaseSignatureConfig {
                    keys,
                    stores,
                    cluster,
                    ..
                } = settings;
                let inventory = store.inventory()?;
                let store = &store;
                Ok(Inputs::gather(
                    &of_release,
                    keys,
                    stores,
                    cluster,
                    store,
                    &inventory,
                    &platform,
                ))
            });
            let verdict = match inputs.await {
                Ok(inputs) => release_signature::verify(&release, &inputs, &registries, &cancel).await,
                Err(error) => unreadable(&error),
            };
            let _ = sender.send(Some(verdict));
        });
        Self {
            verdict,
            required,
            is_reported: false,
            _task: task,
        }
    }

    /// Waits for the verdict, and returns why the release must not be used, if that is so.
    pub(super) async fn refusal(&self) -> Option<Reason> {
        let mut verdict = self.verdict.clone();
        match verdict.wait_for(Option::is_some).await {
            Ok(verdict) => verdict.as_ref().and_then(|verdict| self.refusal_of(verdict)),
            Err(_) => self.refusal_of(&panicked()),
        }
    }

    /// Whether a signature was verified.
    pub(super) fn is_verified(&self) -> bool {
        matches!(*self.verdict.borrow(), Some(Verdict::Verified { .. }))
    }

    fn refusal_of(&self, verdict: &Verdict) -> Option<Reason> {
        match verdict {
            Verdict::Verified { .. } => None,
            Verdict::NotVerifiable { .. } if !self.required => None,
            Verdict::Refused { message } | Verdict::NotVerifiable { message, .. } => Some(Reason {
                failure: Failure::Signature,
                message: message.clone(),
            }),
        }
    }

    /// Reports the verdict, if it is known and was not reported. Returns why the release must not be used, if that is so.
    pub(super) fn report(&mut self, steps: Steps<'_>) -> Option<Reason> {
        let verdict = self.verdict.borrow().clone();
        // The sender is only dropped without a verdict if the task panics.
        let verdict = match (verdict, self.verdict.has_changed().is_err()) {
            (Some(verdict), _) => verdict,
            (None, true) => panicked(),
            (None, false) => return None,
        };
        let refusal = self.refusal_of(&verdict);
        if std::mem::replace(&mut self.is_reported, true) {
            return refusal;
        }
        let message = verdict.to_string();
        match (&verdict, &refusal) {
            (Verdict::Verified { .. }, _) => steps.end(Step::ReleaseVerified, true, "Verified", message),
            (Verdict::Refused { .. }, _) => {
                let reason = Failure::Signature.reason();
                steps.end(Step::ReleaseVerified, false, reason, message);
            }
            (Verdict::NotVerifiable { reason, .. }, Some(_)) => {
                steps.end(Step::ReleaseVerified, false, reason, message);
            }
            (Verdict::NotVerifiable { reason, .. }, None) => {
                steps.end_unknown(Step::ReleaseVerified, reason, message);
            }
        }
        refusal
    }
}

/// What panicked was the check of a signature that a stranger may have written, so the release is refused.
fn panicked() -> Verdict {
    Verdict::Refused {
        message: "the verification of the release's signature panicked, which is a bug in this program"
            .to_owned(),
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Verdict {
    Verdict::NotVerifiable {
        reason: "StoreUnreadable",
        message: format!("cannot read the keys of the release that the cluster runs: {error}"),
    }
}
