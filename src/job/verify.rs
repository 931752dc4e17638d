//! Verifies the requested images: reads every layer and record in the store again, and finds what is damaged.
//!
//! Each layer is read once, however many images have it, several layers at a time. Results are kept until
//! [`Verifier::forget`]. The small files around a layer's tree, such as `link` and `lower`, are read each time, because this
//! module repairs them.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;

use super::error::{JobError, Reason};
use super::run_blocking;
use super::snapshot::{ImageInStore, Snapshot};
use crate::cancel::Cancel;
use crate::exit_code::Failure;
use crate::oci::LayerId;
use crate::priority::IoPriority;
use crate::report::{Event, Observer, Size};
use crate::store::{
    ExpectedLayer, HostState, Inventory, LayerDamage, LayerState, Store, StoreError, StoreLocation,
};

/// How often the log reports progress: reading a store of 50 GB takes minutes.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);

/// Verifies layers, and keeps the results.
pub(super) struct Verifier {
    observer: Arc<dyn Observer>,
    layers: HashMap<ExpectedLayer, LayerState>,
    /// Warnings that were reported; each is reported once.
    reported: HashSet<String>,
    /// Layers whose links were repaired, successfully or not.
    link_repairs: HashSet<LayerId>,
    /// Layers that were unpacked again.
    rewritten: HashSet<LayerId>,
    /// Disk priority of the reading threads. Repairs hold the store's locks and keep their own.
    priority: IoPriority,
}

impl Verifier {
    pub(super) fn new(observer: Arc<dyn Observer>, priority: IoPriority) -> Self {
        Self {
            observer,
            layers: HashMap::new(),
            reported: HashSet::new(),
            link_repairs: HashSet::new(),
            rewritten: HashSet::new(),
            priority,
        }
    }

    /// Layers that have to be unpacked again. None of an additional store: nothing is written there, and an image that is
    /// damaged there is pulled into the graph root as a whole.
    pub(super) fn damaged(&self) -> HashSet<LayerId> {
        let damaged = self.layers.iter().filter(|(layer, state)| {
            layer.location == StoreLocation::GraphRoot && matches!(state, LayerState::Damaged(_))
        });
        damaged.map(|(layer, _)| layer.id).collect()
    }

    /// Forgets the results of layers that were written since.
    pub(super) fn forget(&mut self, layers: &HashSet<LayerId>) {
        self.layers.retain(|layer, _| !layers.contains(&layer.id));
        self.link_repairs.retain(|id| !layers.contains(id));
    }

    /// Notes layers that were unpacked again. If they are still damaged, another time will not help.
    pub(super) fn note_rewritten(&mut self, layers: &[LayerId]) {
        self.rewritten.extend(layers);
    }

    /// Whether a layer of the image is damaged although it was unpacked again.
    pub(super) fn is_beyond_repair(&self, image: &ImageInStore) -> bool {
        image.damaged.iter().any(|layer| self.rewritten.contains(layer))
    }

    /// Reads every image of the snapshot, except layers that were read before, and records its damage in the snapshot.
    pub(super) async fn verify(
        &mut self,
        snapshot: &mut Snapshot,
        threads: NonZeroUsize,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let inventory = Arc::clone(&snapshot.inventory);
        let mut layers = HashSet::new();
        for image in snapshot.images_mut() {
            let (inventory, id, priority) = (Arc::clone(&inventory), image.id, self.priority);
            let read = run_blocking(move || {
                let _lowered = priority.lower();
                let Some(record) = inventory.image(&id) else {
                    return Ok(Default::default());
                };
                let layers = inventory.expected_layers(record)?.unwrap_or_default();
                let blobs = inventory.blobs_of(record)?;
                let check_links = |(index, layer)| inventory.check_links(layer, blobs.get(index));
                let links: Result<Vec<_>, StoreError> = layers.iter().enumerate().map(check_links).collect();
                Ok((inventory.check_data(record)?, layers, blobs, links?))
            });
            (
                image.data_damage,
                image.expected_layers,
                image.blobs,
                image.link_damage,
            ) = read.await?;
            layers.extend(image.expected_layers.iter().copied());
        }
        self.read(layers, &inventory, threads, cancel).await?;
        for image in snapshot.images_mut() {
            let damage = self.assess(image, &inventory);
            // A flaw that the snapshot found and none of the files explains: the image's record is damaged, or the signature
            // policy refuses the image.
            let other = image.flaw.take().map(|reason| match reason.failure {
                Failure::Signature => reason,
                _ => Reason {
                    failure: Failure::Store,
                    ..reason
                },
            });
            image.flaw = damage.or(other);
        }
        Ok(())
    }

    /// Reads layers on several threads, except those that were read before.
    async fn read(
        &mut self,
        layers: HashSet<ExpectedLayer>,
        inventory: &Arc<Inventory>,
        threads: NonZeroUsize,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let unread = layers
            .into_iter()
            .filter(|layer| !self.layers.contains_key(layer));
        let unread: Vec<ExpectedLayer> = unread.collect();
        let (total, bytes) = (unread.len(), Arc::new(AtomicU64::new(0)));
        if total > 0 {
            tracing::info!("reading {total} layers");
        }
        let priority = self.priority;
        let check = |layer: ExpectedLayer| {
            let (inventory, cancel, bytes) = (Arc::clone(inventory), cancel.clone(), Arc::clone(&bytes));
            run_blocking(move || {
                let _lowered = priority.lower();
                match inventory.check_layer(&layer, &cancel, &bytes) {
                    Ok(state) => Ok((layer, state)),
                    Err(StoreError::Cancelled(stopped)) => Err(stopped.into()),
                    Err(error) => Err(error.into()),
                }
            })
        };
        let mut checks = stream::iter(unread).map(check).buffer_unordered(threads.get());
        let mut progress =
            tokio::time::interval_at(tokio::time::Instant::now() + PROGRESS_INTERVAL, PROGRESS_INTERVAL);
        let mut done = 0;
        loop {
            tokio::select! {
                checked = checks.next() => match checked {
                    None => return Ok(()),
                    Some(checked) => {
                        let (layer, state) = checked?;
                        done += 1;
                        self.report_layer(&describe(inventory, &layer), &state);
                        // A missing layer may be pulled later.
                        if !matches!(state, LayerState::Missing) {
                            self.layers.insert(layer, state);
                        }
                    }
                },
                _ = progress.tick() => {
                    let read = Size(bytes.load(Ordering::Relaxed));
                    tracing::info!("read {done} of {total} layers, {read}");
                }
                stopped = cancel.stopped() => return Err(stopped.into()),
            }
        }
    }

    /// Collects the damage of one image into the snapshot. Returns the first damage and how many more there are.
    fn assess(&mut self, image: &mut ImageInStore, inventory: &Inventory) -> Option<Reason> {
        let (mut first, mut count, mut missing) = (None, 0, None);
        let mut note = |damage: String, more: u64| {
            first.get_or_insert(damage);
            count += more;
        };
        for damage in &image.data_damage {
            let id = image.id;
            let damage = match image.additional.as_ref().map(|root| root.display()) {
                Some(root) => format!("image {id} of the additional image store `{root}`: {damage}"),
                None => format!("image {id}: {damage}"),
            };
            self.warn_once(damage.clone());
            note(damage, 1);
        }
        image.damaged.clear();
        image.damaged_links.clear();
        image.damaged_below = None;
        let mut damaged_elsewhere = None;
        for (index, (layer, links)) in image.expected_layers.iter().zip(&image.link_damage).enumerate() {
            let (Some(state), Some(links)) = (self.layers.get(layer).cloned(), links) else {
                missing.get_or_insert(layer.id);
                continue;
            };
            let name = describe(inventory, layer);
            for damage in links {
                let damage = format!("{name}: {damage}");
                self.warn_once(damage.clone());
                note(damage, 1);
            }
            let is_in_graph_root = layer.location == StoreLocation::GraphRoot;
            if is_in_graph_root && damaged_elsewhere.is_some() {
                image.damaged_below = damaged_elsewhere.clone();
            }
            match state {
                LayerState::Damaged(LayerDamage {
                    shown: damages,
                    count,
                }) => {
                    match is_in_graph_root {
                        true => image.damaged.push(layer.id),
                        false => damaged_elsewhere = Some(name.clone()),
                    }
                    if let Some(damage) = damages.first() {
                        note(format!("{name}: {damage}"), count);
                    }
                }
                _ if links.is_empty() => {}
                _ if is_in_graph_root => image
                    .damaged_links
                    .push((*layer, image.blobs.get(index).copied())),
                _ => damaged_elsewhere = Some(name),
            }
        }
        match (first, missing) {
            (Some(mut message), _) => {
                if count > 1 {
                    let _ = write!(message, ", and {} more", count - 1);
                }
                Some(Reason {
                    failure: Failure::Store,
                    message,
                })
            }
            (None, Some(layer)) => Some(Reason {
                failure: Failure::Incomplete,
                message: format!("its layer {layer} is missing"),
            }),
            (None, None) => None,
        }
    }

    /// Repairs the links of layers whose trees are intact. Returns whether anything was repaired.
    pub(super) async fn repair_links(
        &mut self,
        snapshot: &Snapshot,
        store: &Arc<Store>,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<bool, JobError> {
        let mut has_repaired = false;
        for image in snapshot.images() {
            for (layer, blob) in &image.damaged_links {
                // `lower` contains the links of all layers below, so these have to be intact.
                let below = image.expected_layers.iter().take_while(|it| it.id != layer.id);
                let is_damaged =
                    |it: &ExpectedLayer| matches!(self.layers.get(it), None | Some(LayerState::Damaged(_)));
                if below.into_iter().any(is_damaged) || !self.link_repairs.insert(layer.id) {
                    continue;
                }
                let (store, host, cancel) = (Arc::clone(store), host.clone(), cancel.clone());
                let (inventory, layer, blob) = (Arc::clone(&snapshot.inventory), *layer, *blob);
                let repair = move || store.repair_links(&layer, blob.as_ref(), &inventory, &host, &cancel);
                let repaired = run_blocking(move || match repair() {
                    Err(StoreError::Stopped { stopped, .. }) => Err(stopped.into()),
                    Err(error @ (StoreError::InUse { .. } | StoreError::Conflict { .. })) => Ok(Some(error)),
                    done => Ok(done.map(|()| None)?),
                });
                match repaired.await? {
                    None => has_repaired = true,
                    Some(error) => self.warn_once(error.to_string()),
                }
            }
        }
        Ok(has_repaired)
    }

    fn report_layer(&mut self, layer: &str, state: &LayerState) {
        match state {
            LayerState::Intact | LayerState::Missing => {}
            LayerState::Unproven(reason) => {
                self.warn_once(format!("{layer} was not compared with its tar: {reason}"));
            }
            LayerState::Damaged(LayerDamage {
                shown: damages,
                count,
            }) => {
                for damage in damages {
                    self.warn_once(format!("{layer}: {damage}"));
                }
                if *count > damages.len() as u64 {
                    self.warn_once(format!(
                        "{layer}: {count} damages, of which the first {} are listed",
                        damages.len()
                    ));
                }
            }
        }
    }

    /// Writes a warning to log and report, each message once.
    fn warn_once(&mut self, message: String) {
        if self.reported.insert(message.clone()) {
            self.observer.observe(Event::Warned { message });
        }
    }
}

/// The layer's name in messages.
fn describe(inventory: &Inventory, layer: &ExpectedLayer) -> String {
    match inventory.additional_root(layer.location) {
        Some(root) => format!(
            "layer {} of the additional image store `{}`",
            layer.id,
            root.display()
        ),
        None => format!("layer {}", layer.id),
    }
}
