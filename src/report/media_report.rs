//! Counts the bytes that came from each medium, for each image and for the run, and what failed.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::{Count, Event, Size};
use crate::oci::Digest;

/// How many failures of one medium are named. A medium that is unplugged fails once for each blob.
pub(super) const MAX_NAMED: usize = 20;

/// Bytes from one medium.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MediumBytes {
    /// The path of the medium.
    pub medium: String,
    /// Compressed bytes of verified blobs that were copied from it.
    pub bytes: u64,
}

/// One medium of a run, if something came from it or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MediumReport {
    /// The path of the medium.
    pub medium: String,
    /// Compressed bytes of verified blobs that were copied from it.
    pub bytes: u64,
    /// How many parts of it are damaged, wrong or unreadable.
    pub failures: u64,
    /// The first of them, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
}

impl fmt::Display for MediumReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} from `{}`", Size(self.bytes), self.medium)?;
        match (self.failures, self.reasons.first()) {
            (failures, Some(reason)) => {
                let failures = usize::try_from(failures).unwrap_or(usize::MAX);
                write!(f, "; {}, first: {reason}", Count(failures, "failure"))
            }
            (_, None) => Ok(()),
        }
    }
}

/// The counters.
#[derive(Debug, Default)]
pub(super) struct MediaCounts {
    /// The first image that needs each blob.
    names: HashMap<Digest, String>,
    /// Bytes of blobs that are not verified yet, by medium.
    copied: HashMap<Digest, Vec<(Arc<str>, u64)>>,
    images: HashMap<String, Vec<MediumBytes>>,
    media: Vec<MediumReport>,
}

impl MediaCounts {
    /// Counts `event`. The bytes of a blob count when it is verified: before, any of its sources may be at fault.
    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::BlobListed { blob, name, .. } => {
                self.names.entry(*blob).or_insert_with(|| name.clone());
            }
            // The bytes before were wrong.
            Event::BlobStarted { blob, resumed: 0, .. } => {
                self.copied.remove(blob);
            }
            Event::BlobCopied { blob, medium, bytes } => {
                let of_blob = self.copied.entry(*blob).or_default();
                match of_blob.iter_mut().find(|(known, _)| known == medium) {
                    Some((_, sum)) => *sum = sum.saturating_add(*bytes),
                    None => of_blob.push((Arc::clone(medium), *bytes)),
                }
            }
            Event::BlobVerified { blob } => {
                for (medium, bytes) in self.copied.remove(blob).into_iter().flatten() {
                    let known = self.medium(&medium);
                    known.bytes = known.bytes.saturating_add(bytes);
                    if let Some(name) = self.names.get(blob) {
                        add(self.images.entry(name.clone()).or_default(), &medium, bytes);
                    }
                }
            }
            Event::MediumFailed { medium, reason } => {
                let known = self.medium(medium);
                known.failures += 1;
                if known.reasons.len() < MAX_NAMED {
                    known.reasons.push(reason.clone());
                }
            }
            _ => (),
        }
    }

    /// Every medium from which something came, or of which something failed.
    pub(super) fn media(&self) -> &[MediumReport] {
        &self.media
    }

    /// What came from media for this image.
    pub(super) fn of_image(&self, name: &str) -> &[MediumBytes] {
        self.images.get(name).map_or(&[], Vec::as_slice)
    }

    /// How many failures this medium has.
    pub(super) fn failures(&self, medium: &str) -> u64 {
        let known = self.media.iter().find(|known| known.medium == medium);
        known.map_or(0, |known| known.failures)
    }

    fn medium(&mut self, medium: &str) -> &mut MediumReport {
        let index = self.media.iter().position(|known| known.medium == medium);
        let index = index.unwrap_or_else(|| {
            self.media.push(MediumReport {
                medium: medium.to_owned(),
                bytes: 0,
                failures: 0,
                reasons: Vec::new(),
            });
            self.media.len() - 1
        });
        &mut self.media[index]
    }
}

fn add(media: &mut Vec<MediumBytes>, medium: &str, bytes: u64) {
    match media.iter_mut().find(|known| known.medium == medium) {
        Some(known) => known.bytes = known.bytes.saturating_add(bytes),
        None => media.push(MediumBytes {
            medium: medium.to_owned(),
            bytes,
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ImageLabel;

    #[test]
    fn bytes_count_for_the_medium_and_the_image_once_the_blob_is_verified() {
        let [a, b] = [b"a", b"b"].map(|name| Digest::of(name));
        let listed = |blob| Event::BlobListed {
            blob,
            name: "q.io/i:1".to_owned(),
            label: ImageLabel::new(None, "q.io/i:1"),
        };
        let started = |blob, resumed| Event::BlobStarted {
            blob,
            size: 10,
            resumed,
        };
        let copied = |blob, medium: &str, bytes| Event::BlobCopied {
            blob,
            medium: medium.into(),
            bytes,
        };
        let failed = |reason: usize| Event::MediumFailed {
            medium: "/m/2".into(),
            reason: format!("reason {reason}"),
        };
        let mut counts = MediaCounts::default();
        for event in [
            listed(a),
            listed(b),
            started(a, 0),
            copied(a, "/m/1", 4),
            copied(a, "/m/1", 2),
            copied(a, "/m/2", 4),
            Event::BlobVerified { blob: a },
            // Wrong, then from another one.
            started(b, 0),
            copied(b, "/m/2", 10),
            failed(0),
            started(b, 0),
            copied(b, "/m/1", 10),
            Event::BlobVerified { blob: b },
        ] {
            counts.note(&event);
        }
        let of_image = counts.of_image("q.io/i:1");
        let of_image: Vec<_> = of_image.iter().map(|it| (it.medium.as_str(), it.bytes)).collect();
        assert_eq!(of_image, [("/m/1", 16), ("/m/2", 4)]);
        for reason in 1..100 {
            counts.note(&failed(reason));
        }
        assert_eq!(counts.failures("/m/2"), 100);
        let [one, two] = counts.media() else {
            panic!("{:?}", counts.media());
        };
        assert_eq!(one.to_string(), "<0.1 MiB from `/m/1`");
        assert_eq!(
            two.to_string(),
            "<0.1 MiB from `/m/2`; 100 failures, first: reason 0"
        );
        assert_eq!((one.bytes, two.bytes, two.reasons.len()), (16, 4, MAX_NAMED));
    }
}
