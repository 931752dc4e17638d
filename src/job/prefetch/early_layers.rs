//! Unpacks the blobs that a prefetch downloads, for the pull of the next round.
//!
//! Without this, all processors are idle while the release image is committed and the next round is planned: a third of a
//! second on the bench, an eighth of a small release.
//!
//! The space check of the next round counts these layers again, because they are not in the store yet. So their sum is
//! limited to what the plan leaves free. A layer that cannot be unpacked is left to the pull, which reports the error.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot::{self, Receiver};

use crate::job::unpacker::Unpacker;
use crate::oci::{Layer, LayerId};
use crate::spool::VerifiedBlob;
use crate::store::StagedLayer;
use crate::store::unpack::{SpaceBudget, TakenSpace};

/// A layer may be half as long again as estimated before it needs space from the budget (`UnpackLimits::estimated`).
const ESTIMATE_HALVES: u64 = 3;

/// Layers that a prefetch unpacks or has unpacked, until a pull takes them.
#[derive(Clone, Default)]
pub(in crate::job) struct EarlyLayers(Arc<Mutex<HashMap<LayerId, Receiver<EarlyLayer>>>>);

struct EarlyLayer {
    staged: StagedLayer,
    _space: TakenSpace,
}

/// Unpacks layers early.
#[derive(Clone)]
pub(super) struct EarlyUnpack {
    pub(super) layers: EarlyLayers,
    pub(super) unpacker: Unpacker,
    /// What the plan of the next round leaves free.
    pub(super) spare: Arc<SpaceBudget>,
}

impl EarlyLayers {
    /// Takes a layer, after it was unpacked; none if no prefetch unpacks it.
    pub(in crate::job) async fn take(&self, id: &LayerId) -> Option<StagedLayer> {
        let unpacked = self.layers().remove(id)?;
        unpacked.await.ok().map(|early| early.staged)
    }

    fn layers(&self) -> MutexGuard<'_, HashMap<LayerId, Receiver<EarlyLayer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EarlyUnpack {
    /// Unpacks the layer if there is space for it; `estimate` is the expected length of its tar.
    pub(super) async fn unpack(&self, layer: Layer, estimate: u64, blob: VerifiedBlob) {
        let id = layer.id();
        let Some(space) = self.spare.take(estimate.saturating_mul(ESTIMATE_HALVES) / 2) else {
            return;
        };
        let (sender, receiver) = oneshot::channel();
        self.layers.layers().insert(id, receiver);
        let unpacked = self
            .unpacker
            .unpack(layer, estimate, blob, Arc::clone(&self.spare));
        match unpacked.await {
            Ok(staged) => {
                let _space = space;
                // No pull needs the layer any more if the receiver is gone.
                let _ = sender.send(EarlyLayer { staged, _space });
            }
            Err(_) => tracing::debug!(layer = %id, "a layer is not unpacked early"),
        }
    }
}
