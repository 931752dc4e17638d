//! Reads again what the store has of the wanted images: each layer once, however many images have it, several at a time.
//!
//! What was read is remembered until it is told to [`Verifier::forget`]; only the small files around a layer's tree are
//! looked at each time, for those are mended here.

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

/// How often it is said how far the reading is: a store of 50 GB takes minutes.
const NOTICE: Duration = Duration::from_secs(10);

/// What was read so far.
pub(super) struct Verifier {
    observer: Arc<dyn Observer>,
    layers: HashMap<ExpectedLayer, LayerState>,
    told: HashSet<String>,
    /// Layers whose surroundings were to be mended, whatever came of it.
    tried: HashSet<LayerId>,
    /// Layers that were written anew.
    rewritten: HashSet<LayerId>,
    /// Of the threads that read. What mends holds the store's locks and keeps its own.
    priority: IoPriority,
}

impl Verifier {
    pub(super) fn new(observer: Arc<dyn Observer>, priority: IoPriority) -> Self {
        Self {
            observer,
            layers: HashMap::new(),
            told: HashSet::new(),
            tried: HashSet::new(),
            rewritten: HashSet::new(),
            priority,
        }
    }

    /// Layers that were read and have to be unpacked anew. None of an additional store: nothing is written there, and an
    /// image that is damaged there is brought whole into the graph root.
    pub(super) fn damaged(&self) -> HashSet<LayerId> {
        let damaged = self.layers.iter().filter(|(place, state)| {
            place.location == StoreLocation::GraphRoot && matches!(state, LayerState::Damaged(_))
        });
        damaged.map(|(place, _)| place.id).collect()
    }

    /// The layers were written since.
    pub(super) fn forget(&mut self, layers: &HashSet<LayerId>) {
        self.layers.retain(|place, _| !layers.contains(&place.id));
        self.tried.retain(|id| !layers.contains(id));
    }

    /// The layers were unpacked anew. Another time would make them no better.
    pub(super) fn note_rewritten(&mut self, layers: &[LayerId]) {
        self.rewritten.extend(layers);
    }

    /// Whether a layer of the image is damaged though it was unpacked anew.
    pub(super) fn is_beyond_repair(&self, seen: &ImageInStore) -> bool {
        seen.damaged.iter().any(|layer| self.rewritten.contains(layer))
    }

    /// Reads every image that was seen, as far as it was not read before, and notes in `sight` what is wrong with it.
    pub(super) async fn examine(
        &mut self,
        sight: &mut Snapshot,
        at_once: NonZeroUsize,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let inventory = Arc::clone(&sight.inventory);
        let mut places = HashSet::new();
        for seen in sight.images_mut() {
            let (inventory, id, priority) = (Arc::clone(&inventory), seen.id, self.priority);
            let read = run_blocking(move || {
                let _lowered = priority.lower();
                let Some(image) = inventory.image(&id) else {
                    return Ok(Default::default());
                };
                let places = inventory.expected_layers(image)?.unwrap_or_default();
                let blobs = inventory.blobs_of(image)?;
                let frame = |(index, place)| inventory.check_links(place, blobs.get(index));
                let frames: Result<Vec<_>, StoreError> = places.iter().enumerate().map(frame).collect();
                Ok((inventory.check_data(image)?, places, blobs, frames?))
            });
            (seen.data, seen.places, seen.blobs, seen.frames) = read.await?;
            places.extend(seen.places.iter().copied());
        }
        self.read(places, &inventory, at_once, cancel).await?;
        for seen in sight.images_mut() {
            let flaw = self.judge(seen, &inventory);
            // What was seen at first sight and is nothing of all that was read is the image's record.
            let record = seen.flaw.take().map(|reason| Reason {
                failure: Failure::Store,
                ..reason
            });
            seen.flaw = flaw.or(record);
        }
        Ok(())
    }

    async fn read(
        &mut self,
        places: HashSet<ExpectedLayer>,
        inventory: &Arc<Inventory>,
        at_once: NonZeroUsize,
        cancel: &Cancel,
    ) -> Result<(), JobError> {
        let todo: Vec<ExpectedLayer> = places
            .into_iter()
            .filter(|it| !self.layers.contains_key(it))
            .collect();
        let (all, bytes) = (todo.len(), Arc::new(AtomicU64::new(0)));
        if all > 0 {
            tracing::info!("reading {all} layers");
        }
        let priority = self.priority;
        let check = |place: ExpectedLayer| {
            let (inventory, cancel, bytes) = (Arc::clone(inventory), cancel.clone(), Arc::clone(&bytes));
            run_blocking(move || {
                let _lowered = priority.lower();
                match inventory.check_layer(&place, &cancel, &bytes) {
                    Ok(state) => Ok((place, state)),
                    Err(StoreError::Cancelled(stopped)) => Err(stopped.into()),
                    Err(error) => Err(error.into()),
                }
            })
        };
        let mut checks = stream::iter(todo).map(check).buffer_unordered(at_once.get());
        let mut notice = tokio::time::interval_at(tokio::time::Instant::now() + NOTICE, NOTICE);
        let mut done = 0;
        loop {
            tokio::select! {
                checked = checks.next() => match checked {
                    None => return Ok(()),
                    Some(checked) => {
                        let (place, state) = checked?;
                        done += 1;
                        self.tell_layer(&layer_of(inventory, &place), &state);
                        // One that is missing may come.
                        if !matches!(state, LayerState::Missing) {
                            self.layers.insert(place, state);
                        }
                    }
                },
                _ = notice.tick() => {
                    let read = Size(bytes.load(Ordering::Relaxed));
                    tracing::info!("read {done} of {all} layers, {read}");
                }
                stopped = cancel.stopped() => return Err(stopped.into()),
            }
        }
    }

    /// What is wrong with an image: the first damage by name, and how many there are.
    fn judge(&mut self, seen: &mut ImageInStore, inventory: &Inventory) -> Option<Reason> {
        let (mut first, mut count, mut missing) = (None, 0, None);
        let mut note = |damage: String, more: u64| {
            first.get_or_insert(damage);
            count += more;
        };
        for damage in &seen.data {
            let damage = match &seen.additional {
                Some(root) => {
                    let root = root.display();
                    format!(
                        "image {} of the additional image store `{root}`: {damage}",
                        seen.id
                    )
                }
                None => format!("image {}: {damage}", seen.id),
            };
            self.tell(damage.clone());
            note(damage, 1);
        }
        seen.damaged.clear();
        seen.unframed.clear();
        seen.unmendable = None;
        let mut out_of_reach = None;
        for (index, (place, frame)) in seen.places.iter().zip(&seen.frames).enumerate() {
            let (Some(state), Some(frame)) = (self.layers.get(place).cloned(), frame) else {
                missing.get_or_insert(place.id);
                continue;
            };
            let layer = layer_of(inventory, place);
            for damage in frame {
                let damage = format!("{layer}: {damage}");
                self.tell(damage.clone());
                note(damage, 1);
            }
            let is_ours = place.location == StoreLocation::GraphRoot;
            if is_ours && out_of_reach.is_some() {
                seen.unmendable = out_of_reach.clone();
            }
            match state {
                LayerState::Damaged(LayerDamage {
                    shown: damages,
                    count,
                }) => {
                    match is_ours {
                        true => seen.damaged.push(place.id),
                        false => out_of_reach = Some(layer.clone()),
                    }
                    if let Some(damage) = damages.first() {
                        note(format!("{layer}: {damage}"), count);
                    }
                }
                _ if frame.is_empty() => {}
                _ if is_ours => seen.unframed.push((*place, seen.blobs.get(index).copied())),
                _ => out_of_reach = Some(layer),
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

    /// Mends what surrounds the layers whose trees are sound. Says whether anything was done.
    pub(super) async fn mend_frames(
        &mut self,
        sight: &Snapshot,
        store: &Arc<Store>,
        host: &HostState,
        cancel: &Cancel,
    ) -> Result<bool, JobError> {
        let mut has_mended = false;
        for seen in sight.images() {
            for (place, blob) in &seen.unframed {
                // Its way leads through those below it.
                let below = seen.places.iter().take_while(|it| it.id != place.id);
                let is_unsound =
                    |it: &ExpectedLayer| matches!(self.layers.get(it), None | Some(LayerState::Damaged(_)));
                if below.into_iter().any(is_unsound) || !self.tried.insert(place.id) {
                    continue;
                }
                let (store, host, cancel) = (Arc::clone(store), host.clone(), cancel.clone());
                let (inventory, place, blob) = (Arc::clone(&sight.inventory), *place, *blob);
                let mend = move || store.repair_links(&place, blob.as_ref(), &inventory, &host, &cancel);
                let mended = run_blocking(move || match mend() {
                    Err(StoreError::Stopped { stopped, .. }) => Err(stopped.into()),
                    Err(error @ (StoreError::InUse { .. } | StoreError::Conflict { .. })) => Ok(Some(error)),
                    done => Ok(done.map(|()| None)?),
                });
                match mended.await? {
                    None => has_mended = true,
                    Some(error) => self.tell(error.to_string()),
                }
            }
        }
        Ok(has_mended)
    }

    fn tell_layer(&mut self, layer: &str, state: &LayerState) {
        match state {
            LayerState::Intact | LayerState::Missing => {}
            LayerState::Unproven(reason) => {
                self.tell(format!("{layer} was not compared with its tar: {reason}"));
            }
            LayerState::Damaged(LayerDamage {
                shown: damages,
                count,
            }) => {
                for damage in damages {
                    self.tell(format!("{layer}: {damage}"));
                }
                if *count > damages.len() as u64 {
                    self.tell(format!(
                        "{layer}: {count} damages, of which the first {} are told",
                        damages.len()
                    ));
                }
            }
        }
    }

    /// Into log and report, once.
    fn tell(&mut self, message: String) {
        if self.told.insert(message.clone()) {
            self.observer.observe(Event::Warned { message });
        }
    }
}

/// For messages.
fn layer_of(inventory: &Inventory, place: &ExpectedLayer) -> String {
    match inventory.additional_root(place.location) {
        Some(root) => format!(
            "layer {} of the additional image store `{}`",
            place.id,
            root.display()
        ),
        None => format!("layer {}", place.id),
    }
}
