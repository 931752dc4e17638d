//! Reserves disk space for what is downloaded because a source of a layer failed, for instance a delta.
//!
//! A plan needs space for the first source of a layer, not for its other sources and its whole blob. Their space comes from what
//! the plan leaves below the kubelet's threshold: beyond it, the kubelet would remove the images that are being pulled.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use crate::exit_code::Failure;
use crate::job::error::{Reason, TaskError};
use crate::oci::Digest;
use crate::report::Size;
use crate::spool::{Spool, SpoolError};
use crate::store::unpack::{SpaceBudget, TakenSpace};

/// The space of blobs that the plan does not contain.
pub(super) struct FallbackSpace {
    spool: Spool,
    budget: Arc<SpaceBudget>,
    /// Until a blob is removed from the spool.
    taken: Mutex<HashMap<Digest, TakenSpace>>,
}

impl FallbackSpace {
    pub(super) fn new(spool: Spool, budget: Arc<SpaceBudget>) -> Self {
        Self {
            spool,
            budget,
            taken: Mutex::default(),
        }
    }

    /// Reserves space for those bytes of a blob that are not in the spool, once for each blob.
    pub(super) fn reserve(&self, blob: Digest, size: u64) -> Result<(), TaskError> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let Entry::Vacant(vacant) = taken.entry(blob) else {
            return Ok(());
        };
        let spooled = self.spooled_bytes(&blob);
        let spooled = spooled.map_err(|error| TaskError::Host(error.into()))?;
        let missing = size.saturating_sub(spooled);
        match self.budget.take(missing) {
            Some(space) => {
                vacant.insert(space);
                Ok(())
            }
            None => Err(TaskError::Image(Reason {
                failure: Failure::Space,
                message: format!(
                    "what it was to be made from cannot be used, and there is not enough disk space for `{blob}` instead, {}\nhint: free more \
                     space than that and run again, or leave out the image",
                    Size(missing)
                ),
            })),
        }
    }

    /// Notes that a blob was removed from the spool.
    pub(super) fn release(&self, blob: &Digest) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(blob);
    }

    fn spooled_bytes(&self, blob: &Digest) -> Result<u64, SpoolError> {
        let entries = self.spool.list()?;
        let mut of_blob = entries.iter().filter(|entry| entry.digest == *blob);
        Ok(of_blob.next().map_or(0, |entry| entry.bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn space_is_reserved_once_for_a_blob_and_not_for_what_is_spooled() {
        let directory = tempfile::tempdir().unwrap();
        let [first, second, third] = [b"1", b"2", b"3"].map(|bytes| Digest::of(bytes));
        let spool = Spool::open(directory.path()).unwrap();
        std::fs::write(directory.path().join(format!("{second}.partial")), [0; 60]).unwrap();
        let budget = Arc::new(SpaceBudget::new("/".into(), 100, 0));
        let space = FallbackSpace::new(spool, budget);
        assert!(space.reserve(first, 60).is_ok());
        assert!(space.reserve(first, 60).is_ok());
        assert!(space.reserve(second, 100).is_ok());
        let Err(TaskError::Image(reason)) = space.reserve(third, 1) else {
            panic!("no space is left");
        };
        assert_eq!(reason.failure, Failure::Space);
        space.release(&first);
        assert!(space.reserve(third, 60).is_ok());
    }
}
