//! Finds out how long the tars in blobs are, for an exact estimate of the space: reads a few bytes of each blob from the
//! spool, a medium or its registry.
//!
//! Only the estimate depends on it, so an error here is not a failure: the length is guessed instead. Each blob is probed
//! once in a run, the largest first because they matter most. Each registry gets one probe before the others, so that a
//! registry without range requests, which starts to send the whole blob, does so once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use futures::{FutureExt as _, future};
use tokio::time::Instant;

use super::config::JobConfig;
use super::error::JobError;
use super::namers::RoundScope;
use super::snapshot::Snapshot;
use super::{Mode, run_blocking, space};
use crate::cancel::Cancel;
use crate::media::MediumBlob;
use crate::oci::{Digest, Layer, Reference};
use crate::plan::{LayerTask, Plan, PlannedImage, TarLength, tar_length, tar_length_range};
use crate::registry::Registries;
use crate::spool::Spool;

/// Probes of one registry at the same time; as many connections are open already, from resolving manifests.
const CONCURRENCY: usize = 32;

/// A registry is not probed again after so many failures.
const MAX_FAILURES: u32 = 3;

/// How long `plan` may wait for its probes: 200 blobs take 1.1 s over a link with a round trip of 150 ms, and a release has
/// some 500, each perhaps behind a redirect.
const PLAN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a run may wait, for which this is lost time: some round trips of a slow link, in which the largest blobs are
/// probed.
const RUN_TIMEOUT: Duration = Duration::from_secs(3);

/// The lengths found so far.
pub(super) struct SizeProbe {
    registries: Arc<Registries>,
    spool: PathBuf,
    known: HashMap<Digest, TarLength>,
    probed: HashSet<Digest>,
}

/// The bytes to read of one blob.
#[derive(Clone)]
struct Probe {
    blob: Digest,
    size: u64,
    media_type: String,
    range: Range<u64>,
    /// An image that contains it.
    reference: Reference,
}

impl SizeProbe {
    pub(super) fn new(registries: Arc<Registries>, spool: PathBuf) -> Self {
        Self {
            registries,
            spool,
            known: HashMap::new(),
            probed: HashSet::new(),
        }
    }

    /// By the blob's digest.
    pub(super) fn known(&self) -> &HashMap<Digest, TarLength> {
        &self.known
    }

    /// Probes where it matters: for a plan that is shown, and where the exact size may decide whether a run fits. Returns
    /// whether lengths may have been found.
    pub(super) async fn probe_if_needed(
        &mut self,
        config: &JobConfig,
        mode: Mode,
        scope: RoundScope,
        plan: &Plan,
        snapshot: &Snapshot,
        cancel: &Cancel,
    ) -> Result<bool, JobError> {
        if mode == Mode::Verify || plan.totals.unpacked_guessed == 0 {
            return Ok(false);
        }
        let timeout = match (mode, scope) {
            (Mode::Plan, RoundScope::Everything) => PLAN_TIMEOUT,
            _ if space::fits_for_certain(config, mode, scope, plan, snapshot)? => return Ok(false),
            _ => RUN_TIMEOUT,
        };
        self.probe(plan, timeout, cancel).await?;
        cancel.check()?;
        Ok(true)
    }

    /// Probes those blobs of `plan` that were not probed before. Lengths that do not arrive within `timeout` stay unknown.
    async fn probe(&mut self, plan: &Plan, timeout: Duration, cancel: &Cancel) -> Result<(), JobError> {
        let end = Instant::now() + timeout;
        let probes = self.probes(plan);
        let spool = self.spool.clone();
        let (spooled, remote) = run_blocking(move || {
            let mut spooled = Vec::new();
            let remote = probes.into_iter().filter(|probe| {
                let bytes = Spool::peek(&spool, &probe.blob, probe.range.clone());
                let is_spooled = bytes.is_some();
                spooled.extend(bytes.map(|bytes| (probe.clone(), bytes)));
                !is_spooled
            });
            let remote: Vec<Probe> = remote.collect();
            Ok((spooled, remote))
        })
        .await?;
        for (probe, bytes) in spooled {
            self.record(&probe, &bytes);
        }
        let remote = self.probe_media(remote, end).await;
        let mut by_registry: BTreeMap<String, Vec<Probe>> = BTreeMap::new();
        for probe in remote {
            let domain = probe.reference.domain().to_owned();
            by_registry.entry(domain).or_default().push(probe);
        }
        let registries = Arc::clone(&self.registries);
        let results = by_registry
            .into_values()
            .map(|probes| probe_registry(&registries, probes, cancel).boxed());
        let mut results = stream::select_all(results);
        while let Ok(Some((probe, bytes))) = tokio::time::timeout_at(end, results.next()).await {
            self.record(&probe, &bytes);
        }
        Ok(())
    }

    /// Reads from media until `end`. Returns the probes of blobs that no medium has.
    async fn probe_media(&mut self, probes: Vec<Probe>, end: Instant) -> Vec<Probe> {
        if self.registries.media().is_empty() {
            return probes;
        }
        let read = self.registries.in_media(move |media| {
            let (mut read, mut remote) = (Vec::new(), Vec::new());
            for probe in probes {
                let blobs = media.blobs(probe.blob);
                match blobs.iter().find(|blob| blob.size() == probe.size) {
                    None => remote.push(probe),
                    Some(blob) if Instant::now() < end => match bytes_of(blob, &probe.range) {
                        Ok(bytes) => read.push((probe, bytes)),
                        Err(error) => tracing::debug!("the length of a tar is guessed: {error}"),
                    },
                    Some(_) => {}
                }
            }
            (read, remote)
        });
        let (read, remote) = read.await;
        for (probe, bytes) in read {
            self.record(&probe, &bytes);
        }
        remote
    }

    fn record(&mut self, probe: &Probe, bytes: &[u8]) {
        match tar_length(&probe.media_type, probe.size, bytes) {
            Some(length) => {
                self.known.insert(probe.blob, length);
            }
            None => tracing::debug!("`{}` does not state the length of its tar", probe.blob),
        }
    }

    /// The whole blob of every layer whose length is guessed, also of one that is made from a delta; the largest first.
    fn probes(&mut self, plan: &Plan) -> Vec<Probe> {
        let probe = |task: &LayerTask| {
            let Layer {
                blob,
                size,
                media_type,
                ..
            } = &task.layer;
            // Another image of the layer may list another blob for it.
            let lists_blob = |image: &&PlannedImage| image.lists(blob);
            let mut images = plan.images.iter();
            Some(Probe {
                blob: *blob,
                size: *size,
                media_type: media_type.clone(),
                range: tar_length_range(media_type, *size)?,
                reference: images.find(lists_blob)?.reference.clone(),
            })
        };
        // The guess for a tar on a medium is its length there, so no registry is asked.
        let is_probed = |task: &&LayerTask| {
            let is_on_medium = task.sources.first().is_some_and(|it| it.medium_tar().is_some());
            matches!(task.tar, TarLength::Guessed(_)) && !is_on_medium
        };
        let guessed = plan.layers.iter().filter(is_probed);
        let probes = guessed.filter_map(probe);
        let mut probes: Vec<Probe> = probes.filter(|it| self.probed.insert(it.blob)).collect();
        probes.sort_by_key(|probe| std::cmp::Reverse(probe.size));
        probes
    }
}

/// The bytes of this range.
fn bytes_of(blob: &MediumBlob, range: &Range<u64>) -> io::Result<Vec<u8>> {
    let mut reader = blob.open()?;
    reader.seek(SeekFrom::Start(range.start))?;
    let mut bytes = Vec::new();
    reader.take(range.end - range.start).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Sends all probes of one registry.
fn probe_registry<'a>(
    registries: &'a Registries,
    probes: Vec<Probe>,
    cancel: &'a Cancel,
) -> impl Stream<Item = (Probe, Bytes)> + Send + 'a {
    let failures = Arc::new(AtomicU32::new(0));
    let send = move |probe| send(registries, probe, Arc::clone(&failures), cancel);
    let mut probes = stream::iter(probes).map(send);
    let first = async move {
        let result = match probes.next().await {
            Some(first) => first.await,
            None => None,
        };
        stream::iter(result).chain(probes.buffer_unordered(CONCURRENCY).filter_map(future::ready))
    };
    first.flatten_stream()
}

/// Asks one source after the other, once each.
async fn send(
    registries: &Registries,
    probe: Probe,
    failures: Arc<AtomicU32>,
    cancel: &Cancel,
) -> Option<(Probe, Bytes)> {
    if failures.load(Ordering::Relaxed) >= MAX_FAILURES {
        return None;
    }
    let Probe { blob, size, .. } = probe;
    for source in registries.sources(&probe.reference).ok()? {
        let bytes = registries.read_range(&source, blob, size, probe.range.clone(), cancel);
        match bytes.await {
            Ok(Some(bytes)) => return Some((probe, bytes)),
            Ok(None) => {
                tracing::debug!("`{}` does not support range requests", source.reference.domain());
                failures.store(MAX_FAILURES, Ordering::Relaxed);
                return None;
            }
            Err(error) => tracing::debug!("the length of a tar is guessed: {error}"),
        }
    }
    failures.fetch_add(1, Ordering::Relaxed);
    None
}
