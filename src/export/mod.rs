//! Exports what a version spec needs as an OCI layout, for nodes without a network: `export`.
//!
//! ```text
//! VersionSpec ─ImageSet→ ImageRequest* ─ImageSource→ ExportedImage*             image_set, image_files, image_nodes,
//!                                                       │ manifests, configs,   image_source
//!                                                       │ signatures ─→ Output
//!       --since ─KnownRelease→ blobs to leave out ──────┤                       known_release
//!                                                       ↓
//!                              Transfer: blobs ─fetch→ spool ─→ Output          transfer, output
//!                                                       ↓
//!                          index.json, version-spec.yaml, spoke-precache.json   export_document
//! ```
//!
//! No step needs root or a store. A blob is received in the spool of the work directory, and then moved into the output, or
//! copied if that is on another file system. So nothing is stored twice on the medium, and a file there is complete or absent.
//! After a kill at any moment, a later run continues: blobs of the output count after their digest is verified, and partial
//! ones are continued in the spool.
//!
//! Images whose registry does not answer delay no others: the others are stored meanwhile.

mod blocking;
mod config;
mod error;
mod export_document;
mod export_report;
mod image_files;
mod image_nodes;
mod image_set;
mod image_source;
mod known_release;
mod output;
mod transfer;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::cancel::Cancel;
use crate::fetch::Fetcher;
use crate::image_request::ImageRequest;
use crate::oci::{Descriptor, Digest, Reference};
use crate::registry::Registries;
use crate::report::{Event, ImagePhase, Observer};
use crate::spec::Excludes;
use crate::spool::Spool;
use crate::work_directory;

pub use config::ExportConfig;
pub use error::ExportError;
pub use export_report::{ExportReport, ExportState, ExportTotals, ExportedImageReport};
pub use output::OutputError;

use blocking::run_blocking;
use export_document::{ExportDocument, pinned_spec};
use image_files::ImageFiles;
use image_set::{ImageSet, Reason};
use image_source::{ExportedImage, ImageSource};
use known_release::KnownRelease;
use output::{Documents, Output};
use transfer::{Transfer, TransferTotals};

/// How many images are resolved at the same time.
const RESOLVES: usize = 32;

/// How long the resolved images wait for the others before their blobs are downloaded.
const PATIENCE: Duration = Duration::from_secs(20);

/// The images that were resolved, and why others were not.
#[derive(Default)]
struct Images {
    resolved: BTreeMap<Reference, ExportedImage>,
    failed: BTreeMap<Reference, Reason>,
}

/// Exports what `config` describes.
///
/// # Errors
/// For an error that affects more than single images. What was stored before it is kept for a later run.
pub async fn run(
    config: ExportConfig,
    observer: &Arc<dyn Observer>,
    cancel: &Cancel,
) -> Result<ExportReport, ExportError> {
    let began = Instant::now();
    for message in &config.warnings {
        let message = message.clone();
        observer.observe(Event::Warned { message });
    }
    let excludes = Arc::new(Excludes::new(&config.spec.exclude_patterns)?);
    let work_dir = work_directory::create(config.work_dir.clone())?;
    let spool = Spool::open(&work_dir.join("spool"))?;
    ImageFiles::remove_leftovers(&work_dir)?;
    let path = config.output.clone();
    let output = Arc::new(run_blocking(move || Ok(Output::open(&path)?)).await?);
    let registries = Arc::new(Registries::new(config.registries.clone(), Arc::clone(observer))?);
    let fetcher = Fetcher::new(
        Arc::clone(&registries),
        spool.clone(),
        Arc::clone(observer),
        config.max_downloads,
    );
    let source = Arc::new(ImageSource {
        registries,
        fetcher,
        output: Arc::clone(&output),
        platform: config.platform.clone(),
        work_dir,
        observer: Arc::clone(observer),
        cancel: cancel.clone(),
        silent: Mutex::default(),
    });
    let since = match &config.since {
        Some(release) => Some(KnownRelease::read(release, &excludes, &source).await?),
        None => None,
    };
    let mut set = ImageSet::read(&config.spec, &excludes, &config.signature_stores, &source).await?;
    let nothing = HashSet::new();
    let left_out = since.as_ref().map_or(&nothing, |since| &since.blobs);
    let mut transfer = Transfer::new(&source, 2 * config.max_downloads.get(), left_out);
    let images = export(&mut set, &source, &mut transfer).await?;
    let totals = transfer.totals;
    let is_complete = images.failed.is_empty() && set.operator_failures.is_empty();
    let documents = documents(&config, is_complete, &set, since.as_ref(), &images);
    run_blocking(move || Ok(output.finish(&documents)?)).await?;
    if is_complete {
        for entry in spool.list()? {
            spool.remove(&entry.digest)?;
        }
    }
    let report = report(&config, is_complete, &set, since.as_ref(), &images, totals);
    Ok(ExportReport {
        totals: ExportTotals {
            bytes_received: source.fetcher.received(),
            seconds: began.elapsed().as_secs_f64(),
            ..report.totals
        },
        ..report
    })
}

/// Resolves every image, and stores its blobs.
async fn export(
    set: &mut ImageSet,
    source: &Arc<ImageSource>,
    transfer: &mut Transfer<'_>,
) -> Result<Images, ExportError> {
    let mut images = Images {
        resolved: std::mem::take(&mut set.resolved),
        failed: std::mem::take(&mut set.failed),
    };
    for (reference, reason) in &images.failed {
        report_failure(reference, reason, source);
    }
    let requests: BTreeMap<&Reference, &ImageRequest> = set
        .requests
        .iter()
        .map(|request| (&request.reference, request))
        .collect();
    let permits = Arc::new(Semaphore::new(RESOLVES));
    let mut tasks = JoinSet::new();
    for request in &set.requests {
        let reference = request.reference.clone();
        if images.resolved.contains_key(&reference) || images.failed.contains_key(&reference) {
            continue;
        }
        let (source, permits) = (Arc::clone(source), Arc::clone(&permits));
        tasks.spawn(async move {
            let _permit = permits.acquire_owned().await;
            let image = source.image(&reference).await;
            (reference, image)
        });
    }
    let mut batch: Vec<Reference> = images.resolved.keys().cloned().collect();
    loop {
        let next = tokio::time::timeout(PATIENCE, tasks.join_next()).await;
        match next {
            Ok(Some(Ok((reference, Ok(image))))) => {
                images.resolved.insert(reference.clone(), image);
                batch.push(reference);
                continue;
            }
            Ok(Some(Ok((_, Err(error))))) if error.is_fatal() => return Err(error),
            Ok(Some(Ok((reference, Err(error))))) => {
                let reason = Reason::from(&error);
                report_failure(&reference, &reason, source);
                images.failed.insert(reference, reason);
                continue;
            }
            Ok(Some(Err(panic))) => return Err(ExportError::Panicked(panic.to_string())),
            // All are resolved, or the others take long.
            Ok(None) | Err(_) => {}
        }
        let is_last = matches!(next, Ok(None));
        // In the order of the requests, so that the release is complete first.
        let wanted: HashSet<&Reference> = batch.iter().collect();
        let ordered: Vec<_> = set
            .requests
            .iter()
            .filter(|request| wanted.contains(&request.reference))
            .filter_map(|request| {
                let image = images.resolved.get(&request.reference)?;
                Some((*requests.get(&request.reference)?, image))
            })
            .collect();
        if !ordered.is_empty() {
            let failed = transfer.run(&ordered).await?;
            images.failed.extend(failed);
        }
        batch.clear();
        if is_last {
            return Ok(images);
        }
    }
}

fn report_failure(reference: &Reference, reason: &Reason, source: &ImageSource) {
    source.observer.observe(Event::ImageDone {
        name: reference.to_string(),
        state: ImagePhase::Failed,
        reason: Some(reason.message.clone()),
    });
}

/// The images that are in the output as a whole, in the order of the requests.
fn complete<'i>(
    set: &'i ImageSet,
    images: &'i Images,
) -> impl Iterator<Item = (&'i Reference, &'i ExportedImage)> {
    let references = set.requests.iter().map(|request| &request.reference);
    references
        .filter(|reference| !images.failed.contains_key(reference))
        .filter_map(|reference| Some((reference, images.resolved.get(reference)?)))
}

fn documents(
    config: &ExportConfig,
    is_complete: bool,
    set: &ImageSet,
    since: Option<&KnownRelease>,
    images: &Images,
) -> Documents {
    let (mut tags, mut digests) = (Vec::new(), Vec::new());
    for (reference, image) in complete(set, images) {
        let top = image.top();
        digests.push((reference.clone(), top.digest()));
        // The image was resolved, so its manifest has a media type.
        if let Ok(descriptor) = Descriptor::of_manifest(top) {
            tags.push((reference.to_string(), descriptor));
        }
        tags.extend(image.attachments.clone());
    }
    let document = ExportDocument::new(&config.platform, is_complete, set, since, &digests);
    Documents {
        tags,
        spec: pinned_spec(&config.spec, &digests),
        export: document.json(),
    }
}

fn report(
    config: &ExportConfig,
    is_complete: bool,
    set: &ImageSet,
    since: Option<&KnownRelease>,
    images: &Images,
    totals: TransferTotals,
) -> ExportReport {
    let digest = |reference: &Reference| -> Option<Digest> {
        let image = images.resolved.get(reference)?;
        Some(image.top().digest())
    };
    let rows = set.requests.iter().map(|request| {
        let reference = &request.reference;
        let reason = images.failed.get(reference);
        let label = request
            .requesters
            .first()
            .map(|requester| requester.label(reference));
        ExportedImageReport {
            name: label.map(|label| label.to_string()).unwrap_or_default(),
            reference: reference.to_string(),
            digest: digest(reference),
            state: match reason {
                Some(_) => ExportState::Failed,
                None => ExportState::Exported,
            },
            reason: reason.map(|reason| reason.message.clone()),
        }
    });
    let failures = images.failed.values().map(|reason| reason.failure);
    let (api_version, kind) = ExportReport::KIND;
    ExportReport {
        api_version,
        kind,
        output: config.output.display().to_string(),
        is_complete,
        release: set.release.as_ref().map(|release| release.version.clone()),
        since: since.map(|since| since.version.clone()),
        images: rows.collect(),
        operators: set.operators.clone(),
        totals: ExportTotals {
            exported: set.requests.len() - images.failed.len(),
            failed: images.failed.len(),
            excluded: set.release.as_ref().map_or(0, |release| release.excluded),
            blobs: totals.blobs,
            bytes: totals.bytes,
            bytes_present: totals.present,
            bytes_left_out: totals.left_out,
            ..ExportTotals::default()
        },
        failures: failures.chain(set.operator_failures.iter().copied()).collect(),
    }
}
