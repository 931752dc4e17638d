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
    /// Bytes that are downloaded instead of sources that failed. No plan counts them.
    fallback_bytes: u64,
    failed_sources: HashSet<Digest>,
    /// Bytes to copy from media, by the last plan, and those of them that are downloaded instead.
    bytes_from_media: u64,
    not_on_media: u64,
    /// Bytes that were copied from media.
    copied: u64,
    fetched: u64,
    blobs: HashMap<Digest, Blob>,
    rate: TransferRate,
    copy_rate: TransferRate,
    rest: TimeLeft,
}

#[derive(Clone, Copy, Debug)]
struct Blob {
    /// Bytes that the first attempt found in the spool. The plan does not count them.
    spooled: u64,
    position: u64,
    size: u64,
    active: bool,
    /// Its last bytes came from a medium.
    is_copied: bool,
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
    /// Compressed bytes to download or to copy from media in this run, by the last plan.
    pub bytes: u64,
    /// Of these, downloaded or copied.
    pub fetched: u64,
    /// Of the missing bytes, those to copy from media.
    pub to_copy: u64,
    /// Downloaded bytes per second.
    pub rate: u64,
    /// Bytes per second from media.
    pub copy_rate: u64,
    /// Blobs that are being downloaded.
    pub downloads: u64,
    /// Blobs that are being copied from media.
    pub copies: u64,
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
                bytes_from_media,
            } => {
                self.images = *images;
                self.present = *present;
                self.bytes = *bytes;
                self.bytes_from_media = *bytes_from_media;
            }
            Event::SourceFailed {
                source, more_bytes, ..
            } if self.failed_sources.insert(*source) => {
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
                        is_copied: false,
                    },
                );
            }
            Event::BlobReceived { blob, bytes } => {
                self.rate.add(*bytes, now);
                self.change(*blob, |blob| blob.add(*bytes, false));
            }
            Event::BlobCopied { blob, bytes, .. } => {
                self.copy_rate.add(*bytes, now);
                self.copied = self.copied.saturating_add(*bytes);
                self.change(*blob, |blob| blob.add(*bytes, true));
            }
            Event::BlobNotOnMedia { bytes, .. } => {
                self.not_on_media = self.not_on_media.saturating_add(*bytes);
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
        let bytes = bytes.saturating_add(self.bytes_from_media);
        // A blob of the spool that turns out to be damaged is downloaded in addition to the plan.
        let fetched = self.fetched.min(bytes);
        let no_more = self.copied.saturating_add(self.not_on_media);
        let active = |is_copied| {
            let active = self.blobs.values().filter(|blob| blob.active);
            active.filter(|blob| blob.is_copied == is_copied).count() as u64
        };
        ProgressSnapshot {
            images: self.images,
            images_here: self.present.max(self.here.len() as u64),
            images_failed: self.failed.len() as u64,
            bytes,
            fetched,
            to_copy: self.bytes_from_media.saturating_sub(no_more).min(bytes - fetched),
            rate: self.rate.per_second(now),
            copy_rate: self.copy_rate.per_second(now),
            downloads: active(false),
            copies: active(true),
            rest: self.rest.clone(),
        }
    }
}

impl Blob {
    fn fetched(self) -> u64 {
        self.position.saturating_sub(self.spooled)
    }

    fn add(&mut self, bytes: u64, is_copied: bool) {
        self.position = self.position.saturating_add(bytes).min(self.size);
        self.is_copied = is_copied;
    }
}

impl ProgressSnapshot {
    /// Whether anything is left to do.
    pub(super) fn is_busy(&self) -> bool {
        self.downloads + self.copies > 0 || self.images_here + self.images_failed < self.images
    }

    /// The missing bytes to download.
    pub fn to_download(&self) -> u64 {
        (self.bytes - self.fetched).saturating_sub(self.to_copy)
    }

    /// How long the remaining downloads and copies take at these rates, if bytes arrive.
    pub fn time_left(&self) -> Option<Duration> {
        let (download, copy) = (self.to_download(), self.to_copy);
        let downloads =
            (self.downloads > 0 && self.rate > 0 && download > 0).then(|| self.rest.of(download, self.rate));
        let copies = (self.copies > 0 && self.copy_rate > 0 && copy > 0)
            .then(|| Duration::from_secs(copy / self.copy_rate));
        match (download, downloads) {
            // The downloads wait, for how long nobody knows.
            (1.., None) => None,
            _ => downloads.max(copies),
        }
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
        }
        if self.copies > 0 {
            write!(f, ", {}/s from media", Size(self.copy_rate))?;
        }
        if let Some(left) = self.time_left() {
            write!(f, ", {} left", Span(left))?;
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
                    bytes: 100 * MIB,
                    bytes_from_media: 0,
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
            bytes_from_media: 0,
        };
        for event in [limited, planned, started("a", 101, 0), received("a", 1)] {
            progress.note(&event, now);
        }
        let text = progress.snapshot(now).to_string();
        assert!(text.ends_with("1.0 MiB/s in 1 download, 10 s left"), "{text}");
    }

    #[test]
    fn bytes_from_media_count_and_do_not_change_the_rate_of_the_link() {
        let now = Instant::now();
        let mut progress = Progress::default();
        let copied = |name: &str, bytes: u64| Event::BlobCopied {
            blob: digest(name),
            medium: "/media/a".into(),
            bytes: bytes * MIB,
        };
        let mut text_after = |events: &[Event]| {
            events.iter().for_each(|event| progress.note(event, now));
            progress.snapshot(now).to_string()
        };
        let planned = Event::Planned {
            images: 1,
            present: 0,
            bytes: 20 * MIB,
            bytes_from_media: 100 * MIB,
        };
        let begun = [planned, started("a", 60, 0), copied("a", 30)];
        assert_eq!(
            text_after(&begun),
            "images 0/1, 30.0 MiB of 120.0 MiB (25 %), 30.0 MiB/s from media"
        );
        // The rest of it is downloaded.
        let not_there = Event::BlobNotOnMedia {
            blob: digest("a"),
            bytes: 30 * MIB,
        };
        let text = text_after(&[not_there, started("a", 60, 30), received("a", 10)]);
        assert_eq!(
            text,
            "images 0/1, 40.0 MiB of 120.0 MiB (33 %), 10.0 MiB/s in 1 download, 4 s left"
        );
        let rest = [
            Event::BlobVerified { blob: digest("a") },
            started("b", 40, 0),
            copied("b", 40),
            Event::BlobVerified { blob: digest("b") },
            started("c", 20, 0),
            received("c", 20),
            Event::BlobVerified { blob: digest("c") },
        ];
        assert_eq!(text_after(&rest), "images 0/1, 120.0 MiB of 120.0 MiB (100 %)");
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
                    bytes_from_media: 0,
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
