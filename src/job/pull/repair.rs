//! How a pull differs that need not fetch all: what a store has elsewhere is unpacked from there, and where damage is to be
//! mended, what is damaged is replaced.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use super::super::error::{Reason, TaskError};
use crate::cancel::Cancel;
use crate::exit_code::Failure;
use crate::oci::{LayerId, Reference, ResolvedImage};
use crate::plan::LayerTask;
use crate::store::unpack::{Limits, SpaceBudget, UnpackError, unpack};
use crate::store::{
    HostState, ImageCommit, Inventory, LayerCommit, Stage, StagedLayer, Store, StoreLocation,
};

/// As many layers of the same content are tried before it is fetched.
const DONORS: usize = 4;

/// Brings layers from the store itself, and mends them there.
#[derive(Clone)]
pub(in crate::job) struct LayerRepair {
    pub(in crate::job) store: Arc<Store>,
    pub(in crate::job) stage: Arc<Stage>,
    pub(in crate::job) inventory: Arc<Inventory>,
    pub(in crate::job) host: HostState,
    pub(in crate::job) room: Arc<SpaceBudget>,
    /// Whether damaged layers are replaced. Else only additional image stores are looked into, for what is in the graph
    /// root was seen to be missing or is reused as it is.
    pub(in crate::job) replaces: bool,
}

impl LayerRepair {
    /// Stages the layer from one in the store that has the same content: on other parents, or itself, if only its
    /// attributes are damaged. The digest of the whole tar decides whether it does.
    pub(in crate::job) fn stage(
        &self,
        task: &LayerTask,
        halt: &Cancel,
    ) -> Result<Option<StagedLayer>, TaskError> {
        let donors = self
            .inventory
            .layers_with(task.layer.diff_id(), &task.layer.id())
            .into_iter();
        let donors = donors.filter(|(home, _)| self.replaces || *home != StoreLocation::GraphRoot);
        for (home, donor) in donors.take(DONORS) {
            match self.stage_from(home, &donor, task, halt) {
                Ok(Some(staged)) => {
                    let from = self.inventory.additional_root(home).map(Path::display);
                    match from {
                        Some(store) => {
                            tracing::info!(layer = %task.layer.id(), %donor, %store, "unpacked a layer from an additional image store")
                        }
                        None => {
                            tracing::info!(layer = %task.layer.id(), %donor, "unpacked a layer from the store itself")
                        }
                    }
                    return Ok(Some(staged));
                }
                Ok(None) => {}
                // The blob would meet the same end.
                Err(
                    trouble @ TaskError::Image(Reason {
                        failure: Failure::Space,
                        ..
                    }),
                ) => return Err(trouble),
                Err(TaskError::Image(reason)) => {
                    tracing::debug!(layer = %task.layer.id(), %donor, "no donor: {}", reason.message);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(None)
    }

    fn stage_from(
        &self,
        home: StoreLocation,
        donor: &LayerId,
        task: &LayerTask,
        halt: &Cancel,
    ) -> Result<Option<StagedLayer>, TaskError> {
        let tar = match self.store.open_tar(home, donor) {
            Ok(Some(tar)) => tar,
            Ok(None) => return Ok(None),
            // A server that is gone, or a disk that fails, which the graph root is not on; the layer can still be fetched.
            Err(error) if home != StoreLocation::GraphRoot => {
                tracing::debug!(layer = %task.layer.id(), %donor, "no donor: {error}");
                return Ok(None);
            }
            Err(error) => return Err(TaskError::storing(error)),
        };
        let size = self.inventory.tar_size(home, donor);
        let limits = Limits::estimated(size.unwrap_or(task.tar.bytes()), &self.room);
        let staging = self.stage.layer(task.layer.clone()).map_err(TaskError::storing)?;
        let diff = staging.open_diff().map_err(TaskError::storing)?;
        let tar_split = staging.create_tar_split().map_err(TaskError::storing)?;
        match unpack(tar, diff.as_fd(), &tar_split, limits, halt) {
            Ok(unpacked) => staging.finish(unpacked).map(Some).map_err(TaskError::storing),
            Err(UnpackError::Stopped(_)) => Err(TaskError::Stopped),
            Err(error) if error.is_no_space() || matches!(error, UnpackError::OverBudget { .. }) => {
                Err(TaskError::unpacking(task.layer.blob, error))
            }
            // The donor is damaged, or its tar-split does not make up its tar.
            Err(error) => {
                tracing::debug!(layer = %task.layer.id(), %donor, "no donor: {error}");
                Ok(None)
            }
        }
    }

    /// Commits an image, and corrects its record where damage is mended.
    pub(in crate::job) fn commit_image(
        &self,
        image: &ResolvedImage,
        name: &Reference,
        halt: &Cancel,
    ) -> Result<ImageCommit, TaskError> {
        let committed = match self.replaces {
            true => self.store.repair_image(image, name, halt),
            false => self.store.commit_image(image, name, halt),
        };
        committed.map_err(TaskError::storing)
    }

    /// Commits layers, in the place of damaged ones where these are to be replaced.
    pub(in crate::job) fn commit(
        &self,
        staged: Vec<StagedLayer>,
        halt: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, TaskError> {
        let committed = match self.replaces {
            true => self.store.repair_layers(staged, &self.host, halt),
            false => self.store.commit_layers(staged, halt),
        };
        committed.map_err(TaskError::storing)
    }
}
