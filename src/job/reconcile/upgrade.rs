//! Collects what decides whether an upgrade finds its images in the store, for `verify --for-upgrade`.

use std::collections::HashSet;
use std::sync::Arc;

use super::Reconciler;
use crate::exit_code::Failure;
use crate::job::config::UpgradeConfig;
use crate::job::error::JobError;
use crate::job::os_images::{OsImages, tag};
use crate::job::outcome::Outcome;
use crate::job::run_blocking;
use crate::job::snapshot::Snapshot;
use crate::job::steps::Steps;
use crate::oci::{ImageId, Reference};
use crate::plan::PlannedImage;
use crate::preflight::Space;
use crate::report::{Event, Obstacle, ObstacleKind, OsImageOrigin, Step, UpgradeDisk, UpgradeState, Verdict};
use crate::upgrade_readiness::{ImageFacts, NodeFacts, assess};

impl Reconciler<'_> {
    /// Judges the outcome of a verification, and reports the verdict.
    pub(super) async fn assess_upgrade(
        &self,
        config: &UpgradeConfig,
        outcome: &Outcome,
        snapshot: &Snapshot,
        refusals: Vec<String>,
        steps: Steps<'_>,
    ) -> Result<(), JobError> {
        steps.start(Step::UpgradeReady);
        let store = Arc::clone(self.storage.store());
        let (host, graph_root) = (self.config.host_state.clone(), self.config.graph_root.clone());
        let read = run_blocking(move || {
            let containers = store.container_records(&host)?.containers;
            let used = containers.into_iter().filter_map(|container| container.image);
            let space = Space::of(&graph_root).map_err(|error| {
                tracing::warn!("the disk's space is unknown: {error}");
            });
            Ok((used.collect::<HashSet<ImageId>>(), space.ok()))
        });
        let (used, space) = read
            .await
            .map_err(|error| steps.ended_by(Step::UpgradeReady, error))?;
        let threshold = self.config.image_gc_high_threshold;
        let pool_pins = config.pool_pins.as_ref();
        let os_images = outcome.os_images.as_ref();
        // If the release never takes the operating system from the store, nothing helps.
        let can_be_used = os_images.is_some_and(OsImages::can_be_used);
        let images = &outcome.plan.images;
        let has_name = |os: &str| {
            let mut tagged = images.iter().filter(|image| tag(&image.requesters) == Some(os));
            tagged.any(|image| self.has_name(&image.reference, snapshot))
        };
        let os_images = os_images.map(|images| images.origins(pool_pins.map_err(String::as_str), has_name));
        let os_images = os_images.unwrap_or_default();
        let present = images
            .iter()
            .map(|image| &image.reference)
            .filter(|it| self.is_present(it, snapshot));
        let present: Vec<Reference> = present.cloned().collect();
        let obstacle = |kind| move |message| Obstacle { kind, message };
        let verification = config.kubelet.pull_verification.warning(&present).into_iter();
        let not_from_store = os_images
            .iter()
            .filter(|image| can_be_used && image.origin != OsImageOrigin::Store);
        let obstacles = verification
            .map(obstacle(ObstacleKind::PullVerification))
            .chain(refusals.into_iter().map(obstacle(ObstacleKind::NamespacePolicy)))
            .chain(not_from_store.map(|image| Obstacle {
                kind: ObstacleKind::OsImage,
                message: format!("`{}`: {}", image.tag, image.message),
            }));
        let report = assess(NodeFacts {
            images: images
                .iter()
                .map(|image| self.facts(image, snapshot, &used))
                .collect(),
            left_out: self.left_out(snapshot)?,
            is_complete: outcome.failures.is_empty(),
            pins: self.config.pins.clone(),
            pinned_soon: pool_pins.map(|pins| pins.images.clone()).unwrap_or_default(),
            disk: space.map(|space| UpgradeDisk {
                used_percent: space.used_percent(),
                threshold_percent: threshold.percent(),
                headroom: space.headroom(threshold),
            }),
            image_maximum_gc_age: config.kubelet.image_maximum_gc_age(),
            obstacles: obstacles.collect(),
            os_images,
        });
        let (reason, message) = report.condition();
        let verdict = report.verdict;
        self.observer.observe(Event::UpgradeAssessed(Arc::new(report)));
        match verdict {
            Verdict::AtRisk => steps.end_unknown(Step::UpgradeReady, reason, message),
            Verdict::Ready | Verdict::NotReady => {
                steps.end(Step::UpgradeReady, verdict == Verdict::Ready, reason, message);
            }
        }
        Ok(())
    }

    fn is_present(&self, reference: &Reference, snapshot: &Snapshot) -> bool {
        self.states.is_present(reference, snapshot, self.mode)
    }

    fn has_name(&self, reference: &Reference, snapshot: &Snapshot) -> bool {
        let record = snapshot.image(reference).map(|stored| stored.id);
        let record = record.and_then(|id| snapshot.inventory.image(&id));
        record.is_some_and(|record| record.names.contains(&reference.to_string()))
    }

    fn facts(&self, image: &PlannedImage, snapshot: &Snapshot, used: &HashSet<ImageId>) -> ImageFacts {
        let reference = &image.reference;
        let stored = snapshot.image(reference);
        let record = stored.and_then(|stored| snapshot.inventory.image(&stored.id));
        let flaw = || {
            let failure = stored
                .and_then(|stored| stored.flaw.as_ref())
                .map(|flaw| flaw.failure);
            let state = match failure {
                Some(Failure::Signature) => UpgradeState::Refused,
                Some(Failure::Store) => UpgradeState::Damaged,
                _ => UpgradeState::Missing,
            };
            let reason = self
                .states
                .failure(reference)
                .map(|reason| reason.message.clone());
            (
                state,
                reason.unwrap_or_else(|| "it is not in the store".to_owned()),
            )
        };
        ImageFacts {
            name: reference.to_string(),
            flaw: (!self.is_present(reference, snapshot)).then(flaw),
            names: record.map(|record| record.names.clone()).unwrap_or_default(),
            is_read_only: stored.is_some_and(|stored| stored.additional.is_some()),
            is_in_use: stored.is_some_and(|stored| used.contains(&stored.id)),
        }
    }

    /// The images of the release that are left out and that CRI-O does not find in the store.
    fn left_out(&self, snapshot: &Snapshot) -> Result<Vec<String>, JobError> {
        let mut names = Vec::new();
        for image in &self.naming.excluded {
            let found = snapshot.inventory.find(&image.reference, &self.config.platform)?;
            if found.is_none() {
                names.push(image.reference.to_string());
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}
