//! Requests indexes and artifacts of deltas from registries, within bounds.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::stream::{self, StreamExt as _};
use tokio::time::Instant;

use super::local_sources::LocalSources;
use super::offer::Offer;
use crate::cancel::Cancel;
use crate::delta::artifact::{DELTA_INDEX, DeltaArtifact, DeltaIndex, FROM};
use crate::oci::{Digest, Reference};
use crate::registry::{Kind, Referrer, Registries, RegistryError};
use crate::report::{Printable, Span};

/// Requests at the same time, as for manifests of images.
pub(super) const CONCURRENCY: usize = 32;

/// How long a registry may take for one answer. Deltas save much more time than this.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take for an index: the index of a release has some hundred KiB, and links are slow.
const INDEX_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a run looks for deltas in total.
const TOTAL_TIME: Duration = Duration::from_secs(60);

/// How many indexes of one image are read: one for each old release that the hub prepared.
const MAX_INDEXES: usize = 8;

/// Requests indexes and artifacts, and counts the time for that.
pub(super) struct DeltaRegistry {
    registries: Arc<Registries>,
    /// Registries that did not answer; they are not asked again.
    silent: Mutex<HashSet<String>>,
    time_left: Duration,
    started: Option<Instant>,
}

/// Where an index is looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Lookup {
    /// The index has this name.
    Index(Reference),
    /// It is a referrer of this image.
    Referrers(Subject),
}

/// An image, or the repository where its referrers are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    pub(super) image: Reference,
    /// Digest of the manifest of this node's platform.
    pub(super) manifest: Digest,
}

impl DeltaRegistry {
    pub(super) fn new(registries: Arc<Registries>) -> Self {
        Self {
            registries,
            silent: Mutex::default(),
            time_left: TOTAL_TIME,
            started: None,
        }
    }

    /// Starts to count the time.
    pub(super) fn start(&mut self) {
        self.started = Some(Instant::now());
    }

    /// Stops counting it.
    pub(super) fn stop(&mut self) {
        let passed = self.started.take().map(|started| started.elapsed());
        self.time_left = self.time_left.saturating_sub(passed.unwrap_or_default());
    }

    /// The indexes that `lookups` find, each with a name in its repository.
    pub(super) async fn indexes(
        &self,
        lookups: Vec<Lookup>,
        local: &LocalSources<'_>,
        cancel: &Cancel,
    ) -> Vec<(Reference, DeltaIndex)> {
        let names = stream::iter(lookups).map(async |lookup| match lookup {
            Lookup::Index(reference) => vec![(reference, true)],
            Lookup::Referrers(subject) => {
                let referrers = self.referrers(&subject, cancel).await;
                let digests = first_to_read(referrers, local).into_iter();
                let names = digests.map(|referrer| (subject.image.with_digest(referrer.digest), false));
                names.collect()
            }
        });
        let names: Vec<Vec<(Reference, bool)>> = names.buffered(CONCURRENCY).collect().await;
        let indexes = stream::iter(names.into_iter().flatten()).map(async |(name, is_named)| {
            let index = self.index(&name, is_named, cancel).await;
            index.map(|index| (name, index))
        });
        let indexes: Vec<_> = indexes.buffered(CONCURRENCY).collect().await;
        indexes.into_iter().flatten().collect()
    }

    async fn referrers(&self, subject: &Subject, cancel: &Cancel) -> Vec<Referrer> {
        let Subject { image, manifest } = subject;
        let referrers = self.registries.referrers(image, *manifest, DELTA_INDEX, cancel);
        let referrers = self.ask(image, ANSWER_TIMEOUT, referrers).await;
        referrers.unwrap_or_default()
    }

    async fn index(&self, name: &Reference, is_named: bool, cancel: &Cancel) -> Option<DeltaIndex> {
        let limit = DeltaIndex::MAX_SIZE;
        let content = self
            .registries
            .manifest_content(name, name.digest(), limit, cancel);
        let content = self.ask(name, INDEX_TIMEOUT, content).await;
        let index = content.map(|content| DeltaIndex::parse(content.bytes()));
        match index {
            Some(Ok(index)) => Some(index),
            Some(Err(error)) => {
                tracing::warn!(
                    "`{name}` is not an index of deltas: {}",
                    Printable(&error.to_string())
                );
                None
            }
            None if is_named => {
                tracing::warn!("the index of deltas `{name}` is unavailable");
                None
            }
            None => None,
        }
    }

    /// The deltas of one image in one format.
    pub(super) async fn artifact(&self, offer: &Offer, cancel: &Cancel) -> Option<DeltaArtifact> {
        let (name, limit) = (&offer.artifact, DeltaArtifact::MAX_SIZE);
        let content = self
            .registries
            .manifest_content(name, name.digest(), limit, cancel);
        let content = self.ask(name, ANSWER_TIMEOUT, content).await?;
        let artifact = DeltaArtifact::parse(content.bytes());
        let artifact = artifact.inspect_err(|error| {
            tracing::debug!(
                "cannot use the deltas `{name}`: {}",
                Printable(&error.to_string())
            );
        });
        artifact.ok()
    }

    /// The answer, unless the registry does not give one in time.
    async fn ask<T>(
        &self,
        at: &Reference,
        timeout: Duration,
        answer: impl Future<Output = Result<T, RegistryError>>,
    ) -> Option<T> {
        let registry = at.domain();
        let silent = || self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = self.started.map(|started| started.elapsed()).unwrap_or_default();
        let time_left = self.time_left.saturating_sub(passed);
        if silent().contains(registry) || time_left.is_zero() {
            return None;
        }
        let timeout = timeout.min(time_left);
        let why = match tokio::time::timeout(timeout, answer).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) if error.kind() == Kind::Network => error.to_string(),
            Ok(Err(error)) => {
                tracing::debug!("no deltas: {error}");
                return None;
            }
            Err(_elapsed) => format!("no answer within {}", Span(timeout)),
        };
        if silent().insert(registry.to_owned()) {
            tracing::warn!(
                "no more deltas are requested from `{registry}`: {}",
                Printable(&why)
            );
        }
        None
    }
}

/// The referrers to read: first those from a release that was pulled here.
fn first_to_read(mut referrers: Vec<Referrer>, local: &LocalSources<'_>) -> Vec<Referrer> {
    let is_from_here = |referrer: &Referrer| {
        let from = referrer.annotations.get(FROM).and_then(|from| from.parse().ok());
        from.and_then(|from: Reference| from.digest())
            .is_some_and(|digest| local.has_manifest(digest))
    };
    referrers.retain(|referrer| referrer.size <= DeltaIndex::MAX_SIZE);
    referrers.sort_by_cached_key(|referrer| !is_from_here(referrer));
    referrers.truncate(MAX_INDEXES);
    referrers
}
