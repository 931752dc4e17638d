//! Opens the node's image store and the spool, waits while another agent uses the spool, and takes snapshots of both.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::config::JobConfig;
use super::error::JobError;
use super::snapshot::Snapshot;
use super::stored_signatures::StoredSignatureChecker;
use super::{Mode, run_blocking};
use crate::cancel::Cancel;
use crate::oci::Reference;
use crate::report::{Event, Observer, Printable, Size};
use crate::spool::{Spool, SpoolError};
use crate::store::Store;
use crate::write_back::WriteQueue;

/// How often a waiting run tries to lock the spool.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often it logs that it waits.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The store and the spool of one run.
pub(super) struct NodeStorage<'a> {
    config: &'a JobConfig,
    mode: Mode,
    store: Arc<Store>,
    /// Shared by the spool and the stage.
    write_queue: WriteQueue,
    /// Locked from the start of a run that pulls everything, so that a second agent fails or waits at once.
    spool: Option<Spool>,
    /// Other modes lock the spool with their first pull, and keep it: a second lock of the same process would fail.
    late_spool: Option<Spool>,
}

impl<'a> NodeStorage<'a> {
    /// Opens the store, and the spool if the mode pulls everything. A run that never gives up waits for another agent that
    /// has locked the spool.
    pub(super) async fn open(
        config: &'a JobConfig,
        mode: Mode,
        cancel: &Cancel,
    ) -> Result<NodeStorage<'a>, JobError> {
        let mut logged: Option<Instant> = None;
        let write_queue = WriteQueue::start(config.io_budget);
        loop {
            let store = Arc::new(Store::open(&config.graph_root, &config.storage_conf)?);
            let opened = |spool| NodeStorage {
                config,
                mode,
                store,
                write_queue: write_queue.clone(),
                spool,
                late_spool: None,
            };
            if !mode.pulls_all() {
                return Ok(opened(None));
            }
            match Spool::open_with(&config.spool, write_queue.clone()) {
                Err(error @ SpoolError::Busy { .. }) if config.never_gives_up() => {
                    if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
                        tracing::warn!("waiting: {}", Printable(&error.to_string()));
                        logged = Some(Instant::now());
                    }
                    cancel.sleep(RETRY_INTERVAL).await?;
                }
                spool => return Ok(opened(Some(spool?))),
            }
        }
    }

    pub(super) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The queue of the run.
    pub(super) fn write_queue(&self) -> &WriteQueue {
        &self.write_queue
    }

    /// The spool, if it was locked when the run started.
    pub(super) fn locked_spool(&self) -> Option<&Spool> {
        self.spool.as_ref()
    }

    /// The spool, locked now if it is not locked yet.
    pub(super) fn lock_spool(&mut self) -> Result<Spool, JobError> {
        if let Some(spool) = self.spool.as_ref().or(self.late_spool.as_ref()) {
            return Ok(spool.clone());
        }
        let spool = Spool::open_with(&self.config.spool, self.write_queue.clone())?;
        self.late_spool = Some(spool.clone());
        Ok(spool)
    }

    /// Takes a snapshot of the store and the spool.
    pub(super) async fn snapshot(
        &self,
        references: &[Reference],
        checker: &StoredSignatureChecker,
    ) -> Result<Snapshot, JobError> {
        let (store, spool, mode) = (Arc::clone(&self.store), self.spool.clone(), self.mode);
        let (references, platform) = (references.to_vec(), self.config.platform.clone());
        let (path, checker) = (self.config.spool.clone(), checker.clone());
        run_blocking(move || {
            let spooled = match (spool, mode) {
                (Some(spool), _) => spool.list()?,
                (None, Mode::Run | Mode::Plan | Mode::Repair) => Spool::list_unlocked(&path)?,
                (None, Mode::Verify) => Vec::new(),
            };
            Snapshot::of(&store, spooled, &references, &platform, &checker)
        })
        .await
    }

    /// Removes what killed runs left in the store. Runs that pull nothing do this too, because the leftovers may be as
    /// large as the images that those runs pulled.
    pub(super) async fn remove_leftovers(&self) -> Result<(), JobError> {
        let store = Arc::clone(&self.store);
        run_blocking(move || {
            store.remove_leftovers();
            Ok(())
        })
        .await
    }

    /// Warns about what killed runs left in the store, in a mode that removes nothing.
    pub(super) async fn warn_of_leftovers(&self, observer: &dyn Observer) -> Result<(), JobError> {
        let store = Arc::clone(&self.store);
        for (stage, bytes) in run_blocking(move || Ok(store.dead_stages())).await? {
            let message = format!(
                "`{}` takes {} and was left by a run that was stopped or killed\nhint: the next `run` removes it",
                stage.display(),
                Size(bytes)
            );
            observer.observe(Event::Warned { message });
        }
        Ok(())
    }

    /// Syncs every layer of the requested images, so that a reported success survives a power loss even for layers that
    /// another program stored.
    pub(super) async fn make_durable(&self, snapshot: &Snapshot) -> Result<(), JobError> {
        let (store, layers) = (Arc::clone(&self.store), snapshot.layers());
        run_blocking(move || Ok(store.make_durable(&layers)?)).await
    }
}
