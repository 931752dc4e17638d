//! Makes a layer from its tar on a medium: unpacks it there, without a copy in the spool.

use std::io::{self, Read, Seek, SeekFrom};
use std::pin::pin;
use std::sync::Arc;

use tokio::time::timeout;

use super::SourceFailure;
use super::source_unpack::SourceUnpack;
use crate::job::pull::layer_staging::LayerStaging;
use crate::media::{MediumReader, SILENCE};
use crate::plan::{LayerSource, LayerTask, MediumTar};
use crate::report::Event;
use crate::store::StagedLayer;

impl LayerStaging<'_> {
    /// Unpacks a layer from its tar on a medium. A medium whose tar is wrong does not offer it again.
    pub(super) async fn stage_from_medium_tar(
        &self,
        tar: &MediumTar,
        task: &LayerTask,
    ) -> Result<StagedLayer, SourceFailure> {
        let puller = self.puller;
        let unusable = |reason: &str| SourceFailure::Unusable {
            reason: reason.to_owned(),
            bytes: 0,
        };
        let (registries, wanted) = (puller.fetcher.registries(), tar.clone());
        let found = registries.in_media(move |media| {
            let mut tars = media.layer_tars(wanted.diff_id).into_iter();
            tars.find(|tar| tar.name() == &*wanted.medium && tar.size() == wanted.size)
        });
        let Some(found) = found.await else {
            return Err(unusable("the medium does not have it any more"));
        };
        let (opened, unpack) = (found.clone(), SourceUnpack::new(puller, task));
        let is_authenticated = task.authenticated;
        let mut staging = pin!(self.on_unpack_thread(move || match opened.open() {
            Ok(reader) => unpack.unpack(MediumTarReader(reader), |staged| {
                staged.with_unseen_blob(is_authenticated)
            }),
            Err(error) => Ok(Err(error.to_string())),
        }));
        let staged = loop {
            match timeout(SILENCE, &mut staging).await {
                Ok(staged) => break staged.map_err(|error| SourceFailure::of(error, 0))?,
                // The thread that waits for it is left behind.
                Err(_elapsed) if found.gives_up_silent() => break Err("it does not answer".to_owned()),
                Err(_elapsed) => {}
            }
        };
        if let Err(reason) = &staged {
            found.distrust(reason);
        }
        registries.report_media_faults();
        let staged = staged.map_err(|reason| unusable(&reason))?;
        let (blob, bytes) = LayerSource::MediumTar(tar.clone()).download();
        for event in [
            Event::BlobStarted {
                blob,
                size: bytes,
                resumed: 0,
            },
            Event::BlobCopied {
                blob,
                medium: Arc::clone(&tar.medium),
                bytes,
            },
            Event::BlobVerified { blob },
        ] {
            puller.observer.observe(event);
        }
        Ok(staged)
    }
}

/// Reads the tar. An error of the medium is not one of the node's disk, which would end the run.
struct MediumTarReader(MediumReader);

impl Read for MediumTarReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(io::Error::other)
    }
}

impl Seek for MediumTarReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to).map_err(io::Error::other)
    }
}
