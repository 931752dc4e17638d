//! Copies a blob from media into the spool, before any registry is asked.
//!
//! # Design
//!
//! ```text
//! medium ─→ MediumReader ─→ [channel, CHUNKS] ─→ BlobCopied ─→ [channel] ─→ Partial::write ─→ page cache
//!              thread                               task                       thread
//! ```
//!
//! So a medium is read while the bytes before are hashed and written. A copy continues what the spool has, and needs no slot,
//! because it does not use the link. The digest decides, as for a download:
//!
//! ```text
//! the end, right digest                    done
//! the end, wrong digest, all of one medium the medium is not asked for this blob again, and the next one starts at 0
//! the end, wrong digest, several origins   once more from 0, so that the next wrong digest has one culprit
//! a read error, or the medium is silent    what was copied stays, and the next medium or a registry continues
//! ```

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::media::{MediumBlob, SILENCE};
use crate::report::{Event, Span};
use crate::spool::{Partial, SpoolError, VerifiedBlob};

use super::FetchError;
use super::transfer::{Transfer, finished, on_disk};

/// Bytes of one read: enough for the full rate of a disk.
const CHUNK: usize = 512 << 10;

/// Chunks that wait between the reader and the task. The channel to the disk has more.
const CHUNKS: usize = 2;

/// How often it is checked whether the medium is silent.
const CHECK: Duration = Duration::from_secs(1);

/// The result of asking all media.
pub(super) enum Copied {
    /// The spool has the blob.
    Whole(VerifiedBlob),
    /// The registries have to send what follows.
    Rest(Partial),
}

/// Copies what follows the bytes of `partial` from the media that have the blob.
pub(super) async fn copy(transfer: &Transfer<'_>, partial: Partial) -> Result<Copied, FetchError> {
    let blob = transfer.request.digest;
    let found = transfer.registries.in_media(move |media| media.blobs(blob)).await;
    if found.is_empty() {
        return Ok(not_on_media(transfer, partial));
    }
    let copied = copy_from_all(transfer, found, partial).await;
    transfer.registries.report_media_faults();
    transfer.observer.observe(match &copied {
        Ok(Copied::Whole(_)) => Event::BlobVerified { blob },
        Ok(Copied::Rest(_)) | Err(_) => Event::BlobAbandoned { blob },
    });
    match copied? {
        Copied::Rest(partial) => Ok(not_on_media(transfer, partial)),
        whole => Ok(whole),
    }
}

/// Counts what is downloaded if the plan expected it from a medium.
fn not_on_media(transfer: &Transfer<'_>, partial: Partial) -> Copied {
    if transfer.request.is_on_medium {
        let bytes = partial.size().saturating_sub(partial.offset());
        transfer.stats.add_not_on_media(bytes);
        let blob = transfer.request.digest;
        transfer.observer.observe(Event::BlobNotOnMedia { blob, bytes });
    }
    Copied::Rest(partial)
}

async fn copy_from_all(
    transfer: &Transfer<'_>,
    found: Vec<MediumBlob>,
    mut partial: Partial,
) -> Result<Copied, FetchError> {
    let (digest, size) = (transfer.request.digest, transfer.request.size);
    for blob in found {
        if blob.size() != size {
            blob.distrust(format!(
                "it has {} bytes, and the manifest states {size}",
                blob.size()
            ));
            continue;
        }
        loop {
            let is_own = partial.offset() == 0;
            let (copied, read) = copy_from(transfer, &blob, partial).await?;
            partial = copied;
            if let Err(why) = read {
                blob.distrust(why);
                break;
            }
            let wrong = match on_disk(move || partial.finish()).await {
                Ok(verified) => return Ok(Copied::Whole(verified)),
                Err(SpoolError::Mismatch { found, .. }) => found,
                Err(error) => return Err(error.into()),
            };
            // The spool has removed the file.
            let spool = transfer.spool.clone();
            partial = on_disk(move || spool.partial(&digest, size)).await?;
            if is_own {
                blob.distrust(format!("its bytes have the digest {wrong}"));
                break;
            }
        }
    }
    Ok(Copied::Rest(partial))
}

/// Appends what the medium has. The outer error ends the fetch; the inner one is the medium's.
async fn copy_from(
    transfer: &Transfer<'_>,
    blob: &MediumBlob,
    partial: Partial,
) -> Result<(Partial, Result<(), String>), FetchError> {
    let medium: Arc<str> = blob.name().into();
    if blob.gives_up_silent() {
        return Ok((partial, Err("the medium does not answer".to_owned())));
    }
    let offset = partial.offset();
    let (sender, mut chunks) = mpsc::channel(CHUNKS);
    let reader = blob.clone();
    // It ends when the channel is closed. A medium that never answers keeps it.
    drop(tokio::task::spawn_blocking(move || {
        if let Err(error) = read(&reader, offset, &sender) {
            // The task may not wait for it any more.
            let _ = sender.blocking_send(Err(error));
        }
    }));
    let (written, writer) = transfer.start_writer(partial);
    let read = async {
        loop {
            let chunk = tokio::select! {
                biased;
                stopped = transfer.cancel.stopped() => return Err(FetchError::from(stopped)),
                chunk = timeout(CHECK, chunks.recv()) => chunk,
            };
            let chunk = match chunk {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(Some(Err(error))) => return Ok(Err(error.to_string())),
                Ok(None) => return Ok(Ok(())),
                Err(_elapsed) if blob.gives_up_silent() => {
                    return Ok(Err(format!("no bytes arrived for {}", Span(SILENCE))));
                }
                Err(_elapsed) => continue,
            };
            match chunk {
                Chunk::Opened => transfer.observer.observe(Event::BlobStarted {
                    blob: transfer.request.digest,
                    size: transfer.request.size,
                    resumed: offset,
                }),
                Chunk::Bytes(bytes) => {
                    transfer.observer.observe(Event::BlobCopied {
                        blob: transfer.request.digest,
                        medium: Arc::clone(&medium),
                        bytes: bytes.len() as u64,
                    });
                    if written.send(bytes).await.is_err() {
                        // The writer has an error.
                        return Ok(Ok(()));
                    }
                }
            }
        }
    };
    let read = read.await;
    drop(written);
    let partial = finished(writer).await?;
    let read = match read? {
        // The medium's file became shorter.
        Ok(()) if partial.offset() < partial.size() => Err(format!("it ends at byte {}", partial.offset())),
        read => read,
    };
    Ok((partial, read))
}

/// What a reader sends.
enum Chunk {
    /// It is its turn.
    Opened,
    Bytes(Bytes),
}

/// Reads the blob from `offset` on, when no other blob of the medium is read. Ends early if nobody receives.
fn read(blob: &MediumBlob, offset: u64, sender: &mpsc::Sender<io::Result<Chunk>>) -> io::Result<()> {
    let mut reader = blob.open()?;
    reader.seek(SeekFrom::Start(offset))?;
    let mut is_received = sender.blocking_send(Ok(Chunk::Opened)).is_ok();
    while is_received {
        let mut buffer = vec![0; CHUNK];
        let length = match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        buffer.truncate(length);
        is_received = sender.blocking_send(Ok(Chunk::Bytes(buffer.into()))).is_ok();
    }
    Ok(())
}
