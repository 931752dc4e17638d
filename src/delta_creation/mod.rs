//! Creates deltas from one release to the next, on the hub: `delta create`.
//!
//! ```text
//! --from ─┐                                                                          release_images, payload_layers
//! --to ───┴─resolve→ ReleaseImages ─pair_images→ ImagePair*                          image_pairs, predecessor
//!                                                   │ what an earlier run published is left out
//!                                                   ↓
//!    blobs ─fetch, decompress→ plain tars ─diff_layer→ deltas of a layer             tar_cache, source_files, layer_deltas
//!                                                   ↓ of all layers of an image
//!                            artifacts, index ─→ Destination                         publication, destination
//! ```
//!
//! No step needs root or a store. The work directory has:
//!
//! ```text
//! WORK-DIR/spool    blobs, also partial ones, as a run's spool
//! WORK-DIR/tars     plain tars, named by diffID
//! WORK-DIR/deltas   finished deltas until they are published; scratch files
//! ```
//!
//! After a kill at any moment, a later run creates only the images again that were not published.

mod blocking;
mod config;
mod creation_report;
mod destination;
mod error;
mod image_pairs;
mod index_job;
mod layer_deltas;
pub mod layer_diff;
mod named_image;
mod payload_layers;
mod predecessor;
mod publication;
mod release_images;
mod source_files;
mod tar_cache;
mod wanted_entries;

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::cancel::Cancel;
use crate::fetch::Fetcher;
use crate::oci::{Descriptor, Digest};
use crate::oci_layout::OciLayout;
use crate::registry::{Registries, RegistryError};
use crate::report::Observer;
use crate::spool::Spool;
use crate::work_directory;

pub use config::{CreationConfig, Target};
pub use creation_report::{
    CreationReport, CreationTotals, ImageOutcome, ImageState, IndexReport, SourceImage, SourceReason,
};
pub use destination::{Destination, DestinationError};
pub use error::CreationError;

use image_pairs::pair_images;
use index_job::IndexJob;
use layer_deltas::LayerDeltas;
use named_image::NamedImage;
use publication::Publication;
use release_images::{ReleaseImages, Resolver};
use tar_cache::{TarCache, remove};
use wanted_entries::WantedEntries;

/// Hexadecimal digits of each digest in a tag.
const TAG_DIGITS: usize = 12;

/// Creates the deltas that `config` describes.
///
/// # Errors
/// For an error that affects more than single images. Images that were published before it stay published.
pub async fn run(
    config: CreationConfig,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<CreationReport, CreationError> {
    let began = Instant::now();
    let directory = |name| work_directory::create(config.work_dir.join(name));
    work_directory::create(config.work_dir.clone())?;
    let spool = Spool::open(&directory("spool")?)?;
    let (tars, deltas) = (directory("tars")?, directory("deltas")?);
    empty(&deltas)?;
    let registries = Arc::new(Registries::new(config.registries, Arc::clone(observer))?);
    let fetcher = Fetcher::new(
        Arc::clone(&registries),
        spool.clone(),
        Arc::clone(observer),
        config.max_downloads,
    );
    let tars = TarCache::new(tars, fetcher, spool, cancel.clone());
    let destination = match &config.target {
        Target::Repository(repository) => Destination::Registry(registries.upload(repository)?),
        Target::Layout(path) => Destination::Layout(OciLayout::open(path).map_err(DestinationError::from)?),
    };
    let resolver = Resolver::new(&registries, &config.platform, cancel);
    let mut jobs = Vec::new();
    if let Some(to) = &config.to {
        let new = resolver.release(to, &tars).await?;
        for from in &config.from {
            let old = resolver.release(from, &tars).await?;
            jobs.push(release_job(&old, &new)?);
        }
    }
    for (old, new) in &config.images {
        let (old, new) = (resolver.image(old).await?, resolver.image(new).await?);
        jobs.push(image_job(old, new)?);
    }
    // A release may be named twice, once perhaps by a tag.
    let mut tags = HashSet::new();
    jobs.retain(|job: &IndexJob| tags.insert(job.tag.clone()));
    let mut prepared = Vec::new();
    for mut job in jobs {
        let (references, tag) = (&job.references, job.tag.clone());
        let wanted = WantedEntries::new(&job.pairing.pairs, job.unresolved.is_empty());
        let publication =
            Publication::open(&destination, references, tag, job.subject.clone(), wanted, cancel).await?;
        let present = job.skip_present(&publication).await;
        job.expect(&tars);
        prepared.push((job, publication, present));
    }
    tars.remove_others()?;
    let threads = config.jobs.get();
    let needs = prepared.iter().map(|(job, ..)| job.disk_needed(threads, &tars));
    check_space(&config.work_dir, needs.max().unwrap_or(0))?;
    let deltas = LayerDeltas::new(config.memory, threads, &tars, deltas, cancel);
    let mut reports = Vec::new();
    for (job, publication, present) in prepared {
        reports.push(job.run(threads, &deltas, &tars, &publication, present).await?);
    }
    Ok(CreationReport::new(reports, began.elapsed()))
}

fn release_job(old: &ReleaseImages, new: &ReleaseImages) -> Result<IndexJob, CreationError> {
    let [from, to] = [old, new].map(|release| release.name.clone());
    let manifests = [old, new].map(|release| release.images[0].image.manifest.digest());
    if manifests[0] == manifests[1] {
        return Err(CreationError::Same { from, to });
    }
    let unresolved = old.unresolved.iter().chain(&new.unresolved).cloned();
    let unresolved: Vec<_> = unresolved.collect();
    Ok(IndexJob {
        tag: tag(manifests[0], manifests[1]),
        subject: subject(&new.images[0])?,
        pairing: pair_images(&old.images, &new.images, unresolved.is_empty()),
        unresolved,
        references: [old, new].map(|release| release.images[0].reference.clone()),
        from,
        to,
    })
}

fn image_job(old: NamedImage, new: NamedImage) -> Result<IndexJob, CreationError> {
    let (from, to) = (old.reference.to_string(), new.reference.to_string());
    let manifests = [&old, &new].map(|image| image.image.manifest.digest());
    if manifests[0] == manifests[1] {
        return Err(CreationError::Same { from, to });
    }
    let references = [&old, &new].map(|image| image.reference.clone());
    // They are a pair whatever their names are.
    let old = NamedImage {
        name: new.name.clone(),
        ..old
    };
    Ok(IndexJob {
        tag: tag(manifests[0], manifests[1]),
        subject: subject(&new)?,
        pairing: pair_images(&[old], &[new], true),
        unresolved: Vec::new(),
        references,
        from,
        to,
    })
}

fn subject(image: &NamedImage) -> Result<Descriptor, CreationError> {
    let described = Descriptor::of_manifest(&image.image.manifest);
    described.map_err(|source| {
        let reference = image.reference.to_string();
        RegistryError::Manifest { reference, source }.into()
    })
}

/// The tag of the index from one image to another.
fn tag(from: Digest, to: Digest) -> String {
    let [from, to] = [from, to].map(|digest| digest.hex()[..TAG_DIGITS].to_owned());
    format!("delta-{from}-{to}")
}

/// Removes what an earlier run left in a directory.
fn empty(dir: &Path) -> Result<(), CreationError> {
    let entries = fs::read_dir(dir).map_err(CreationError::host("read", dir))?;
    for entry in entries.flatten() {
        remove(&entry.path());
    }
    Ok(())
}

fn check_space(path: &Path, needed: u64) -> Result<(), CreationError> {
    let space = rustix::fs::statvfs(path);
    let space = space.map_err(|error| CreationError::host("read the free space of", path)(error.into()))?;
    let available = space.f_bavail.saturating_mul(space.f_frsize);
    match needed <= available {
        true => Ok(()),
        false => Err(CreationError::Space {
            path: path.to_owned(),
            needed,
            available,
        }),
    }
}
