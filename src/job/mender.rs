//! How a pull differs that mends: what the store has elsewhere is not fetched, and what is damaged is replaced.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use super::failure::Trouble;
use super::puller::spec_of;
use crate::cancel::Cancel;
use crate::oci::LayerId;
use crate::plan::LayerTask;
use crate::store::unpack::{Limits, UnpackError, unpack};
use crate::store::{HostState, Inventory, LayerCommit, Stage, StagedLayer, Store};

/// As many layers of the same content are tried before it is fetched.
const DONORS: usize = 4;

/// Mends layers of one store.
#[derive(Clone)]
pub(super) struct Mender {
    pub(super) store: Arc<Store>,
    pub(super) stage: Arc<Stage>,
    pub(super) inventory: Arc<Inventory>,
    pub(super) host: HostState,
}

impl Mender {
    /// Stages the layer from one in the store that has the same content: on other parents, or itself, if only its
    /// attributes are damaged. The digest of the whole tar decides whether it does.
    pub(super) fn stage(&self, task: &LayerTask, halt: &Cancel) -> Result<Option<StagedLayer>, Trouble> {
        for donor in self.inventory.layers_with(task.diff_id).iter().take(DONORS) {
            match self.stage_from(donor, task, halt) {
                Ok(Some(staged)) => {
                    tracing::info!(layer = %task.id, %donor, "unpacked a layer from the store itself");
                    return Ok(Some(staged));
                }
                Ok(None) => {}
                Err(Trouble::Image(reason)) => {
                    tracing::debug!(layer = %task.id, %donor, "no donor: {}", reason.message);
                }
                Err(trouble) => return Err(trouble),
            }
        }
        Ok(None)
    }

    fn stage_from(
        &self,
        donor: &LayerId,
        task: &LayerTask,
        halt: &Cancel,
    ) -> Result<Option<StagedLayer>, Trouble> {
        let Some(tar) = self.store.open_tar(donor).map_err(Trouble::storing)? else {
            return Ok(None);
        };
        let size = self
            .inventory
            .layer(donor)
            .and_then(|layer| layer.diff_size)
            .unwrap_or(task.size);
        let staging = self.stage.layer(spec_of(task)).map_err(Trouble::storing)?;
        let diff = staging.open_diff().map_err(Trouble::storing)?;
        let tar_split = staging.create_tar_split().map_err(Trouble::storing)?;
        match unpack(tar, diff.as_fd(), &tar_split, Limits::for_blob(size), halt) {
            Ok(unpacked) => staging.finish(unpacked).map(Some).map_err(Trouble::storing),
            Err(UnpackError::Stopped(_)) => Err(Trouble::Stopped),
            Err(error) if error.is_no_space() => Err(Trouble::unpacking(task.blob, error)),
            // The donor is damaged, or its tar-split does not make up its tar.
            Err(error) => {
                tracing::debug!(layer = %task.id, %donor, "no donor: {error}");
                Ok(None)
            }
        }
    }

    /// Commits layers, in the place of damaged ones where there are such.
    pub(super) fn commit(
        &self,
        staged: Vec<StagedLayer>,
        halt: &Cancel,
    ) -> Result<Vec<(LayerId, LayerCommit)>, Trouble> {
        self.store
            .mend_layers(staged, &self.host, halt)
            .map_err(Trouble::storing)
    }
}
