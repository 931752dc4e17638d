//! Repairs damaged layers and images.
//!
//! A damaged layer is unpacked from another one with the same content, which may be damaged in its attributes only, or be the
//! layer itself. A repair replaces damaged layers and records at the commit.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use crate::cancel::Cancel;
use crate::exit_code::Failure;
use crate::job::error::{Reason, TaskError};
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::plan::LayerTask;
use crate::store::unpack::{SpaceBudget, UnpackError, UnpackLimits, unpack};
use crate::store::{
    HostState, ImageCommit, Inventory, LayerCommit, Stage, StagedLayer, Store, StoreLocation,
};

/// How many layers with the same content are tried before the blob is downloaded.
const MAX_DONORS: usize = 4;

/// Stages layers from the store, and commits repairs.
#[derive(Clone)]
pub(in crate::job) struct LayerRepair {
    pub(in crate::job) store: Arc<Store>,
    pub(in crate::job) stage: Arc<Stage>,
    pub(in crate::job) inventory: Arc<Inventory>,
    pub(in crate::job) host: HostState,
    pub(in crate::job) budget: Arc<SpaceBudget>,
}

impl LayerRepair {
    /// Stages a layer from a donor, a layer in the store with the same content: on another parent, or the layer itself if
    /// only its attributes are damaged. None if no donor's tar has the right digest.
    pub(super) fn stage(&self, task: &LayerTask, halt: &Cancel) -> Result<Option<StagedLayer>, TaskError> {
        let id = task.layer.id();
        let donors = self.inventory.layers_with(task.layer.diff_id(), &id);
        for (location, donor) in donors.into_iter().take(MAX_DONORS) {
            match self.stage_from(location, &donor, task, halt) {
                Ok(Some(staged)) => {
                    match self.inventory.additional_root(location).map(Path::display) {
                        Some(store) => {
                            tracing::info!(layer = %id, %donor, %store, "unpacked a layer from an additional image store")
                        }
                        None => {
                            tracing::info!(layer = %id, %donor, "unpacked a layer from another layer in the store")
                        }
                    }
                    return Ok(Some(staged));
                }
                Ok(None) => {}
                // The downloaded blob would need the same space.
                Err(
                    error @ TaskError::Image(Reason {
                        failure: Failure::Space,
                        ..
                    }),
                ) => return Err(error),
                Err(TaskError::Image(reason)) => {
                    tracing::debug!(layer = %id, %donor, "the donor is unusable: {}", reason.message);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn stage_from(
        &self,
        location: StoreLocation,
        donor: &LayerId,
        task: &LayerTask,
        halt: &Cancel,
    ) -> Result<Option<StagedLayer>, TaskError> {
        let id = task.layer.id();
        let tar = match self.store.open_tar(location, donor) {
            Ok(Some(tar)) => tar,
            Ok(None) => return Ok(None),
            // An additional store may be on a server that is down or a disk that fails. The layer can still be downloaded.
            Err(error) if location != StoreLocation::GraphRoot => {
                tracing::debug!(layer = %id, %donor, "the donor is unusable: {error}");
                return Ok(None);
            }
            Err(error) => return Err(TaskError::storing(error)),
        };
        let size = self.inventory.tar_size(location, donor);
        let limits = UnpackLimits::estimated(size.unwrap_or(task.tar.bytes()), &self.budget);
        let staging = self.stage.layer(task.layer.clone()).map_err(TaskError::storing)?;
        let diff = staging.open_diff().map_err(TaskError::storing)?;
        let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
        match unpack(tar, diff.as_fd(), &tar_split, limits, staging.write_queue(), halt) {
            Ok(unpacked) => staging.finish(unpacked).map(Some).map_err(TaskError::storing),
            Err(UnpackError::Stopped(_)) => Err(TaskError::Stopped),
            Err(error) if error.is_no_space() || matches!(error, UnpackError::OverBudget { .. }) => {
                Err(TaskError::unpacking(task.layer.blob, error))
            }
            // The donor is damaged, or its tar-split does not reproduce its tar.
            Err(error) => {
                tracing::debug!(layer = %id, %donor, "the donor is unusable: {error}");
                Ok(None)
            }
        }
    }

    /// Commits an image, and corrects its record.
    pub(super) fn commit_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        halt: &Cancel,
    ) -> Result<ImageCommit, TaskError> {
        let committed = self.store.repair_image(image, name, halt);
        committed.map_err(TaskError::storing)
    }

    /// Commits layers, and replaces damaged ones.
    pub(super) fn commit_layers(
        &self,
        staged: Vec<StagedLayer>,
        halt: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, TaskError> {
        let committed = self.store.repair_layers(staged, &self.host, halt);
        committed.map_err(TaskError::storing)
    }
}
