//! Runs one job from the flags to its ending: cluster, settings, job, pinning.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::runtime::Runtime;

use spoke_precache::cancel::Cancel;
use spoke_precache::cli::{Flags, LogFormat};
use spoke_precache::cluster::{Api, ClusterInfo, ClusterNeeds, ClusterReporter, ReleaseNeeds};
use spoke_precache::exit_code::Ending;
use spoke_precache::job::{self, JobConfig, JobError, Mode, Outcome};
use spoke_precache::pinning::{self, PinOutcome, PinTarget};
use spoke_precache::report::{Event, EventLog, Fanout, ImageNames, Observer, TalmLog, TimeLeft};
use spoke_precache::settings;

use crate::exit_handler::{ExitHandler, GRACE};

/// What a job needs of the process.
pub(crate) struct Session<'a> {
    flags: &'a Flags,
    exit: &'a ExitHandler,
    runtime: &'a Runtime,
    cancel: &'a Cancel,
    mode: Mode,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        flags: &'a Flags,
        exit: &'a ExitHandler,
        runtime: &'a Runtime,
        cancel: &'a Cancel,
    ) -> Self {
        Self {
            flags,
            exit,
            runtime,
            cancel,
            mode: exit.mode,
        }
    }

    /// Resolves the settings and runs the job.
    pub(crate) fn run(&self) -> (Ending, Option<Outcome>) {
        let api = self.connect_to_cluster();
        let cluster = self.runtime.block_on(self.ask_cluster(api.as_deref()));
        let observer = self.observers(api.as_ref(), &cluster);
        let config = match settings::job_config(self.flags, &cluster) {
            Ok(config) => config,
            Err(error) => {
                let failure = error.failure();
                observer.observe(Event::StepEnded {
                    step: error.step(),
                    ok: false,
                    reason: failure.reason(),
                    message: error.to_string(),
                });
                return (Ending::Failed(failure), None);
            }
        };
        if let Some(end) = config.known_end {
            // It is set only here.
            let _ = self.exit.job_end.set(end);
        }
        self.announce_rate_limit(&config, &observer);
        let (outcome, ending) = match self.runtime.block_on(self.until_stopped(&config, &observer)) {
            Ok(done) => done,
            Err(error) => return (error.ending(), None),
        };
        let mut warnings = Vec::new();
        let mut is_pinned = self.flags.cluster.pin == Some(PinTarget::Api);
        if ending == Ending::Complete && matches!(self.mode, Mode::Run | Mode::Repair) {
            let kept = self.runtime.block_on(self.pin(&config, &outcome, api.as_deref()));
            (is_pinned, warnings) = (kept.is_pinned, kept.warnings);
        }
        if self.mode != Mode::Verify {
            let images = outcome.plan.images.iter().map(|image| image.reference.clone());
            warnings.extend(cluster.pull_verification.warning(&images.collect::<Vec<_>>()));
            let os_images = outcome.os_images.as_ref();
            warnings.extend(os_images.and_then(|images| images.note(is_pinned)));
        }
        for message in warnings {
            observer.observe(Event::Warned { message });
        }
        (ending, Some(outcome))
    }

    fn observers(&self, api: Option<&Arc<Api>>, cluster: &ClusterInfo) -> Arc<dyn Observer> {
        let names = match self.exit.display.log_format {
            LogFormat::Text => ImageNames::Short,
            LogFormat::Json => ImageNames::Field,
            LogFormat::Talm => ImageNames::Reference,
        };
        let mut observers: Vec<Arc<dyn Observer>> =
            vec![self.exit.recorder.clone(), Arc::new(EventLog::new(names))];
        if self.exit.display.log_format == LogFormat::Talm {
            observers.push(Arc::new(TalmLog::default()));
        }
        match self.exit.console.progress() {
            Ok(progress) => observers.extend(progress),
            Err(error) => tracing::warn!("cannot show progress: {error}"),
        }
        if let Some(api) = api
            && matches!(self.mode, Mode::Run | Mode::Repair)
        {
            let _entered = self.runtime.enter();
            let reporter = Arc::new(ClusterReporter::start(Arc::clone(api), cluster.owner.clone()));
            observers.push(reporter.clone());
            // It is set only here.
            let _ = self.exit.cluster_reporter.set(reporter);
        }
        Arc::new(Fanout(observers))
    }

    /// The client of the cluster's API, if there is an API; `verify` does not need it.
    fn connect_to_cluster(&self) -> Option<Arc<Api>> {
        let account = settings::service_account(self.flags).filter(|_| self.mode != Mode::Verify)?;
        match Api::new(account) {
            Ok(api) => Some(Arc::new(api)),
            Err(error) => {
                tracing::warn!("continuing without the cluster's API: {error}");
                None
            }
        }
    }

    /// What the cluster's API returns in time.
    async fn ask_cluster(&self, api: Option<&Api>) -> ClusterInfo {
        let Some(api) = api else {
            return ClusterInfo::default();
        };
        let needs = ClusterNeeds {
            kubelet: self.flags.bounds.image_gc_high_threshold.is_none(),
            release: ReleaseNeeds {
                keys: self.flags.signatures.release_keys.is_empty(),
                signatures: self.flags.signatures.signature_stores.is_empty(),
            },
        };
        let patience = settings::cluster_patience(self.flags);
        tokio::select! {
            cluster = ClusterInfo::query(api, needs, patience) => cluster,
            // The job stops by the same signal.
            _ = self.cancel.stopped() => ClusterInfo::default(),
        }
    }

    fn announce_rate_limit(&self, config: &JobConfig, observer: &Arc<dyn Observer>) {
        let limit = self.exit.limit.get_or_init(|| config.registries.limit.clone());
        if let Some(report) = limit.report(Timestamp::now()) {
            let limit = limit.clone();
            observer.observe(Event::RateLimited {
                limit: report,
                rest: TimeLeft::new(move |bytes, rate| limit.remaining_time(bytes, rate, Timestamp::now())),
            });
        }
    }

    /// Runs the job until it ends, or until [`GRACE`] after a stop.
    async fn until_stopped(
        &self,
        config: &JobConfig,
        observer: &Arc<dyn Observer>,
    ) -> Result<(Outcome, Ending), JobError> {
        if let Some(deadline) = config.deadline
            && let Err(error) = self.cancel.stop_at(deadline)
        {
            tracing::warn!("the deadline will not end the run: {error}");
        }
        let grace_is_over = async {
            let stopped = self.cancel.stopped().await;
            tokio::time::sleep(GRACE).await;
            stopped
        };
        tokio::select! {
            result = job::run(config, self.mode, observer, self.cancel) => {
                let outcome = result?;
                let ending = outcome.ending(self.cancel);
                Ok((outcome, ending))
            }
            stopped = grace_is_over => Err(stopped.into()),
        }
    }

    async fn pin(&self, config: &JobConfig, outcome: &Outcome, api: Option<&Api>) -> PinOutcome {
        let target = self.flags.cluster.pin.as_ref();
        tokio::select! {
            outcome = pinning::pin_images(config, outcome, target, api, self.cancel) => outcome,
            _ = self.cancel.stopped() => PinOutcome {
                is_pinned: false,
                warnings: vec!["the run was stopped before the images were pinned".to_owned()],
            },
        }
    }
}
