//! Tracks which source sent which bytes of a blob, and which sources must not be mixed after a wrong digest.
//!
//! Bytes of one source are kept when another source takes over, because the digest names the content. If the complete blob
//! turns out to be wrong, and several sources or an earlier run sent it together, any of them may be at fault. Then the blob is
//! downloaded again, and from then on each source has to send all of it, so that the next wrong digest has one culprit.

use std::collections::HashSet;

use crate::oci::Digest;
use crate::registry::PullSource;

/// The origin of the bytes of one blob that are in the spool.
#[derive(Debug, Default)]
pub(super) struct Provenance {
    /// An earlier run downloaded some of them.
    earlier_run: bool,
    /// Repositories that sent some of them.
    sources: HashSet<String>,
    /// The digest of what several sources sent together, if it was wrong once. Since then the bytes have one source.
    wrong_digest: Option<Digest>,
    /// Whether the last request received any bytes.
    is_receiving: bool,
    /// Bytes that were discarded because they were wrong, or because another source had to start from the beginning.
    discarded: u64,
    /// Repositories whose registry did not answer a range correctly. Each is asked for the whole blob once, of which the bytes
    /// that are here already are skipped. If that breaks off, a range is requested again: one more short request instead of
    /// all that is here.
    without_ranges: HashSet<String>,
}

/// Whether a source may go on where the bytes in the spool end.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Continuation {
    /// It may.
    Allowed,
    /// The bytes are of another source that is still sending and keeps its turn, because this one would start at 0.
    OtherSourceIsSending,
    /// It has to start at 0; the complete blob of several sources had this digest.
    Restart(Digest),
}

impl Provenance {
    pub(super) fn new(earlier_run: bool) -> Self {
        Self {
            earlier_run,
            ..Self::default()
        }
    }

    /// Whether no byte is in the spool.
    pub(super) fn is_empty(&self) -> bool {
        !self.earlier_run && self.sources.is_empty()
    }

    /// Whether some bytes are not from this source.
    pub(super) fn is_mixed(&self, source: &PullSource) -> bool {
        let repository = source.reference.repository();
        self.earlier_run || self.sources.iter().any(|other| *other != repository)
    }

    /// How this source may go on.
    pub(super) fn continuation(&self, source: &PullSource) -> Continuation {
        match self.wrong_digest {
            Some(_) if self.is_mixed(source) && self.is_receiving => Continuation::OtherSourceIsSending,
            Some(digest) if self.is_mixed(source) => Continuation::Restart(digest),
            _ => Continuation::Allowed,
        }
    }

    /// Records the result of a request: the offsets before and after it.
    pub(super) fn received(&mut self, source: &PullSource, before: u64, after: u64) {
        self.is_receiving = after > before;
        if after > 0 {
            self.sources.insert(source.reference.repository());
        }
    }

    /// Records that all bytes are discarded.
    pub(super) fn clear(&mut self) {
        self.earlier_run = false;
        self.sources.clear();
    }

    /// Records that several sources together sent a blob of this digest, which is wrong.
    pub(super) fn sent_wrong_digest(&mut self, digest: Digest) {
        self.wrong_digest = Some(digest);
    }

    /// Adds discarded bytes, and returns all so far.
    pub(super) fn discard(&mut self, bytes: u64) -> u64 {
        self.discarded = self.discarded.saturating_add(bytes);
        self.discarded
    }

    /// Records that the source did not answer a range correctly.
    pub(super) fn failed_range(&mut self, source: &PullSource) {
        self.without_ranges.insert(source.reference.repository());
    }

    /// Whether the next request to the source is for the whole blob, because its last range failed.
    pub(super) fn take_failed_range(&mut self, source: &PullSource) -> bool {
        self.without_ranges.remove(&source.reference.repository())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str) -> PullSource {
        PullSource {
            reference: format!("{name}/a:1").parse().expect("a reference"),
            insecure: false,
        }
    }

    #[test]
    fn sources_are_combined_until_a_digest_is_wrong() {
        let (mirror, origin, wrong) = (source("mirror"), source("origin"), Digest::of(b"wrong"));
        let mut provenance = Provenance::new(false);
        assert!(provenance.is_empty());
        provenance.received(&mirror, 0, 10);
        assert_eq!(provenance.continuation(&origin), Continuation::Allowed);
        provenance.received(&origin, 10, 20);
        assert!(provenance.is_mixed(&origin));

        provenance.sent_wrong_digest(wrong);
        provenance.clear();
        assert_eq!(provenance.continuation(&origin), Continuation::Allowed);
        provenance.received(&mirror, 0, 10);
        assert_eq!(
            provenance.continuation(&origin),
            Continuation::OtherSourceIsSending
        );
        provenance.received(&mirror, 10, 10);
        assert_eq!(provenance.continuation(&origin), Continuation::Restart(wrong));
        assert_eq!(provenance.continuation(&mirror), Continuation::Allowed);
    }

    #[test]
    fn a_failed_range_is_followed_by_one_request_for_the_whole() {
        let (mirror, mut provenance) = (source("mirror"), Provenance::new(true));
        provenance.failed_range(&mirror);
        assert!(provenance.take_failed_range(&mirror));
        assert!(!provenance.take_failed_range(&mirror));
    }
}
