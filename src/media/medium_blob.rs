//! A blob that a medium has by name; its bytes are not verified.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::medium::Medium;
use super::medium_reader::MediumReader;
use super::tree::Place;
use crate::oci::Digest;

/// A blob or a layer's tar in a medium. Only whoever hashes the bytes knows whether they are the right ones.
#[derive(Clone, Debug)]
pub struct MediumBlob {
    medium: Arc<Medium>,
    digest: Digest,
    place: Place,
}

impl MediumBlob {
    pub(super) fn new(medium: Arc<Medium>, digest: Digest, place: Place) -> Self {
        Self {
            medium,
            digest,
            place,
        }
    }

    /// The path of the medium, as given.
    pub fn name(&self) -> &str {
        self.medium.name()
    }

    /// The length in bytes.
    pub fn size(&self) -> u64 {
        self.place.size
    }

    /// Opens the blob for reading, at its start. Waits while another reader of the same medium exists; a thread that has one
    /// must not open another.
    pub fn open(&self) -> io::Result<MediumReader> {
        let turn = self.medium.lock().wait();
        let opened = self.medium.open(&self.place)?;
        Ok(MediumReader::new(
            self.medium.clone(),
            opened,
            self.place.size,
            turn,
        ))
    }

    /// Whether no read of the medium has ended for [`SILENCE`](super::SILENCE) although one waits. Then it is not asked again.
    pub fn gives_up_silent(&self) -> bool {
        self.medium.give_up_if_silent(Instant::now())
    }

    /// Notes that the bytes are damaged, unreadable or not what their name says. The medium does not offer them again.
    pub fn distrust(&self, why: impl Display) {
        self.medium.distrust(self.digest, why);
    }
}
