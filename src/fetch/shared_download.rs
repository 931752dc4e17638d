//! Shares one download among all callers that request the same blob at the same time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use crate::oci::Digest;
use crate::spool::VerifiedBlob;

use super::FetchError;

/// Downloads under way, by digest and expected size: a manifest with a wrong size must not break the download of the others.
#[derive(Default)]
pub(super) struct Once(Mutex<HashMap<(Digest, u64), Arc<Outcome>>>);

/// The result of one download, once it is known.
#[derive(Default)]
struct Outcome(OnceCell<Result<VerifiedBlob, FetchError>>);

impl Once {
    /// Runs `work`, or waits for the same work of another caller. If that caller is dropped before the end, one of the waiting
    /// callers runs its own.
    pub(super) async fn run(
        &self,
        key: (Digest, u64),
        work: impl Future<Output = Result<VerifiedBlob, FetchError>>,
    ) -> Result<VerifiedBlob, FetchError> {
        let outcome = self.outcomes().entry(key).or_default().clone();
        let result = outcome.0.get_or_init(|| work).await.clone();
        // A later call runs anew: the blob may have been removed since, and an error may have passed.
        let mut outcomes = self.outcomes();
        if outcomes
            .get(&key)
            .is_some_and(|known| Arc::ptr_eq(known, &outcome))
        {
            outcomes.remove(&key);
        }
        result
    }

    fn outcomes(&self) -> MutexGuard<'_, HashMap<(Digest, u64), Arc<Outcome>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
