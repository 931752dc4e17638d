//! Runs one job from the flags to its ending: cluster, settings, job, pinning.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::runtime::Runtime;

use spoke_precache::cancel::{Cancel, Stopped};
use spoke_precache::cli::{Flags, LogFormat};
use spoke_precache::cluster::{
    Api, ClusterError, ClusterInfo, ClusterNeeds, ClusterReporter, PoolPins, ReleaseNeeds,
};
use spoke_precache::exit_code::Ending;
use spoke_precache::job::{self, JobConfig, JobError, Mode, OsImages, Outcome, UpgradeConfig};
use spoke_precache::pinning::{self, PinOutcome, PinTarget};
use spoke_precache::report::{
    Condition, Event, EventLog, Fanout, ImageNames, Observer, Step, TalmLog, TimeLeft,
};
use spoke_precache::run_history::RunRecord;
use spoke_precache::settings::{self, StoreSettings};
use spoke_precache::spec::VersionSpec;

use crate::exit_handler::{ExitHandler, GRACE};

/// What a job needs of the process.
pub(crate) struct Session<'a> {
    flags: &'a Flags,
    exit: &'a ExitHandler,
    runtime: &'a Runtime,
    cancel: &'a Cancel,
    mode: Mode,
    for_upgrade: bool,
}

impl<'a> Session<'a> {
    pub(crate) fn new(
        flags: &'a Flags,
        for_upgrade: bool,
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
            for_upgrade,
        }
    }

    /// Resolves the settings and runs the job.
    pub(crate) fn run(&self) -> (Ending, Option<Outcome>) {
        let (api, mut cluster) = match self.connect_to_cluster() {
            Ok(api) => {
                let cluster = self.runtime.block_on(self.ask_cluster(api.as_deref()));
                (api, cluster)
            }
            Err(error) => (None, ClusterInfo::without(error)),
        };
        if cluster.kubelet.is_none() {
            cluster.kubelet = settings::host_kubelet(self.flags);
        }
        let observer = self.observers(api.as_ref(), &cluster);
        let mut config = match settings::job_config(self.flags, &cluster) {
            Ok(config) => JobConfig {
                upgrade: self.upgrade_config(api.as_deref(), &cluster),
                ..config
            },
            Err(error) => {
                // The API was not asked to the end.
                if let (Some(reason), true) = (self.cancel.reason(), self.flags.what.release.from_cluster) {
                    return (Ending::Stopped(reason), None);
                }
                let failure = error.failure();
                observer.observe(Event::StepEnded {
                    step: error.step(),
                    ok: false,
                    reason: error.reason(),
                    message: error.to_string(),
                });
                if let Ok(store) = StoreSettings::resolve(self.flags) {
                    self.record(&store.spool, None);
                }
                return (Ending::Failed(failure), None);
            }
        };
        let observer = match self.record(&config.spool, Some(&config.spec)) {
            Some(record) => Arc::new(Fanout(vec![observer, Arc::new(record.clone())])),
            None => observer,
        };
        if let Some(why) = &config.nothing_requested {
            self.report_nothing(why, &config.warnings, observer.as_ref());
            return (Ending::Complete, None);
        }
        if !config.only_used.is_pinned
            && config.spec.platform_image.is_some()
            && (config.only_used.is_requested || self.mode == Mode::Plan)
        {
            let pools = self.pools(api.as_deref());
            config.only_used.is_pinned = pools.is_some_and(|pools| !pools.sets.is_empty());
        }
        if !matches!(self.mode, Mode::Run | Mode::Repair) {
            // The upgrade ends only what pulls images before it. `plan` states whether they can be pulled in time.
            if let Some(upgrade) = config.end.upgrade.take() {
                // It is set only here.
                let _ = self.exit.upgrade.set(upgrade.time);
            }
        }
        if let Some(end) = config.end.job {
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
            let kubelet = cluster.kubelet.unwrap_or_default();
            warnings.extend(kubelet.pull_verification.warning(&images.collect::<Vec<_>>()));
            let is_asked = is_pinned || outcome.os_images.as_ref().is_some_and(OsImages::depend_on_pins);
            let pools = is_asked.then(|| self.pools(api.as_deref())).flatten();
            let has_sets = pools.as_ref().is_some_and(|pools| !pools.sets.is_empty());
            if let Some(warning) = pools.filter(|_| is_pinned).and_then(|pools| pools.not_selected()) {
                is_pinned = false;
                warnings.push(warning);
            }
            if let Some(images) = &outcome.os_images {
                warnings.extend(images.note(is_pinned || has_sets));
            }
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

    /// The record of this run in the history of its spool, if it pulls.
    fn record(&self, spool: &Path, spec: Option<&VersionSpec>) -> Option<&RunRecord> {
        let is_recorded = matches!(self.mode, Mode::Run | Mode::Repair);
        let record = || RunRecord::new(spool, spec, Arc::clone(&self.exit.recorder));
        is_recorded.then(|| self.exit.record.get_or_init(record))
    }

    /// What the cluster says about the upgrade, with `--for-upgrade`.
    fn upgrade_config(&self, api: Option<&Api>, cluster: &ClusterInfo) -> Option<UpgradeConfig> {
        let pool_pins = || match api {
            None => Err("there is no service account for the cluster's API".to_owned()),
            Some(api) => self.ask(PoolPins::query(api)),
        };
        self.for_upgrade.then(|| UpgradeConfig {
            kubelet: cluster.kubelet.clone().unwrap_or_default(),
            pool_pins: pool_pins(),
        })
    }

    /// The pools of this node and the names of their PinnedImageSets, if the API says.
    fn pools(&self, api: Option<&Api>) -> Option<PoolPins> {
        let pools = self.ask(PoolPins::names(api?));
        pools
            .inspect_err(|error| tracing::debug!("the pools of this node are unknown: {error}"))
            .ok()
    }

    /// The API's answer, or why there is none.
    fn ask<T>(&self, question: impl Future<Output = Result<T, ClusterError>>) -> Result<T, String> {
        self.runtime.block_on(async {
            tokio::select! {
                answer = question => answer.map_err(|error| error.to_string()),
                Stopped(_) = self.cancel.stopped() => Err("the run was stopped".to_owned()),
            }
        })
    }

    /// Reports a run that has nothing to do. It opens no store: nothing is claimed about the images that the node has.
    fn report_nothing(&self, why: &str, warnings: &[String], observer: &dyn Observer) {
        for message in warnings.iter().cloned() {
            observer.observe(Event::Warned { message });
        }
        observer.observe(Event::StepStarted(Step::Spec));
        observer.observe(Event::StepEnded {
            step: Step::Spec,
            ok: true,
            reason: Condition::NOTHING_REQUESTED,
            message: why.to_owned(),
        });
    }

    /// The client of the cluster's API, if there is an API. `verify` needs it only for flags whose values come from it.
    fn connect_to_cluster(&self) -> Result<Option<Arc<Api>>, ClusterError> {
        let what = &self.flags.what;
        let is_needed =
            self.mode != Mode::Verify || what.only_used || what.release.from_cluster || self.for_upgrade;
        let account = settings::service_account(self.flags).filter(|_| is_needed);
        let api = account.map(Api::new).transpose();
        if let Err(error) = &api
            && !what.release.from_cluster
        {
            tracing::warn!("continuing without the cluster's API: {error}");
        }
        Ok(api?.map(Arc::new))
    }

    /// What the cluster's API returns in time.
    async fn ask_cluster(&self, api: Option<&Api>) -> ClusterInfo {
        let Some(api) = api else {
            return ClusterInfo::default();
        };
        let needs = ClusterNeeds {
            kubelet: self.flags.bounds.image_gc_high_threshold.is_none() || self.for_upgrade,
            // `verify` checks no signature of a release.
            release: ReleaseNeeds {
                keys: self.mode != Mode::Verify && self.flags.signatures.release_keys.is_empty(),
                signatures: self.mode != Mode::Verify && self.flags.signatures.signature_stores.is_empty(),
            },
            used_images: self.flags.what.only_used,
            manifest_filters: self.mode == Mode::Plan,
            upgrade: self.flags.what.release.from_cluster,
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
        if let Some((at, reason)) = config.end.stop()
            && let Err(error) = self.cancel.stop_at(at, reason)
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
