//! Checks that every name in a layer's `lower` file leads to an existing layer, because a mount needs all of them.

use super::error::StoreError;
use super::layer_dir;
use super::layers_json::{LayerTable, LayerView};
use super::layout::Layout;
use crate::oci::LayerId;

impl LayerTable {
    /// Describes the first name in the layer's `lower` that no store resolves. A layer may have been built on layers
    /// of an additional store that is gone since; its `lower` still has the names from there. `self` are the records
    /// of `layout`.
    pub(super) fn unresolved_lower(
        &self,
        layout: &Layout,
        view: &LayerView,
        id: &LayerId,
        stores: &[&Layout],
    ) -> Result<Option<String>, StoreError> {
        let mut unresolved = layer_dir::unresolved_names(layout, id, stores)?;
        let mut next = view.parent().and_then(LayerId::from_hex);
        // `lower` has no more names than this, and damaged records may form a cycle.
        let mut rounds = layer_dir::DEPTH_LIMIT;
        // containers/storage recreates symlinks that a crash removed, in the graph root (`overlay.go`:
        // `recreateSymlinks`).
        while let Some(below) = next.filter(|_| !unresolved.is_empty() && rounds > 0) {
            rounds -= 1;
            if let Some(link) = layer_dir::link(layout, &below)? {
                unresolved.retain(|name| name.strip_prefix("l/") != Some(&link));
            }
            let view = self.find(&below);
            next = view.and_then(LayerView::parent).and_then(LayerId::from_hex);
        }
        Ok(unresolved
            .pop()
            .map(|name| format!("its `lower` names `{name}`, which no store has")))
    }
}
