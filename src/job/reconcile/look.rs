//! What is here, and what registries say of the rest.

use std::sync::Arc;
use std::time::Duration;

use super::Reconciler;
use crate::image_request::ImageRequest;
use crate::job::error::JobError;
use crate::job::failure::TaskError;
use crate::job::resolve::Answer;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::job::{Mode, off_the_task};
use crate::oci::Reference;
use crate::report::Step;
use crate::spool::Spool;

/// How long no answer may come before the images whose registries did answer are pulled. Long enough for a slow link to
/// bring a manifest, short beside a deadline.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of looking.
pub(super) struct Look {
    pub(super) sight: Snapshot,
    pub(super) has_asked: bool,
}

impl Reconciler<'_> {
    /// Looks at the node, and asks registries about what is not there.
    pub(super) async fn look(
        &mut self,
        requests: &[ImageRequest],
        is_first: bool,
        steps: Steps<'_>,
    ) -> Result<Look, JobError> {
        let references: Vec<Reference> = requests.iter().map(|it| it.reference.clone()).collect();
        let sight = self.sight(&references).await?;
        if self.mode == Mode::Repair {
            self.fail_what_is_out_of_reach(&references, &sight);
            self.fail_what_is_beyond_repair(&references, &sight);
            self.fail_what_is_in_use(&references, &sight).await?;
            self.describe(&references, &sight).await?;
        }
        if self.mode == Mode::Verify {
            self.fail_what_is_missing(&references, &sight);
            let has_asked = false;
            return Ok(Look { sight, has_asked });
        }
        let open = references
            .iter()
            .filter(|it| self.knowledge.is_open(it, &sight, self.mode));
        let open: Vec<Reference> = open.cloned().collect();
        let has_asked = is_first || !open.is_empty();
        if has_asked {
            steps.start(Step::Resolve);
        }
        if open.is_empty() {
            return Ok(Look { sight, has_asked });
        }
        self.inquiry.ask(open, &sight.inventory);
        self.gather(&references, &sight).await;
        self.cancel.check()?;
        // The answers may have taken hours.
        let sight = self.sight(&references).await?;
        Ok(Look { sight, has_asked })
    }

    /// Looks at the node; where all is to be read, reads it, and mends what needs no layer to be unpacked.
    async fn sight(&mut self, references: &[Reference]) -> Result<Snapshot, JobError> {
        let mut sight = self.glance(references).await?;
        if !self.mode.reads_all() {
            return Ok(sight);
        }
        let (at_once, host) = (self.order.max_unpacks, &self.order.host_state);
        self.examiner.examine(&mut sight, at_once, self.cancel).await?;
        if self.mode == Mode::Repair
            && self
                .examiner
                .mend_frames(&sight, &self.store, host, self.cancel)
                .await?
        {
            sight = self.glance(references).await?;
            self.examiner.examine(&mut sight, at_once, self.cancel).await?;
        }
        Ok(sight)
    }

    pub(super) async fn glance(&self, references: &[Reference]) -> Result<Snapshot, JobError> {
        let (store, spool, mode) = (Arc::clone(&self.store), self.spool.clone(), self.mode);
        let (references, platform) = (references.to_vec(), self.order.platform.clone());
        let path = self.order.spool.clone();
        off_the_task(move || {
            let spooled = match (spool, mode) {
                (Some(spool), _) => spool.list()?,
                (None, Mode::Run | Mode::Plan | Mode::Repair) => Spool::list_unlocked(&path)?,
                (None, Mode::Verify) => Vec::new(),
            };
            Snapshot::of(&store, spooled, &references, &platform)
        })
        .await
    }

    /// Takes the answers, until there are none to come or those that are to come can wait.
    async fn gather(&mut self, references: &[Reference], sight: &Snapshot) {
        while !self.can_read_on(sight) {
            let Answer { reference, image } = match tokio::time::timeout(PATIENCE, self.inquiry.next()).await
            {
                Ok(Some(answer)) => answer,
                Ok(None) => return,
                Err(_elapsed) => {
                    let to_pull = |it: &&Reference| self.knowledge.is_to_pull(it, sight, self.mode);
                    let ready = references.iter().filter(to_pull).count();
                    if self.pulls(self.scope(sight)) && ready > 0 {
                        tracing::warn!(
                            "no answer for {} images yet, going on with {ready} others meanwhile",
                            self.inquiry.open()
                        );
                        return;
                    }
                    continue;
                }
            };
            match image.map_err(|error| TaskError::resolving(&error)) {
                Ok(image) => self.knowledge.resolve(&reference, image),
                Err(TaskError::Image(reason)) => self.fail(&reference, reason),
                Err(TaskError::Stopped | TaskError::Host(_)) => {}
            }
        }
    }

    /// Takes from the store itself what it can say of damaged images, so that no registry has to be asked, and the image
    /// that is mended is the one that is here.
    async fn describe(&mut self, references: &[Reference], sight: &Snapshot) -> Result<(), JobError> {
        for reference in references {
            let Some(seen) = sight.image(reference) else {
                continue;
            };
            // What comes from an additional store gets a record of its own here, with the list that named it.
            let is_told = seen.flaw.is_none() || seen.additional.is_some();
            if is_told || self.knowledge.is_resolved(reference) {
                continue;
            }
            let (inventory, id) = (Arc::clone(&sight.inventory), seen.id);
            let described = off_the_task(move || match inventory.image(&id) {
                Some(image) => Ok(inventory.describe(image)?),
                None => Ok(None),
            });
            if let Some(image) = described.await? {
                self.knowledge.resolve(reference, image);
            }
        }
        Ok(())
    }
}
