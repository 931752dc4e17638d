//! The same work once, however many ask for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use crate::oci::Digest;
use crate::spool::VerifiedBlob;

use super::FetchError;

/// Downloads under way, by the digest of the blob and the size that is expected of it: a manifest that lies about
/// the size must not spoil the blob for those that do not.
#[derive(Default)]
pub(super) struct Once(Mutex<HashMap<(Digest, u64), Arc<Outcome>>>);

/// What came of one download, once it is known.
#[derive(Default)]
struct Outcome(OnceCell<Result<VerifiedBlob, FetchError>>);

impl Once {
    /// Does `work`, or waits for the one who does it already. If that one goes away before the end, another of
    /// those who wait does its own.
    pub(super) async fn run(
        &self,
        key: (Digest, u64),
        work: impl Future<Output = Result<VerifiedBlob, FetchError>>,
    ) -> Result<VerifiedBlob, FetchError> {
        let outcome = self.outcomes().entry(key).or_default().clone();
        let result = outcome.0.get_or_init(|| work).await.clone();
        // Whoever asks later asks anew: the blob may have been removed since, and a fault may have passed.
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
