//! Collects what is wrong with the content of a medium, each fault once.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::oci::Digest;

/// How many faults of one medium are kept. The medium's other faults are only counted.
const MAX_FAULTS: usize = 100;

/// After how many failed reads without a good one between them a medium is not asked again. A disk that was removed fails every
/// read, and some fail only after half a minute.
const MAX_FAILED_READS: usize = 8;

/// Content of a medium that is damaged, unreadable or not what its name says. It is not used; another medium or a registry
/// is asked instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MediumFault {
    /// The medium's path as given.
    pub medium: String,
    /// The blob, manifest or layer tar; none if the fault concerns something else.
    pub digest: Option<Digest>,
    /// The fault.
    pub why: String,
}

impl fmt::Display for MediumFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.digest {
            Some(digest) => write!(f, "medium `{}`: `{digest}`: {}", self.medium, self.why),
            None => write!(f, "medium `{}`: {}", self.medium, self.why),
        }
    }
}

/// The faults of one medium, and the digests that it is not asked for again.
#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    distrusted: HashSet<Digest>,
    /// Not yet reported.
    new: Vec<(Option<Digest>, String)>,
    seen: usize,
    /// Since the last read that worked.
    failed_reads: usize,
    seen_without_digest: HashSet<String>,
}

impl Faults {
    /// Whether the medium had a fault in this content.
    pub(super) fn distrusts(&self, digest: &Digest) -> bool {
        self.state().distrusted.contains(digest)
    }

    /// Adds a fault, and makes the medium not be asked for `digest` again. Later faults of the same content change nothing.
    pub(super) fn distrust(&self, digest: Digest, why: String) {
        let mut state = self.state();
        if state.distrusted.insert(digest) {
            state.add(Some(digest), why);
        }
    }

    /// Adds a fault of something without a digest.
    pub(super) fn add(&self, why: String) {
        let mut state = self.state();
        if state.seen_without_digest.len() < MAX_FAULTS && state.seen_without_digest.insert(why.clone()) {
            state.add(None, why);
        }
    }

    /// Whether so many reads failed in a row that no other one is tried.
    pub(super) fn gave_up(&self) -> bool {
        self.state().failed_reads >= MAX_FAILED_READS
    }

    /// A read worked.
    pub(super) fn read_worked(&self) {
        let mut state = self.state();
        // A reader that is still open must not bring a medium back.
        if state.failed_reads < MAX_FAILED_READS {
            state.failed_reads = 0;
        }
    }

    /// The system failed a read. Other errors, such as a file that is too long, say nothing about the medium.
    pub(super) fn read_failed(&self, error: &io::Error) {
        let mut state = self.state();
        if error.raw_os_error().is_none() || state.failed_reads >= MAX_FAILED_READS {
            return;
        }
        state.failed_reads += 1;
        if state.failed_reads == MAX_FAILED_READS {
            let why = format!(
                "{MAX_FAILED_READS} reads in a row failed, the last with `{error}`; it is not asked again"
            );
            state.new.push((None, why));
        }
    }

    /// Makes the medium not be asked for anything again, for this reason.
    pub(super) fn give_up(&self, why: String) {
        let mut state = self.state();
        if state.failed_reads < MAX_FAILED_READS {
            state.failed_reads = MAX_FAILED_READS;
            state.new.push((None, why));
        }
    }

    /// The faults since the last call.
    pub(super) fn take(&self, medium: &str) -> Vec<MediumFault> {
        let new = std::mem::take(&mut self.state().new);
        let fault = |(digest, why)| MediumFault {
            medium: medium.to_owned(),
            digest,
            why,
        };
        new.into_iter().map(fault).collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, digest: Option<Digest>, why: String) {
        self.seen += 1;
        match self.seen {
            ..=MAX_FAULTS => self.new.push((digest, why)),
            // Once: the faults after this one are not reported.
            seen if seen == MAX_FAULTS + 1 => {
                self.new.push((
                    None,
                    format!("more than {MAX_FAULTS} faults; the others are not listed"),
                ));
            }
            _ => {}
        }
    }
}
