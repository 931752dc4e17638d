//! Listens to a run from its beginning and can report on it at any time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;

use super::conditions::Conditions;
use super::pending_reasons::PendingReasons;
use super::{
    API_VERSION, Event, ImagePhase, ImageReport, LimitReport, Observer, OperatorReport, OperatorState, Phase,
    Report, RequesterKind, Time, Totals,
};
use crate::oci::Digest;

/// Turns events into a [`Report`]. Memory grows with the number of images and blobs, not with what happens to them.
pub struct Recorder {
    clock: fn() -> Timestamp,
    began: Timestamp,
    record: Mutex<Record>,
}

struct Record {
    conditions: Conditions,
    operators: Vec<OperatorReport>,
    /// Their places, by package and channel.
    operator_places: HashMap<(String, String), Vec<usize>>,
    images: Vec<ImageReport>,
    /// Their places, by name.
    places: HashMap<String, usize>,
    /// What an earlier run had fetched of the blobs that were begun, and what of that was not thrown away since.
    resumed: HashMap<Digest, u64>,
    /// Those that are events' to count; images are counted at the end.
    totals: Totals,
    waits: PendingReasons,
    limit_rate: Option<LimitReport>,
    warnings: Vec<String>,
    cut_off: Option<(Phase, String)>,
}

impl Recorder {
    /// The run begins now, by `clock`: `Timestamp::now` outside of tests.
    pub fn new(clock: fn() -> Timestamp) -> Self {
        let began = clock();
        Self {
            clock,
            began,
            record: Mutex::new(Record {
                conditions: Conditions::new(began),
                operators: Vec::new(),
                operator_places: HashMap::new(),
                images: Vec::new(),
                places: HashMap::new(),
                resumed: HashMap::new(),
                totals: Totals::default(),
                waits: PendingReasons::default(),
                limit_rate: None,
                warnings: Vec::new(),
                cut_off: None,
            }),
        }
    }

    /// The report as things stand, for a run that ends with `exit_code` now.
    pub fn report(&self, exit_code: u8) -> Report {
        let now = (self.clock)();
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        let mut images = record.images.clone();
        record.waits.explain(&mut images);
        // What a catalog names is listed after what the version spec does.
        images.sort_by_key(|image| (image.state == ImagePhase::Excluded, image.source));
        let (phase, reason) = match &record.cut_off {
            Some((phase, why)) => (*phase, Some(why.clone())),
            None => (Phase::of_exit_code(exit_code), None),
        };
        Report {
            api_version: API_VERSION,
            kind: "Report",
            phase,
            exit_code,
            reason,
            start_time: Time(self.began),
            complete_time: Time(now),
            conditions: record.conditions.list(now),
            totals: record.totals(),
            operators: record.operators.clone(),
            images,
            limit_rate: record.limit_rate.clone(),
            warnings: record.warnings.clone(),
        }
    }
}

impl Observer for Recorder {
    fn observe(&self, event: Event) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::StepStarted(step) => record.conditions.start(step, (self.clock)()),
            Event::StepEnded {
                step,
                ok,
                reason,
                message,
            } => record.conditions.end(step, ok, reason, &message, (self.clock)()),
            Event::Warned { message } => {
                if !record.warnings.contains(&message) {
                    record.warnings.push(message);
                }
            }
            Event::Stopped { phase, why } => record.cut_off = Some((phase, why)),
            Event::RateLimited { limit, .. } => record.limit_rate = Some(limit),
            Event::Operator(operator) => record.note(operator),
            Event::ImageListed {
                name,
                requester,
                bytes,
            } => record.list(name, requester, bytes),
            Event::Planned { bytes, .. } => record.totals.bytes_planned = bytes,
            Event::BlobStarted { blob, resumed, .. } => {
                // A later attempt has what this run fetched too; if it has less than there was, that was no good.
                let known = record.resumed.entry(blob).or_insert(resumed);
                *known = resumed.min(*known);
            }
            Event::BlobReceived { bytes, .. } | Event::BlobRepeated { bytes, .. } => {
                record.totals.bytes_fetched += bytes
            }
            Event::LayersReused { layers } => record.totals.layers_reused += layers,
            Event::LayerCommitted { .. } => record.totals.layers_pulled += 1,
            Event::ImageDone { name, state, reason } => record.settle(name, state, reason),
            Event::Requested { operation, host } => record.waits.asked(operation, &host),
            Event::Waiting { operation, why } | Event::Retrying { operation, why, .. } => {
                record.waits.failed(operation, why)
            }
            Event::WaitEnded { operation } => record.waits.moves(&operation),
            Event::Deadline { .. } | Event::BlobVerified { .. } | Event::BlobAbandoned { .. } => (),
        }
    }
}

impl Record {
    fn image(&mut self, name: String) -> &mut ImageReport {
        let place = *self.places.entry(name).or_insert_with_key(|name| {
            self.images.push(ImageReport {
                name: name.clone(),
                source: None,
                state: ImagePhase::Pending,
                reason: None,
                bytes: 0,
            });
            self.images.len() - 1
        });
        &mut self.images[place]
    }

    /// What is known of an operator takes the place of what was not known.
    fn note(&mut self, operator: OperatorReport) {
        let name = (operator.package.clone(), operator.channel.clone());
        let places = self.operator_places.entry(name).or_default();
        let is_same = |place: &&usize| {
            let known = &self.operators[**place];
            known.state == OperatorState::Pending || known.index == operator.index
        };
        match places.iter().find(is_same) {
            Some(place) => self.operators[*place] = operator,
            None => {
                places.push(self.operators.len());
                self.operators.push(operator);
            }
        }
    }

    fn list(&mut self, name: String, source: RequesterKind, bytes: u64) {
        let image = self.image(name);
        if image.state == ImagePhase::Excluded {
            // A pattern leaves it out of the release, and then a catalog turned out to name it.
            (image.state, image.reason, image.source) = (ImagePhase::Pending, None, None);
        }
        image.source.get_or_insert(source);
        image.bytes = image.bytes.saturating_add(bytes);
    }

    fn settle(&mut self, name: String, state: ImagePhase, reason: Option<String>) {
        let image = self.image(name);
        match (image.state, state) {
            // Pulled first and then found present by the next plan, as the release image is: this run brought it.
            (ImagePhase::Pulled, ImagePhase::Present) => (),
            // That nothing came of it is no news of an image that cannot be had or is not wanted.
            (ImagePhase::Failed | ImagePhase::Damaged | ImagePhase::Excluded, ImagePhase::Pending) => {}
            _ => {
                image.state = state;
                image.reason = reason;
            }
        }
    }

    fn totals(&self) -> Totals {
        let count = |state| self.images.iter().filter(|image| image.state == state).count() as u64;
        let operators = |state| {
            let in_state = self.operators.iter().filter(|operator| operator.state == state);
            in_state.count() as u64
        };
        Totals {
            operators_wanted: self.operators.len() as u64,
            operators_found: operators(OperatorState::Found),
            operators_failed: operators(OperatorState::Failed),
            images_wanted: self.images.len() as u64 - count(ImagePhase::Excluded),
            images_present: count(ImagePhase::Present),
            images_pulled: count(ImagePhase::Pulled),
            images_failed: count(ImagePhase::Failed) + count(ImagePhase::Damaged),
            bytes_resumed: self.resumed.values().sum(),
            ..self.totals
        }
    }
}
