//! Blobs that are fetched before their turn, so that the link does not idle while the images that name others are unpacked,
//! committed and read.
//!
//! They only go into the spool, each by way of the [`Fetcher`] that the pull uses too: who wants a blob that is on its way
//! waits for it, and who wants one that is here has it at once. So nothing depends on this, and nothing comes twice, as long
//! as nothing is begun any more when blobs begin to leave the spool for the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt as _, stream};
use tokio::task::JoinSet;

use crate::cancel::Cancel;
use crate::fetch::{BlobRequest, Fetcher};

/// Ended when dropped; what came stays in the spool.
pub(super) struct Advance {
    goes_on: Arc<AtomicBool>,
    /// Has one task.
    _tasks: JoinSet<()>,
}

impl Advance {
    /// Begins to fetch, in this order, so many at a time.
    pub(super) fn begin(
        requests: Vec<BlobRequest>,
        at_once: usize,
        fetcher: Arc<Fetcher>,
        halt: Cancel,
    ) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let may_begin = Arc::clone(&goes_on);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let fetch = async |request: BlobRequest| {
                // The fetcher knows of it before anything is waited for, so there is no moment between the two.
                if may_begin.load(Ordering::Acquire) {
                    let digest = request.digest;
                    // The pull will find out for itself, and say what that means.
                    if let Err(error) = fetcher.fetch(request, &halt).await {
                        tracing::debug!("`{digest}` could not be fetched before its turn: {error}");
                    }
                }
            };
            let fetches = stream::iter(requests).map(fetch);
            fetches.buffer_unordered(at_once).collect::<()>().await;
        });
        Self {
            goes_on,
            _tasks: tasks,
        }
    }

    /// What is on its way still comes.
    pub(super) fn begin_no_more(&self) {
        self.goes_on.store(false, Ordering::Release);
    }
}
