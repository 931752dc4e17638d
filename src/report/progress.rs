//! Counts how far a run is, from its events: images, bytes, rate and time left.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use super::transfer_rate::TransferRate;
use super::{Event, ImagePhase, Size, Span, TimeLeft};
use crate::oci::Digest;

/// The counters.
#[derive(Debug, Default)]
pub struct Progress {
    images: u64,
    present: u64,
    here: HashSet<String>,
    failed: HashSet<String>,
    bytes: u64,
    /// Bytes that are downloaded instead of deltas that failed. No plan counts them.
    fallback_bytes: u64,
    failed_deltas: HashSet<Digest>,
    fetched: u64,
    blobs: HashMap<Digest, Blob>,
    rate: TransferRate,
    rest: TimeLeft,
}

#[derive(Clone, Copy, Debug)]
struct Blob {
    /// Bytes that the first attempt found in the spool. The plan does not count them.
    spooled: u64,
    position: u64,
    size: u64,
    active: bool,
}

/// How far the run is at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProgressSnapshot {
    /// Wanted, by the last plan.
    pub images: u64,
    /// Of these, in the store.
    pub images_here: u64,
    /// Of these, failed.
    pub images_failed: u64,
    /// Compressed bytes to download in this run, by the last plan.
    pub bytes: u64,
    /// Of these, downloaded.
    pub fetched: u64,
    /// Bytes per second.
    pub rate: u64,
    /// Blobs that are being downloaded.
    pub downloads: u64,
    /// Estimates the time left.
    pub rest: TimeLeft,
}

impl Progress {
    /// Counts `event`, which happened `now`.
    pub fn note(&mut self, event: &Event, now: Instant) {
        match event {
            Event::Planned {
                images,
                present,
                bytes,
            } => {
                self.images = *images;
                self.present = *present;
                self.bytes = *bytes;
            }
            Event::DeltaFailed {
                delta, more_bytes, ..
            } if self.failed_deltas.insert(*delta) => {
                self.fallback_bytes = self.fallback_bytes.saturating_add(*more_bytes);
            }
            Event::RateLimited { rest, .. } => self.rest = rest.clone(),
            Event::BlobStarted { blob, size, resumed } => {
                let spooled = self.blobs.get(blob).map_or(*resumed, |earlier| earlier.spooled);
                self.put(
                    *blob,
                    Blob {
                        spooled,
                        position: *resumed,
                        size: *size,
                        active: true,
                    },
                );
            }
            Event::BlobReceived { blob, bytes } => {
                self.rate.add(*bytes, now);
                self.change(*blob, |blob| {
                    blob.position = blob.position.saturating_add(*bytes).min(blob.size)
                });
            }
            Event::BlobRepeated { bytes, .. } => self.rate.add(*bytes, now),
            Event::BlobVerified { blob } => self.change(*blob, |blob| {
                blob.position = blob.size;
                blob.active = false;
            }),
            Event::BlobAbandoned { blob } => self.change(*blob, |blob| blob.active = false),
            Event::ImageDone { name, state, .. } => match state {
                ImagePhase::Present | ImagePhase::Pulled => {
                    self.failed.remove(name);
                    self.here.insert(name.clone());
                }
                ImagePhase::Failed | ImagePhase::Damaged => {
                    self.here.remove(name);
                    self.failed.insert(name.clone());
                }
                ImagePhase::Pending => {
                    self.here.remove(name);
                }
                ImagePhase::Excluded => (),
            },
            _ => (),
        }
    }

    /// A new attempt replaces what the previous attempt counted.
    fn put(&mut self, digest: Digest, blob: Blob) {
        let before = self.blobs.insert(digest, blob).map_or(0, Blob::fetched);
        self.fetched = self.fetched.saturating_add(blob.fetched()).saturating_sub(before);
    }

    fn change(&mut self, digest: Digest, change: impl FnOnce(&mut Blob)) {
        if let Some(mut blob) = self.blobs.get(&digest).copied() {
            change(&mut blob);
            self.put(digest, blob);
        }
    }

    /// How far the run is `now`.
    pub fn snapshot(&self, now: Instant) -> ProgressSnapshot {
        let bytes = self.bytes.saturating_add(self.fallback_bytes);
        ProgressSnapshot {
            images: self.images,
            images_here: self.present.max(self.here.len() as u64),
            images_failed: self.failed.len() as u64,
            bytes,
            // A blob of the spool that turns out to be damaged is downloaded in addition to the plan.
            fetched: self.fetched.min(bytes),
            rate: self.rate.per_second(now),
            downloads: self.blobs.values().filter(|blob| blob.active).count() as u64,
            rest: self.rest.clone(),
        }
    }
}

impl Blob {
    fn fetched(self) -> u64 {
        self.position.saturating_sub(self.spooled)
    }
}

impl ProgressSnapshot {
    /// Whether anything is left to do.
    pub(super) fn is_busy(&self) -> bool {
        self.downloads > 0 || self.images_here + self.images_failed < self.images
    }

    /// How long the remaining downloads take at this rate, if bytes arrive.
    pub fn time_left(&self) -> Option<Duration> {
        let left = self.bytes - self.fetched;
        (self.downloads > 0 && self.rate > 0 && left > 0).then(|| self.rest.of(left, self.rate))
    }
}

impl fmt::Display for ProgressSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.images == 0 {
            return f.write_str("the number of images is not known yet");
        }
        write!(f, "images {}/{}", self.images_here, self.images)?;
        if self.images_failed > 0 {
            write!(f, " ({} failed)", self.images_failed)?;
        }
        write!(f, ", {} of {}", Size(self.fetched), Size(self.bytes))?;
        if self.bytes > 0 {
            write!(
                f,
                " ({} %)",
                u128::from(self.fetched) * 100 / u128::from(self.bytes)
            )?;
        }
        if self.downloads > 0 {
            let plural = if self.downloads == 1 { "" } else { "s" };
            write!(
                f,
                ", {}/s in {} download{plural}",
                Size(self.rate),
                self.downloads
            )?;
            if let Some(left) = self.time_left() {
                write!(f, ", {} left", Span(left))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::LimitReport;

    const MIB: u64 = 1 << 20;

    fn digest(name: &str) -> Digest {
        Digest::of(name.as_bytes())
    }

    fn started(name: &str, size: u64, resumed: u64) -> Event {
        Event::BlobStarted {
            blob: digest(name),
            size: size * MIB,
            resumed: resumed * MIB,
        }
    }

    fn received(name: &str, bytes: u64) -> Event {
        Event::BlobReceived {
            blob: digest(name),
            bytes: bytes * MIB,
        }
    }

    fn done(name: &str, state: ImagePhase) -> Event {
        Event::ImageDone {
            name: name.into(),
            state,
            reason: None,
        }
    }

    #[test]
    fn reports_images_bytes_rate_and_time_left() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut progress = Progress::default();
        let mut text_after = |event: Event, second: u64| {
            progress.note(&event, at(second));
            progress.snapshot(at(second)).to_string()
        };
        assert_eq!(
            text_after(
                Event::Planned {
                    images: 3,
                    present: 1,
                    bytes: 100 * MIB
                },
                0
            ),
            "images 1/3, 0.0 MiB of 100.0 MiB (0 %)"
        );
        // 20 MiB of it are in the spool, and not among the 100.
        assert_eq!(
            text_after(started("a", 80, 20), 0),
            "images 1/3, 0.0 MiB of 100.0 MiB (0 %), 0.0 MiB/s in 1 download"
        );
        text_after(received("a", 10), 0);
        assert_eq!(
            text_after(received("a", 10), 10),
            "images 1/3, 20.0 MiB of 100.0 MiB (20 %), 2.0 MiB/s in 1 download, 40 s left"
        );
        // It stalls and continues where it was; the bytes count once.
        text_after(started("a", 80, 40), 11);
        assert_eq!(
            text_after(started("b", 40, 0), 12),
            "images 1/3, 20.0 MiB of 100.0 MiB (20 %), 1.7 MiB/s in 2 downloads, 49 s left"
        );
        // It starts again from the beginning.
        assert!(text_after(started("a", 80, 0), 12).starts_with("images 1/3, 0.0 MiB of 100.0 MiB (0 %)"));
        text_after(Event::BlobVerified { blob: digest("a") }, 13);
        text_after(Event::BlobAbandoned { blob: digest("b") }, 13);
        text_after(done("present", ImagePhase::Present), 14);
        text_after(done("pulled", ImagePhase::Pulled), 14);
        assert_eq!(
            text_after(done("failed", ImagePhase::Failed), 14),
            "images 2/3 (1 failed), 60.0 MiB of 100.0 MiB (60 %)"
        );
        assert!(!progress.snapshot(at(14)).is_busy());
    }

    #[test]
    fn a_rate_limit_determines_the_time_left() {
        let now = Instant::now();
        let mut progress = Progress::default();
        let limited = Event::RateLimited {
            limit: LimitReport {
                at_start: String::new(),
                schedule: String::new(),
            },
            rest: TimeLeft::new(|bytes, rate| Duration::from_secs(bytes / rate / 10)),
        };
        let planned = Event::Planned {
            images: 1,
            present: 0,
            bytes: 101 * MIB,
        };
        for event in [limited, planned, started("a", 101, 0), received("a", 1)] {
            progress.note(&event, now);
        }
        let text = progress.snapshot(now).to_string();
        assert!(text.ends_with("1.0 MiB/s in 1 download, 10 s left"), "{text}");
    }

    #[test]
    fn a_plan_replaces_the_previous_one() {
        let now = Instant::now();
        let mut progress = Progress::default();
        for (images, present, bytes) in [(1, 0, 5 * MIB), (130, 1, 12 * MIB), (130, 1, 12 * MIB)] {
            progress.note(
                &Event::Planned {
                    images,
                    present,
                    bytes,
                },
                now,
            );
            progress.note(&done("release", ImagePhase::Pulled), now);
        }
        let snapshot = progress.snapshot(now);
        assert_eq!(
            (snapshot.images, snapshot.images_here, snapshot.bytes),
            (130, 1, 12 * MIB)
        );
        assert!(snapshot.is_busy());
    }
}
