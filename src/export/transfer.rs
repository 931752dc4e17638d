//! Downloads the blobs of images, each once, and stores them in the output.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures::stream::{self, StreamExt as _};

use super::blocking::run_blocking;
use super::error::ExportError;
use super::image_set::Reason;
use super::image_source::{ExportedImage, ImageSource};
use crate::image_request::ImageRequest;
use crate::oci::{Digest, Reference};
use crate::report::{Event, ImagePhase, Size};

/// From this many bytes on, verifying what is in the output is announced: a medium of 30 MB/s takes half a minute.
const ANNOUNCED: u64 = 1 << 30;

/// What the blobs of an export are, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TransferTotals {
    /// Blobs of the images, without those that are left out.
    pub(super) blobs: usize,
    /// Their bytes.
    pub(super) bytes: u64,
    /// Of these, in the output before.
    pub(super) present: u64,
    /// Bytes of the blobs that the nodes have.
    pub(super) left_out: u64,
}

/// The blobs of an export.
pub(super) struct Transfer<'a> {
    source: &'a Arc<ImageSource>,
    /// How many blobs are on their way at the same time.
    concurrency: usize,
    /// What the nodes have.
    left_out: &'a HashSet<Digest>,
    /// Blobs that were dealt with: in the output, left out, or failed.
    known: HashMap<Digest, Option<Reason>>,
    images: u64,
    pub(super) totals: TransferTotals,
}

/// A blob that is in no earlier batch.
struct NewBlob {
    digest: Digest,
    size: u64,
    images: Vec<Reference>,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(
        source: &'a Arc<ImageSource>,
        concurrency: usize,
        left_out: &'a HashSet<Digest>,
    ) -> Self {
        Self {
            source,
            concurrency,
            left_out,
            known: HashMap::new(),
            images: 0,
            totals: TransferTotals::default(),
        }
    }

    /// Stores the blobs of these images. Returns why images are incomplete.
    pub(super) async fn run(
        &mut self,
        batch: &[(&ImageRequest, &ExportedImage)],
    ) -> Result<BTreeMap<Reference, Reason>, ExportError> {
        self.images += batch.len() as u64;
        let new = self.new_blobs(batch);
        let missing = self.missing(new).await?;
        self.announce(batch, &missing);
        let needed = missing.iter().map(|blob| blob.size).sum();
        let (output, sizes) = (Arc::clone(&self.source.output), largest(&missing));
        run_blocking(move || {
            output.check_space(needed)?;
            match sizes {
                Some((digest, size)) => Ok(output.check_file_size(size, || format!("blob {digest}"))?),
                None => Ok(()),
            }
        })
        .await?;
        let mut waiting: Vec<(&ImageRequest, HashSet<Digest>)> = batch
            .iter()
            .map(|(request, image)| (*request, self.unknown(image)))
            .collect();
        let mut failed = BTreeMap::new();
        self.finish_images(&mut waiting, ImagePhase::Present, batch, &mut failed);
        let source = Arc::clone(self.source);
        let stored = stream::iter(missing).map(|blob| {
            let source = Arc::clone(&source);
            async move {
                let digest = blob.digest;
                (digest, store(blob, &source).await)
            }
        });
        let mut stored = stored.buffer_unordered(self.concurrency);
        while let Some((digest, result)) = stored.next().await {
            let reason = match result {
                Ok(()) => None,
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => Some(Reason::from(&error)),
            };
            self.known.insert(digest, reason);
            self.finish_images(&mut waiting, ImagePhase::Pulled, batch, &mut failed);
        }
        Ok(failed)
    }

    /// The blobs that are not left out and in no earlier batch, in the order of the images.
    fn new_blobs(&mut self, batch: &[(&ImageRequest, &ExportedImage)]) -> Vec<NewBlob> {
        let mut new: Vec<NewBlob> = Vec::new();
        let mut positions = HashMap::new();
        for (request, image) in batch {
            for layer in &image.image.layers {
                let (digest, size) = (layer.blob, layer.size);
                if self.known.contains_key(&digest) {
                    continue;
                }
                if self.left_out.contains(&digest) {
                    self.known.insert(digest, None);
                    self.totals.left_out += size;
                    continue;
                }
                let position = *positions.entry(digest).or_insert(new.len());
                if position == new.len() {
                    let images = Vec::new();
                    new.push(NewBlob { digest, size, images });
                }
                new[position].images.push(request.reference.clone());
            }
        }
        self.totals.blobs += new.len();
        self.totals.bytes += new.iter().map(|blob| blob.size).sum::<u64>();
        new
    }

    /// The blobs that the output does not have.
    async fn missing(&mut self, new: Vec<NewBlob>) -> Result<Vec<NewBlob>, ExportError> {
        let (output, cancel) = (Arc::clone(&self.source.output), self.source.cancel.clone());
        let (present, missing) = run_blocking(move || {
            let (mut there, mut missing) = (Vec::new(), Vec::new());
            for blob in new {
                match output.blob(blob.digest)? {
                    Some(_) => there.push(blob),
                    None => missing.push(blob),
                }
            }
            let bytes: u64 = there.iter().map(|blob| blob.size).sum();
            if bytes >= ANNOUNCED {
                tracing::info!(
                    "verifying {} that are in `{}` already",
                    Size(bytes),
                    output.path().display()
                );
            }
            let mut present = Vec::new();
            for blob in there {
                match output.verify(blob.digest, blob.size, &cancel)? {
                    true => present.push(blob),
                    false => missing.push(blob),
                }
            }
            Ok((present, missing))
        })
        .await?;
        for blob in present {
            self.totals.present += blob.size;
            self.known.insert(blob.digest, None);
        }
        Ok(missing)
    }

    fn announce(&self, batch: &[(&ImageRequest, &ExportedImage)], missing: &[NewBlob]) {
        let observer = &self.source.observer;
        let mut bytes: HashMap<&Reference, u64> = HashMap::new();
        for blob in missing {
            if let Some(first) = blob.images.first() {
                *bytes.entry(first).or_default() += blob.size;
            }
        }
        for (request, _) in batch {
            let Some(requester) = request.requesters.first() else {
                continue;
            };
            observer.observe(Event::ImageListed {
                name: request.reference.to_string(),
                label: requester.label(&request.reference),
                requester: requester.kind(),
                bytes: bytes.get(&request.reference).copied().unwrap_or(0),
            });
        }
        observer.observe(Event::Planned {
            images: self.images,
            present: 0,
            bytes: self.totals.bytes - self.totals.present,
            bytes_from_media: 0,
        });
    }

    /// The blobs of an image that were not dealt with.
    fn unknown(&self, image: &ExportedImage) -> HashSet<Digest> {
        let blobs = image.image.layers.iter().map(|layer| layer.blob);
        blobs.filter(|blob| !self.known.contains_key(blob)).collect()
    }

    /// Reports the images whose blobs were all dealt with.
    fn finish_images(
        &self,
        waiting: &mut Vec<(&ImageRequest, HashSet<Digest>)>,
        state: ImagePhase,
        batch: &[(&ImageRequest, &ExportedImage)],
        failed: &mut BTreeMap<Reference, Reason>,
    ) {
        waiting.retain_mut(|(request, blobs)| {
            blobs.retain(|blob| !self.known.contains_key(blob));
            if !blobs.is_empty() {
                return true;
            }
            let image = batch
                .iter()
                .find(|(other, _)| other.reference == request.reference);
            let layers = image.iter().flat_map(|(_, image)| &image.image.layers);
            let mut reasons = layers.filter_map(|layer| self.known.get(&layer.blob)?.as_ref());
            let reason = reasons.next().cloned();
            self.source.observer.observe(Event::ImageDone {
                name: request.reference.to_string(),
                state: match reason {
                    Some(_) => ImagePhase::Failed,
                    None => state,
                },
                reason: reason.as_ref().map(|reason| reason.message.clone()),
            });
            if let Some(reason) = reason {
                failed.insert(request.reference.clone(), reason);
            }
            false
        });
    }
}

fn largest(blobs: &[NewBlob]) -> Option<(Digest, u64)> {
    let sizes = blobs.iter().map(|blob| (blob.digest, blob.size));
    sizes.max_by_key(|(_, size)| *size)
}

/// Downloads a blob and moves it into the output.
async fn store(blob: NewBlob, source: &ImageSource) -> Result<(), ExportError> {
    let verified = source.fetch(blob.digest, blob.size, blob.images).await?;
    let (output, cancel) = (Arc::clone(&source.output), source.cancel.clone());
    run_blocking(move || Ok(output.put_blob(verified, &cancel)?)).await
}
