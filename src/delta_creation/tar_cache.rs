//! Keeps the plain tars of layers in the work directory as long as a delta needs them.
//!
//! ```text
//! blob ─Fetcher→ spool/sha256:<hex> ─decompress→ tars/<hex of the diffID>.tar.partial ─rename→ .tar ─→ LayerFiles
//! ```
//!
//! A tar that a killed run left is read again in full before it is used: its digest has to be the diffID.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use super::blocking::run_blocking;
use super::error::CreationError;
use super::layer_diff::LayerFiles;
use crate::cancel::Cancel;
use crate::fetch::{BlobRequest, Fetcher};
use crate::oci::{DiffId, Layer, Reference};
use crate::spool::{Spool, VerifiedBlob};
use crate::store::unpack::{UnpackLimits, decompress};
use crate::write_back;

/// The connections that are reserved for a large blob.
const CONNECTIONS: usize = 2;

/// The plain tars of layers.
pub(super) struct TarCache {
    dir: PathBuf,
    fetcher: Fetcher,
    spool: Spool,
    cancel: Cancel,
    tars: Mutex<HashMap<DiffId, CachedTar>>,
}

#[derive(Default)]
struct CachedTar {
    /// How many deltas still need it.
    uses: usize,
    files: Arc<OnceCell<Arc<LayerFiles>>>,
}

impl TarCache {
    /// A cache in the directory `dir`, which exists; blobs are in the spool of the fetcher.
    pub(super) fn new(dir: PathBuf, fetcher: Fetcher, spool: Spool, cancel: Cancel) -> Self {
        let tars = Mutex::default();
        Self {
            dir,
            fetcher,
            spool,
            cancel,
            tars,
        }
    }

    /// Announces one more use of a layer.
    pub(super) fn expect(&self, diff_id: DiffId) {
        self.tars().entry(diff_id).or_default().uses += 1;
    }

    /// Ends one use of a layer; after the last one its tar is removed.
    pub(super) fn release(&self, diff_id: DiffId) {
        let mut tars = self.tars();
        let Some(tar) = tars.get_mut(&diff_id) else {
            return;
        };
        tar.uses = tar.uses.saturating_sub(1);
        if tar.uses == 0 {
            tars.remove(&diff_id);
            remove(&self.path(diff_id));
        }
    }

    /// Removes the files of earlier runs that no delta needs now.
    pub(super) fn remove_others(&self) -> Result<(), CreationError> {
        let wanted: Vec<PathBuf> = self.tars().keys().map(|diff_id| self.path(*diff_id)).collect();
        let entries = fs::read_dir(&self.dir).map_err(CreationError::host("read", &self.dir))?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if !wanted.contains(&path) {
                remove(&path);
            }
        }
        Ok(())
    }

    /// Whether a layer has to be downloaded.
    pub(super) fn is_missing(&self, diff_id: DiffId) -> bool {
        !self.path(diff_id).exists()
    }

    /// The files of a layer. Downloads its blob unless its tar is present. `images` have the blob.
    pub(super) async fn files(
        &self,
        layer: &Layer,
        images: &[Reference],
    ) -> Result<Arc<LayerFiles>, CreationError> {
        let cell = Arc::clone(&self.tars().entry(layer.diff_id()).or_default().files);
        let files = cell.get_or_try_init(|| self.prepare(layer, images)).await?;
        Ok(Arc::clone(files))
    }

    async fn prepare(&self, layer: &Layer, images: &[Reference]) -> Result<Arc<LayerFiles>, CreationError> {
        let (path, diff_id) = (self.path(layer.diff_id()), layer.diff_id());
        if let Some(files) = self.left_over(&path, diff_id).await? {
            // The run may have been killed before it removed the blob.
            self.spool.remove(&layer.blob)?;
            return Ok(Arc::new(files));
        }
        let blob = self.fetch(layer, images).await?;
        let (digest, cancel) = (blob.digest(), self.cancel.clone());
        let files = run_blocking(move || {
            write_tar(&blob, &path, &cancel)?;
            let files = LayerFiles::read(&path, &cancel)?;
            if files.diff_id() != diff_id {
                remove(&path);
                return Err(CreationError::DiffId {
                    blob: digest,
                    found: files.diff_id(),
                    expected: diff_id,
                });
            }
            blob.remove()?;
            Ok(files)
        });
        Ok(Arc::new(files.await?))
    }

    /// Downloads a layer's blob, which stays in the spool.
    pub(super) async fn fetch(
        &self,
        layer: &Layer,
        images: &[Reference],
    ) -> Result<VerifiedBlob, CreationError> {
        let request = BlobRequest {
            digest: layer.blob,
            size: layer.size,
            images: images.to_vec(),
            connections: CONNECTIONS,
            is_optional: false,
            is_on_medium: false,
        };
        Ok(self.fetcher.fetch(request, &self.cancel).await?)
    }

    /// The tar of an earlier run, if it is undamaged.
    async fn left_over(&self, path: &Path, diff_id: DiffId) -> Result<Option<LayerFiles>, CreationError> {
        if !path.exists() {
            return Ok(None);
        }
        let (path, cancel) = (path.to_owned(), self.cancel.clone());
        run_blocking(move || {
            let files = LayerFiles::read(&path, &cancel);
            cancel.check()?;
            let files = files.ok().filter(|files| files.diff_id() == diff_id);
            if files.is_none() {
                remove(&path);
            }
            Ok(files)
        })
        .await
    }

    fn path(&self, diff_id: DiffId) -> PathBuf {
        self.dir.join(format!("{}.tar", diff_id.0.hex()))
    }

    fn tars(&self) -> MutexGuard<'_, HashMap<DiffId, CachedTar>> {
        self.tars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_tar(blob: &VerifiedBlob, path: &Path, cancel: &Cancel) -> Result<(), CreationError> {
    let partial = path.with_extension("tar.partial");
    let source = blob.open()?;
    let tar = File::create(&partial).map_err(CreationError::host("create", &partial))?;
    let limits = UnpackLimits::for_blob(blob.size());
    let written = decompress(&source, BufWriter::new(&tar), limits, cancel);
    if let Err(source) = written {
        remove(&partial);
        return Err(CreationError::Layer {
            blob: blob.digest(),
            source,
        });
    }
    write_back::forget(&source);
    fs::rename(&partial, path).map_err(CreationError::host("rename", &partial))
}

/// Removes a file of the work directory. One that stays is removed by a later run.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!("cannot remove `{}`: {error}", path.display());
    }
}
