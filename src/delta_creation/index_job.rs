//! Creates all deltas of one index: from one release, or one image, to the next.
//!
//! # Design
//!
//! Each layer is a future: it waits for its tars, then for memory and a CPU, and compares on a thread. A bounded number of
//! them is polled at a time, so that some download while others compare. The images with the largest layers come first, so
//! that at the end no CPU waits for a single layer. The layers of an image follow each other: no more images are at work than
//! futures, and a kill loses only these. The future that finishes the last layer of an image publishes the image.

use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};

use super::creation_report::{ImageOutcome, ImageState, IndexReport, SourceImage, SourceReason};
use super::error::CreationError;
use super::image_pairs::{ImagePair, Pairing};
use super::layer_deltas::{LayerDeltas, LayerOutcome, SharedSources};
use super::layer_diff::Variant;
use super::named_image::NamedImage;
use super::publication::Publication;
use super::release_images::UnresolvedImage;
use super::tar_cache::{TarCache, remove};
use crate::oci::{Descriptor, Layer, Reference};
use crate::report::{Count, Size, Span};

/// How many layers are prepared while others are compared.
const AHEAD: usize = 2;

/// How much larger than its blob a layer's tar is taken to be.
const TAR_RATIO: u64 = 3;

/// The deltas of one index.
pub(super) struct IndexJob {
    /// The old release or image, for people.
    pub(super) from: String,
    /// The new release or image, for people.
    pub(super) to: String,
    /// Both with the digest of their manifest, for the index.
    pub(super) references: [Reference; 2],
    pub(super) tag: String,
    pub(super) subject: Descriptor,
    pub(super) pairing: Pairing,
    pub(super) unresolved: Vec<UnresolvedImage>,
}

/// A pair at work.
struct Work<'a> {
    pair: &'a ImagePair,
    sources: SharedSources,
    results: Mutex<Vec<Result<LayerOutcome, CreationError>>>,
}

impl IndexJob {
    /// Announces the tars that the job needs.
    pub(super) fn expect(&self, tars: &TarCache) {
        for pair in self.pairing.pairs.iter().filter(|pair| pair.old.is_some()) {
            for layer in pair.layers.iter().chain(pair.old_layers()) {
                tars.expect(layer.diff_id());
            }
        }
    }

    /// Removes the pairs that an earlier run has dealt with.
    pub(super) async fn skip_present(&mut self, publication: &Publication<'_>) -> Vec<ImageOutcome> {
        let mut present = Vec::new();
        let mut left = Vec::new();
        for pair in std::mem::take(&mut self.pairing.pairs) {
            match publication.has(&pair).await {
                true => present.push(outcome(&pair, ImageState::Present, None)),
                false => left.push(pair),
            }
        }
        self.pairing.pairs = left;
        present
    }

    /// The most disk space that the layers at work take at once, about: the blobs and the tars of the largest layers, and of
    /// their predecessors.
    pub(super) fn disk_needed(&self, jobs: usize, tars: &TarCache) -> u64 {
        let pairs = self.pairing.pairs.iter().filter(|pair| pair.old.is_some());
        let bytes = |layers: &[Layer]| -> u64 {
            let missing = layers.iter().filter(|layer| tars.is_missing(layer.diff_id()));
            missing
                .map(|layer| layer.size.saturating_mul(1 + TAR_RATIO))
                .sum()
        };
        let mut needs: Vec<u64> = pairs
            .map(|pair| {
                let further = pair.further.iter().map(|image| bytes(pair.further_layers(image)));
                bytes(&pair.layers) + bytes(pair.old_layers()) + further.sum::<u64>()
            })
            .collect();
        needs.sort_unstable_by_key(|need| Reverse(*need));
        needs.iter().take(jobs + AHEAD).sum()
    }

    /// Creates and publishes the deltas. `present` are the images of [`Self::skip_present`].
    pub(super) async fn run(
        self,
        jobs: usize,
        deltas: &LayerDeltas<'_>,
        tars: &TarCache,
        publication: &Publication<'_>,
        present: Vec<ImageOutcome>,
    ) -> Result<IndexReport, CreationError> {
        let mut images = present;
        images.extend(self.unresolved.iter().map(unresolved));
        let (pairs, new): (Vec<&ImagePair>, Vec<&ImagePair>) =
            self.pairing.pairs.iter().partition(|pair| pair.old.is_some());
        let no_predecessor = match self.unresolved.is_empty() {
            true => "no predecessor: the old release has no image with this name, source or base",
            false => {
                "no predecessor: the old release has no image with this name; others are tried when none is missing"
            }
        };
        let skipped = |pair| outcome(pair, ImageState::Skipped, Some(no_predecessor.to_owned()));
        images.extend(new.into_iter().map(skipped));
        let works: Vec<Work<'_>> = pairs.into_iter().map(Work::new).collect();
        let total = works.len();
        let layers =
            stream::iter(in_order(&works)).map(|(work, layer)| work.layer(layer, deltas, tars, publication));
        let mut layers = layers.buffer_unordered(jobs + AHEAD);
        let mut done = 0;
        while let Some(result) = layers.next().await {
            let Some(image) = result? else { continue };
            done += 1;
            log(&image, done, total);
            images.push(image);
        }
        Ok(IndexReport {
            digest: publication.finish().await?,
            from: self.from,
            to: self.to,
            tag: self.tag,
            images_equal: self.pairing.equal,
            images_shared: self.pairing.shared,
            images,
        })
    }
}

/// The layers in the order in which their deltas are made.
fn in_order<'w, 'a>(works: &'w [Work<'a>]) -> Vec<(&'w Work<'a>, &'a Layer)> {
    let mut ordered: Vec<(&'w Work<'a>, Vec<&'a Layer>)> = works
        .iter()
        .map(|work| {
            let mut layers: Vec<&'a Layer> = work.pair.layers.iter().collect();
            layers.sort_by_key(|layer| Reverse(layer.size));
            (work, layers)
        })
        .collect();
    ordered.sort_by_key(|(_, layers)| layers.first().map(|layer| Reverse(layer.size)));
    let layers = ordered
        .into_iter()
        .flat_map(|(work, layers)| layers.into_iter().map(move |layer| (work, layer)));
    layers.collect()
}

impl<'a> Work<'a> {
    fn new(pair: &'a ImagePair) -> Self {
        Self {
            pair,
            sources: SharedSources::default(),
            results: Mutex::default(),
        }
    }

    /// Makes the deltas of one layer. After the last one, publishes the image and returns how it ended.
    async fn layer(
        &self,
        layer: &Layer,
        deltas: &LayerDeltas<'_>,
        tars: &TarCache,
        publication: &Publication<'_>,
    ) -> Result<Option<ImageOutcome>, CreationError> {
        let Some(old) = &self.pair.old else {
            return Ok(None);
        };
        let made = deltas.of_layer(self.pair, &old.image, &self.sources, layer).await;
        tars.release(layer.diff_id());
        if let Err(error) = &made
            && error.is_fatal()
        {
            return Err(made.expect_err("it is an error"));
        }
        let results = {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results.push(made);
            if results.len() < self.pair.layers.len() {
                return Ok(None);
            }
            std::mem::take(&mut *results)
        };
        for layer in self.pair.old_layers() {
            tars.release(layer.diff_id());
        }
        let further = deltas.close(self.pair, &self.sources).await;
        let (outcomes, failures): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        let mut outcomes: Vec<LayerOutcome> = outcomes.into_iter().flatten().collect();
        // Layers finish in any order. The same deltas make the same artifact.
        outcomes.sort_by_key(|outcome| self.pair.layers.iter().position(|layer| *layer == outcome.layer));
        let failure = failures.into_iter().find_map(Result::err);
        let published = match &failure {
            Some(_) => Ok(()),
            None => {
                let added = publication.add(self.pair, &old.image, further.as_ref(), &outcomes);
                added.await
            }
        };
        for file in outcomes.iter().flat_map(|outcome| &outcome.deltas) {
            remove(&file.path);
        }
        published?;
        Ok(Some(match failure {
            Some(error) => failed(self.pair, &error),
            None => finished(self.pair, further.as_ref(), &outcomes),
        }))
    }
}

fn outcome(pair: &ImagePair, state: ImageState, why_not: Option<String>) -> ImageOutcome {
    let old = pair.old.iter();
    ImageOutcome {
        old_images: old.map(|old| source(&old.image, old.reason)).collect(),
        name: pair.new.name.clone(),
        reference: pair.new.reference.to_string(),
        state,
        layers: pair.layers.len(),
        bytes_whole: pair.whole_bytes(),
        bytes_delta: matches!(state, ImageState::Skipped).then(|| pair.whole_bytes()),
        bytes_standard: None,
        seconds: 0.0,
        why_not,
        failure: None,
    }
}

fn source(image: &NamedImage, reason: SourceReason) -> SourceImage {
    SourceImage {
        name: image.name.clone(),
        reference: image.reference.to_string(),
        reason,
    }
}

fn unresolved(image: &UnresolvedImage) -> ImageOutcome {
    ImageOutcome {
        old_images: Vec::new(),
        name: image.name.clone(),
        reference: image.reference.to_string(),
        state: ImageState::Failed,
        layers: 0,
        bytes_whole: 0,
        bytes_delta: None,
        bytes_standard: None,
        seconds: 0.0,
        why_not: Some(image.error.to_string()),
        failure: Some(image.error.kind()),
    }
}

fn failed(pair: &ImagePair, error: &CreationError) -> ImageOutcome {
    ImageOutcome {
        failure: Some(error.kind()),
        ..outcome(pair, ImageState::Failed, Some(error.to_string()))
    }
}

fn finished(pair: &ImagePair, further: Option<&NamedImage>, outcomes: &[LayerOutcome]) -> ImageOutcome {
    let has_deltas = outcomes.iter().any(|outcome| !outcome.deltas.is_empty());
    let state = match has_deltas {
        true => ImageState::Created,
        false => ImageState::Skipped,
    };
    let elapsed: Duration = outcomes.iter().map(|outcome| outcome.elapsed).sum();
    let why_not: Vec<&str> = outcomes
        .iter()
        .filter_map(|outcome| outcome.why_not.as_deref())
        .collect();
    let mut all = outcomes.iter();
    let further = further.filter(|_| all.any(|outcome| outcome.delta(Variant::Further).is_some()));
    let outcome = outcome(pair, state, (!why_not.is_empty()).then(|| why_not.join("; ")));
    let further = further.map(|image| source(image, SourceReason::Files));
    ImageOutcome {
        old_images: outcome.old_images.into_iter().chain(further).collect(),
        bytes_delta: Some(outcomes.iter().map(LayerOutcome::smallest).sum()),
        bytes_standard: Some(outcomes.iter().map(LayerOutcome::standard).sum()),
        seconds: elapsed.as_secs_f64(),
        ..outcome
    }
}

fn log(image: &ImageOutcome, done: usize, total: usize) {
    let name = crate::report::Printable(&image.name);
    match (image.state, image.bytes_delta) {
        (ImageState::Failed, _) => {
            for line in image.why_not.as_deref().unwrap_or_default().lines() {
                tracing::error!(
                    "Failed {name} [{done}/{total}]: {}",
                    crate::report::Printable(line)
                );
            }
        }
        (ImageState::Skipped, _) => tracing::info!(
            "Skipped {name} [{done}/{total}]: {}",
            crate::report::Printable(image.why_not.as_deref().unwrap_or_default())
        ),
        (_, Some(bytes)) => tracing::info!(
            "Created {name} [{done}/{total}]: {} instead of {}, {} in {}",
            Size(bytes),
            Size(image.bytes_whole),
            Count(image.layers, "layer"),
            Span(Duration::from_secs_f64(image.seconds))
        ),
        (_, None) => {}
    }
}
