//! Adds signatures to images that are present without any, at the end of a run.
//!
//! No rule of the node's policy needs them. But CRI-O stores them when it pulls, and checks them when a pod starts in a
//! namespace with its own policy.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream;

use super::Reconciler;
use crate::job::error::JobError;
use crate::job::namers::RoundScope;
use crate::job::resolve::CONCURRENCY;
use crate::job::run_blocking;
use crate::job::snapshot::Snapshot;
use crate::plan::{ImageAction, Plan};
use crate::report::Count;

impl Reconciler<'_> {
    /// Downloads and stores the signatures once in a run. Returns whether the store has more of them now.
    pub(super) async fn complete_signatures(
        &mut self,
        plan: &Plan,
        snapshot: &Snapshot,
    ) -> Result<bool, JobError> {
        if std::mem::replace(&mut self.are_signatures_complete, true) || !self.pulls(RoundScope::Everything) {
            return Ok(false);
        }
        let present = plan
            .images
            .iter()
            .filter(|it| matches!(it.action, ImageAction::Present));
        let lacking = present.filter_map(|it| {
            let image = snapshot.image(&it.reference)?;
            let lacks = image.signatures.may_be_completed;
            lacks.then(|| (it.reference.clone(), image.id, image.signatures.manifest))
        });
        let lacking: Vec<_> = lacking.collect();
        let downloads = stream::iter(lacking).map(async |(reference, id, manifest)| {
            let signatures = match self.states.resolved(&reference) {
                // Its signatures were requested with its manifest.
                Some(image) => image.signatures.clone(),
                None => self.signed_images.signatures(&reference, manifest).await,
            };
            (id, manifest, signatures)
        });
        let mut found: Vec<_> = downloads.buffer_unordered(CONCURRENCY).collect().await;
        found.retain(|(_, _, signatures)| !signatures.is_empty());
        self.cancel.check()?;
        let (store, cancel) = (Arc::clone(self.storage.store()), self.cancel.clone());
        let completed = run_blocking(move || {
            let mut completed = 0;
            for (id, manifest, signatures) in found {
                match store.put_signatures(&id, manifest, &signatures, &cancel) {
                    Ok(changed) => completed += usize::from(changed),
                    // The image is accepted without them.
                    Err(error) => tracing::warn!("cannot store signatures of image {id}: {error}"),
                }
            }
            Ok(completed)
        })
        .await?;
        if completed > 0 {
            tracing::info!("stored the signatures of {}", Count(completed, "present image"));
        }
        Ok(completed > 0)
    }
}
