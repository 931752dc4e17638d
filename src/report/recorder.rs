//! Collects the events of a run and makes the report from them, at any time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;

use super::conditions::Conditions;
use super::media_report::MediaCounts;
use super::pending_reasons::PendingReasons;
use super::{
    API_VERSION, DeadlineReport, Event, Forecast, ImagePhase, ImageReport, LimitReport, Observer,
    OperatorReport, OperatorState, Phase, Report, ReportTotals, RequesterKind, SignaturePolicyReport, Time,
    UpgradeReport,
};
use crate::oci::Digest;

/// Makes a [`Report`] from events. Memory grows with the number of images and blobs, not with the number of events.
pub struct Recorder {
    clock: fn() -> Timestamp,
    began: Timestamp,
    record: Mutex<Record>,
}

struct Record {
    conditions: Conditions,
    version: Option<String>,
    operators: Vec<OperatorReport>,
    /// Indexes of `operators`, by package and channel.
    operator_indexes: HashMap<(String, String), Vec<usize>>,
    images: Vec<ImageReport>,
    /// Indexes of `images`, by name.
    image_indexes: HashMap<String, usize>,
    /// Bytes that an earlier run had downloaded of each started blob, without those that were discarded since.
    resumed: HashMap<Digest, u64>,
    /// The deltas that were applied, the sources that failed, and the blobs of copied layers.
    sources: HashSet<Digest>,
    /// By the last plan.
    bytes_planned: u64,
    /// Bytes that are downloaded instead of sources that failed. No plan counts them.
    fallback_bytes: u64,
    /// Bytes that are downloaded although they were planned from media. No plan counts them.
    not_on_media: u64,
    media: MediaCounts,
    /// Bytes of blobs that were not downloaded because of deltas, and bytes of deltas.
    bytes_saved: (u64, u64),
    /// Counted from events, except images, operators and what other fields count.
    totals: ReportTotals,
    waits: PendingReasons,
    limit_rate: Option<LimitReport>,
    signature_policy: Option<SignaturePolicyReport>,
    upgrade: Option<Arc<UpgradeReport>>,
    warnings: Vec<String>,
    stopped: Option<(Phase, String)>,
    deadline: Option<DeadlineReport>,
    upgrade_at: Option<Time>,
    forecast: Option<Forecast>,
}

impl Recorder {
    /// The run starts now; `clock` is `Timestamp::now` outside tests.
    pub fn new(clock: fn() -> Timestamp) -> Self {
        let began = clock();
        Self {
            clock,
            began,
            record: Mutex::new(Record {
                conditions: Conditions::new(began),
                version: None,
                operators: Vec::new(),
                operator_indexes: HashMap::new(),
                images: Vec::new(),
                image_indexes: HashMap::new(),
                resumed: HashMap::new(),
                sources: HashSet::new(),
                bytes_planned: 0,
                fallback_bytes: 0,
                not_on_media: 0,
                media: MediaCounts::default(),
                bytes_saved: (0, 0),
                totals: ReportTotals::default(),
                waits: PendingReasons::default(),
                limit_rate: None,
                signature_policy: None,
                upgrade: None,
                warnings: Vec::new(),
                stopped: None,
                deadline: None,
                upgrade_at: None,
                forecast: None,
            }),
        }
    }

    /// The report of a run that ends now with `exit_code`.
    pub fn report(&self, exit_code: u8) -> Report {
        let now = (self.clock)();
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut images = record.images.clone();
        record.waits.set_reasons(&mut images);
        for image in &mut images {
            image.media = record.media.of_image(&image.name).to_vec();
        }
        // By requester: a catalog's images are listed after the version spec's.
        images.sort_by_key(|image| (image.state == ImagePhase::Excluded, image.source));
        let (phase, reason) = match &record.stopped {
            Some((phase, why)) => (*phase, Some(why.clone())),
            None => (Phase::of_exit_code(exit_code), None),
        };
        Report {
            api_version: API_VERSION,
            kind: "Report",
            phase,
            exit_code,
            reason,
            version: record.version.clone(),
            start_time: Time(self.began),
            complete_time: Time(now),
            conditions: record.conditions.list(now),
            totals: record.totals(),
            operators: record.operators.clone(),
            images,
            media: record.media.media().to_vec(),
            limit_rate: record.limit_rate.clone(),
            deadline: record.deadline,
            upgrade_at: record.upgrade_at,
            forecast: record.forecast.clone().filter(|_| phase != Phase::Succeeded),
            signature_policy: record.signature_policy.clone(),
            upgrade: record.upgrade.as_deref().cloned(),
            warnings: record.warnings.clone(),
        }
    }
}

impl Observer for Recorder {
    fn observe(&self, event: Event) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.media.note(&event);
        match event {
            Event::StepStarted(step) => record.conditions.start(step, (self.clock)()),
            Event::StepEnded {
                step,
                ok,
                reason,
                message,
            } => record.conditions.end(step, ok, reason, &message, (self.clock)()),
            Event::StepInconclusive {
                step,
                reason,
                message,
            } => record
                .conditions
                .end_unknown(step, reason, &message, (self.clock)()),
            Event::ReleaseRead { version } => record.version = Some(version),
            Event::SignaturePolicy(policy) => record.signature_policy = Some(policy),
            Event::SignaturesChecked { name, signatures } => {
                record.image(name).signatures = Some(signatures);
            }
            Event::UpgradeAssessed(upgrade) => record.upgrade = Some(upgrade),
            Event::Warned { message } => {
                if !record.warnings.contains(&message) {
                    record.warnings.push(message);
                }
            }
            Event::Stopped { phase, why } => record.stopped = Some((phase, why)),
            Event::RateLimited { limit, .. } => record.limit_rate = Some(limit),
            Event::Operator(operator) => record.note(operator),
            Event::ImageListed {
                name,
                requester,
                bytes,
                ..
            } => record.list(name, requester, bytes),
            Event::Planned { bytes, .. } => record.bytes_planned = bytes,
            Event::BlobStarted { blob, resumed, .. } => {
                // A later attempt also resumes bytes of this run. If it resumes fewer than the first, bytes of the earlier
                // run were discarded.
                let known = record.resumed.entry(blob).or_insert(resumed);
                *known = resumed.min(*known);
            }
            Event::BlobReceived { bytes, .. } | Event::BlobRepeated { bytes, .. } => {
                record.totals.bytes_fetched += bytes
            }
            Event::DeltaApplied {
                name,
                delta,
                source,
                bytes,
                whole_bytes,
            } => record.apply(name, delta, source, bytes, whole_bytes),
            Event::SourceFailed {
                name,
                source,
                reason,
                bytes,
                more_bytes,
            } => record.fall_back(name, source, reason, bytes, more_bytes),
            Event::LayerCopied { blob, bytes } => record.copy(blob, bytes),
            Event::LayersReused { layers } => record.totals.layers_reused += layers,
            Event::LayerCommitted { .. } => record.totals.layers_pulled += 1,
            Event::ImageDone { name, state, reason } => record.set_phase(name, state, reason),
            Event::Requested { operation, host } => record.waits.requested(operation, &host),
            Event::Waiting { operation, why } | Event::Retrying { operation, why, .. } => {
                record.waits.failed(operation, why)
            }
            Event::WaitEnded { operation } => record.waits.ended(&operation),
            Event::Deadline {
                report, upgrade_at, ..
            } => (record.deadline, record.upgrade_at) = (Some(report), upgrade_at),
            Event::Forecast(forecast) => record.forecast = Some(forecast).filter(|it| it.images > 0),
            Event::BlobCopied { bytes, .. } => record.totals.bytes_from_media += bytes,
            Event::BlobNotOnMedia { bytes, .. } => {
                record.not_on_media = record.not_on_media.saturating_add(bytes);
            }
            Event::BlobListed { .. }
            | Event::MediumFailed { .. }
            | Event::BlobVerified { .. }
            | Event::BlobAbandoned { .. }
            | Event::ChunksUsed { .. } => (),
        }
    }
}

impl Record {
    fn image(&mut self, name: String) -> &mut ImageReport {
        let index = *self.image_indexes.entry(name).or_insert_with_key(|name| {
            self.images.push(ImageReport {
                name: name.clone(),
                source: None,
                state: ImagePhase::Pending,
                reason: None,
                signatures: None,
                bytes: 0,
                delta: None,
                delta_bytes: 0,
                fallback_reason: None,
                media: Vec::new(),
            });
            self.images.len() - 1
        });
        &mut self.images[index]
    }

    /// Replaces what was known of an operator.
    fn note(&mut self, operator: OperatorReport) {
        let name = (operator.package.clone(), operator.channel.clone());
        let indexes = self.operator_indexes.entry(name).or_default();
        let is_same = |index: &&usize| {
            let known = &self.operators[**index];
            known.state == OperatorState::Pending || known.index == operator.index
        };
        match indexes.iter().find(is_same) {
            Some(index) => self.operators[*index] = operator,
            None => {
                indexes.push(self.operators.len());
                self.operators.push(operator);
            }
        }
    }

    fn list(&mut self, name: String, source: RequesterKind, bytes: u64) {
        let image = self.image(name);
        if image.state == ImagePhase::Excluded {
            // A pattern excludes it from the release, but a catalog requests it.
            (image.state, image.reason, image.source) = (ImagePhase::Pending, None, None);
        }
        image.source.get_or_insert(source);
        image.bytes = image.bytes.saturating_add(bytes);
    }

    fn apply(&mut self, name: String, delta: Digest, source: Digest, bytes: u64, whole_bytes: u64) {
        if self.sources.insert(delta) {
            self.bytes_saved.0 = self.bytes_saved.0.saturating_add(whole_bytes);
            self.bytes_saved.1 = self.bytes_saved.1.saturating_add(bytes);
            let image = self.image(name);
            image.delta.get_or_insert_with(|| source.to_string());
            image.delta_bytes = image.delta_bytes.saturating_add(bytes);
        }
    }

    fn copy(&mut self, blob: Digest, bytes: u64) {
        self.totals.layers_from_store += 1;
        if self.sources.insert(blob) {
            self.totals.bytes_from_store = self.totals.bytes_from_store.saturating_add(bytes);
        }
    }

    fn fall_back(&mut self, name: String, source: Digest, reason: String, bytes: u64, more_bytes: u64) {
        if self.sources.insert(source) {
            self.bytes_saved.1 = self.bytes_saved.1.saturating_add(bytes);
            self.fallback_bytes = self.fallback_bytes.saturating_add(more_bytes);
            self.image(name).fallback_reason.get_or_insert(reason);
        }
    }

    fn set_phase(&mut self, name: String, state: ImagePhase, reason: Option<String>) {
        let image = self.image(name);
        match (image.state, state) {
            // This run pulled it, and the next plan finds it present, for example the release image.
            (ImagePhase::Pulled, ImagePhase::Present) => (),
            // An image that failed or is excluded does not become pending.
            (ImagePhase::Failed | ImagePhase::Damaged | ImagePhase::Excluded, ImagePhase::Pending) => {}
            _ => {
                image.state = state;
                image.reason = reason;
            }
        }
    }

    fn totals(&self) -> ReportTotals {
        let count = |state| self.images.iter().filter(|image| image.state == state).count() as u64;
        let operators = |state| {
            let in_state = self.operators.iter().filter(|operator| operator.state == state);
            in_state.count() as u64
        };
        ReportTotals {
            operators_wanted: self.operators.len() as u64,
            operators_found: operators(OperatorState::Found),
            operators_failed: operators(OperatorState::Failed),
            images_wanted: self.images.len() as u64 - count(ImagePhase::Excluded),
            images_present: count(ImagePhase::Present),
            images_pulled: count(ImagePhase::Pulled),
            images_failed: count(ImagePhase::Failed) + count(ImagePhase::Damaged),
            bytes_planned: self
                .bytes_planned
                .saturating_add(self.fallback_bytes)
                .saturating_add(self.not_on_media),
            bytes_saved: self.bytes_saved.0.saturating_sub(self.bytes_saved.1),
            bytes_resumed: self.resumed.values().sum(),
            ..self.totals
        }
    }
}
