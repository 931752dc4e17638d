//! Makes the deltas of layers, within the memory and the CPUs of the creation.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Semaphore};

use super::blocking::{acquire, run_blocking};
use super::error::CreationError;
use super::image_pairs::ImagePair;
use super::layer_diff::{DiffParams, LayerDiff, LayerPlan, MadeDelta, Variant, diff_layer};
use super::named_image::NamedImage;
use super::source_files::{SourceFiles, SourceReader};
use super::tar_cache::{TarCache, remove};
use crate::cancel::Cancel;
use crate::delta::{LayerDelta, is_worthwhile};
use crate::oci::Layer;

/// Memory is shared out in this unit.
const MIB: u64 = 1 << 20;

/// Makes deltas.
pub(super) struct LayerDeltas<'a> {
    cancel: &'a Cancel,
    tars: &'a TarCache,
    /// Bytes of memory for all layers together.
    max_memory: u64,
    /// For deltas until they are published, and for scratch files.
    dir: PathBuf,
    memory: Semaphore,
    cpus: Semaphore,
}

/// The files of the old images, once they are read; shared by all layers of an image.
///
/// They hold the tars open, which take disk space until they are closed.
#[derive(Default)]
pub(super) struct SharedSources(Mutex<Option<SourceFiles>>);

/// The deltas of one layer.
#[derive(Debug)]
pub(super) struct LayerOutcome {
    pub(super) layer: Layer,
    /// Those that are worthwhile; at most one for each variant.
    pub(super) deltas: Vec<DeltaFile>,
    /// Why there is none.
    pub(super) why_not: Option<String>,
    pub(super) elapsed: Duration,
}

/// A delta in the work directory.
#[derive(Debug)]
pub(super) struct DeltaFile {
    pub(super) delta: LayerDelta,
    pub(super) path: PathBuf,
    pub(super) variant: Variant,
}

impl<'a> LayerDeltas<'a> {
    /// Makes at most `jobs` deltas at a time in the directory `dir`, which exists.
    pub(super) fn new(
        max_memory: u64,
        jobs: usize,
        tars: &'a TarCache,
        dir: PathBuf,
        cancel: &'a Cancel,
    ) -> Self {
        Self {
            memory: Semaphore::new(permits(max_memory) as usize),
            cpus: Semaphore::new(jobs),
            max_memory,
            cancel,
            tars,
            dir,
        }
    }

    /// The deltas of one layer of a pair.
    pub(super) async fn of_layer(
        &self,
        pair: &ImagePair,
        old: &NamedImage,
        sources: &SharedSources,
        layer: &Layer,
    ) -> Result<LayerOutcome, CreationError> {
        let sources = self.sources(pair, old, sources).await?;
        let files = self
            .tars
            .files(layer, std::slice::from_ref(&pair.new.reference))
            .await?;
        let tar_size = files.tar_size();
        let began = Instant::now();
        let plan = {
            let _cpu = acquire(&self.cpus, 1, self.cancel).await?;
            let cancel = self.cancel.clone();
            run_blocking(move || Ok(LayerPlan::new(files, sources.files, &cancel)?)).await?
        };
        let memory = plan.memory_needed().min(self.max_memory);
        let _memory = acquire(&self.memory, permits(memory), self.cancel).await?;
        let _cpu = acquire(&self.cpus, 1, self.cancel).await?;
        let paths = Variant::ALL.map(|variant| self.path(layer, variant));
        let (outputs, cancel) = (paths.clone(), self.cancel.clone());
        let diff = run_blocking(move || {
            let [standard, inflated, further] = outputs.map(|path| {
                let options = File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(&path);
                options.map_err(CreationError::host("create", &path))
            });
            let params = DiffParams {
                memory,
                ..DiffParams::default()
            };
            let outputs = [&standard?, &inflated?, &further?];
            Ok(diff_layer(&plan, params, outputs, &cancel)?)
        });
        let LayerDiff {
            standard,
            inflated,
            further,
        } = diff.await?;
        let made = [Some(standard), inflated, further];
        let smallest = made.iter().flatten().map(|made| made.size).min();
        let smallest = smallest.unwrap_or_default();
        let mut deltas = Vec::new();
        for ((variant, made), path) in Variant::ALL.into_iter().zip(made).zip(paths) {
            match made.filter(|made| is_worthwhile(made.size, layer.size)) {
                Some(MadeDelta { digest, size }) => deltas.push(DeltaFile {
                    variant,
                    delta: LayerDelta {
                        blob: digest,
                        size,
                        format: variant.format(),
                        target: layer.blob,
                        tar_size: Some(tar_size),
                    },
                    path,
                }),
                None => remove(&path),
            }
        }
        let why_not = || format!("the delta has {smallest} of {} bytes", layer.size);
        Ok(LayerOutcome {
            layer: layer.clone(),
            why_not: deltas.is_empty().then(why_not),
            deltas,
            elapsed: began.elapsed(),
        })
    }

    async fn sources(
        &self,
        pair: &ImagePair,
        old: &NamedImage,
        shared: &SharedSources,
    ) -> Result<SourceFiles, CreationError> {
        let mut sources = shared.0.lock().await;
        let read = match sources.take() {
            Some(read) => read,
            None => self.reader().read(pair, old).await?,
        };
        Ok(sources.insert(read).clone())
    }

    /// Closes the files of the old images of a pair. Returns the further image, if there is one.
    pub(super) async fn close(&self, pair: &ImagePair, sources: &SharedSources) -> Option<NamedImage> {
        let further = sources.0.lock().await.take()?.further?;
        self.reader().release(pair, &further);
        Some(further)
    }

    fn reader(&self) -> SourceReader<'_> {
        SourceReader {
            tars: self.tars,
            dir: &self.dir,
            cpus: &self.cpus,
            cancel: self.cancel,
        }
    }

    fn path(&self, layer: &Layer, variant: Variant) -> PathBuf {
        let suffix = match variant {
            Variant::Standard => "tardf1",
            Variant::Inflated => "itrdf1",
            Variant::Further => "further.itrdf1",
        };
        self.dir.join(format!("{}.{suffix}", layer.diff_id().0.hex()))
    }
}

impl LayerOutcome {
    /// Bytes that a node downloads.
    pub(super) fn smallest(&self) -> u64 {
        let sizes = self.deltas.iter().map(|file| file.delta.size);
        sizes.min().unwrap_or(self.layer.size)
    }

    /// Bytes that a node downloads that knows only deltas for every program.
    pub(super) fn standard(&self) -> u64 {
        let standard = self.delta(Variant::Standard);
        standard.map_or(self.layer.size, |file| file.delta.size)
    }

    /// The worthwhile delta of this variant.
    pub(super) fn delta(&self, variant: Variant) -> Option<&DeltaFile> {
        self.deltas.iter().find(|file| file.variant == variant)
    }
}

fn permits(memory: u64) -> u32 {
    u32::try_from(memory.div_ceil(MIB))
        .unwrap_or(u32::MAX)
        .clamp(1, u32::MAX >> 3)
}
