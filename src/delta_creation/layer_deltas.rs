//! Makes the deltas of layers, within the memory and the CPUs of the creation.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Semaphore};

use super::blocking::{acquire, run_blocking};
use super::error::CreationError;
use super::image_pairs::ImagePair;
use super::layer_diff::{DiffParams, LayerPlan, MadeDelta, diff_layer};
use super::named_image::NamedImage;
use super::source_files::{FURTHER, SourceFiles, SourceReader};
use super::tar_cache::{TarCache, remove};
use crate::cancel::Cancel;
use crate::delta::{Format, LayerDelta, is_worthwhile};
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
    /// Those that are worthwhile; at most one for each format.
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
    /// Whether it reads files of the further image.
    pub(super) reads_further: bool,
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
        let [tar_diff, inflated] =
            [Format::TarDiff, Format::InflatedTarDiff].map(|format| self.path(layer, format));
        let (paths, cancel) = ([tar_diff.clone(), inflated.clone()], self.cancel.clone());
        let diff = run_blocking(move || {
            let [tar_diff, inflated] = paths.map(|path| {
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
            Ok(diff_layer(&plan, params, &tar_diff?, &inflated?, &cancel)?)
        });
        let diff = diff.await?;
        let mut deltas = Vec::new();
        let mut smallest = diff.tar_diff.size;
        for (format, made, path) in [
            (Format::TarDiff, Some(diff.tar_diff), tar_diff),
            (Format::InflatedTarDiff, diff.inflated, inflated),
        ] {
            smallest = made.as_ref().map_or(smallest, |made| made.size.min(smallest));
            match made.filter(|made| is_worthwhile(made.size, layer.size)) {
                Some(MadeDelta { digest, size, images }) => deltas.push(DeltaFile {
                    reads_further: images.contains(&FURTHER),
                    delta: LayerDelta {
                        blob: digest,
                        size,
                        format,
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

    fn path(&self, layer: &Layer, format: Format) -> PathBuf {
        let suffix = match format {
            Format::TarDiff => "tardf1",
            Format::InflatedTarDiff => "itrdf1",
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
        let mut files = self.deltas.iter();
        let standard = files.find(|file| file.delta.format == Format::TarDiff);
        standard.map_or(self.layer.size, |file| file.delta.size)
    }
}

fn permits(memory: u64) -> u32 {
    u32::try_from(memory.div_ceil(MIB))
        .unwrap_or(u32::MAX)
        .clamp(1, u32::MAX >> 3)
}
