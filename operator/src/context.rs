//! The state that all reconciles share.

use std::sync::Arc;

use kube::Client;
use kube::runtime::events::{Recorder, Reporter};

use crate::apply::PodGroupDiscovery;
use crate::build::JobReference;
use crate::config::OperatorConfig;
use crate::folders::Folders;
use crate::job::CreatedAttempt;
use crate::kueue::WorkloadCache;
use crate::observe::{LogTails, OtherOperators, OwnedObjects, PodCache, StageStatusPoller};
use crate::rejection::{Rejection, Rejections};
use crate::repair_history::RepairHistory;
use crate::status::{JobEvent, RecoveryTimes, object_reference};
use crate::sync::PerJob;
use crate::telemetry::Telemetry;
use crate::triggers::Triggers;
use crate::write_cache::WriteCache;

/// The state that all reconciles share.
pub(crate) struct Context {
    /// The API client.
    pub client: Client,
    /// The operator's flags.
    pub config: OperatorConfig,
    /// The observed pods, which the watch updates.
    pub pod_cache: PodCache,
    /// The jobs' Services, NetworkPolicies and ConfigMaps, which the watches update.
    pub owned_objects: OwnedObjects,
    /// The Workloads of jobs with a queue, which the watch updates.
    pub workloads: WorkloadCache,
    /// The field manager of this operator's writes.
    pub field_manager: String,
    /// The other operators that write the status of each job. The watch reports them.
    pub other_operators: OtherOperators,
    /// The folders on the volumes, and for each folder the job that may use it. The watch updates the folders.
    pub folders: Folders,
    /// The version of each job that this operator wrote last. The watch delivers this version later.
    pub write_cache: WriteCache,
    /// The PodGroup APIs that the cluster serves.
    pub pod_group_discovery: PodGroupDiscovery,
    /// The last responses at `/status` of the stages that may lead a job's group, and of the spares. The operator polls
    /// stage 0 of every replica that may lead.
    pub stage_status_poller: StageStatusPoller,
    /// The log tails of the jobs' last failures.
    pub log_tails: LogTails,
    /// The triggers of reconciles.
    pub triggers: Arc<Triggers>,
    /// The operator's metrics.
    pub telemetry: Telemetry,
    /// The reporter of Kubernetes events.
    reporter: Reporter,
    caches: PerJob<ReconcileCache>,
}

/// The in-memory state of a job. The state is only an optimisation, and is empty after a restart of the operator.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReconcileCache {
    /// The API server's rejections of the last tries to create pods.
    pub rejections: Rejections,
    /// The rejection of the last write to a Workload of the job.
    pub queue_rejection: Option<Rejection>,
    /// The id of the admission at which the operator last tested Kueue, and whether Workload slices were turned off
    /// then. A slice changes the number of pods of a running job. The operator runs the test when an elastic job asks
    /// for numbers of pods that differ from the admission.
    pub slices_are_off: Option<(u64, bool)>,
    /// The history of the repairs of the job's objects.
    pub repairs: RepairHistory,
    /// The times of the recovery from the last failure, if this operator has observed the recovery from its beginning.
    pub recovery: Option<RecoveryTimes>,
    /// The number of consecutive failed reconciles.
    pub api_failures: u32,
    /// The attempt all of whose pods the operator has observed. A pod that is missing afterwards was deleted, even if
    /// the status does not have `podsCreated` yet.
    pub all_created_attempt: Option<CreatedAttempt>,
}

impl Context {
    /// Creates a context with empty caches.
    pub(crate) fn new(client: Client, config: OperatorConfig, reporter: Reporter) -> Context {
        let triggers = Arc::<Triggers>::default();
        let stage_status_poller = StageStatusPoller::new(config.poll_interval(), Arc::clone(&triggers));
        let log_tails = LogTails::new(Arc::clone(&triggers));
        Context {
            client,
            field_manager: config.field_manager(),
            other_operators: OtherOperators::default(),
            config,
            pod_cache: PodCache::default(),
            owned_objects: OwnedObjects::default(),
            workloads: WorkloadCache::default(),
            folders: Folders::default(),
            write_cache: WriteCache::default(),
            pod_group_discovery: PodGroupDiscovery::default(),
            stage_status_poller,
            log_tails,
            triggers,
            telemetry: Telemetry::default(),
            reporter,
            caches: PerJob::default(),
        }
    }

    /// Publishes an event about a job. A failure is only logged.
    pub(crate) async fn publish(&self, job: &JobReference, event: &JobEvent) {
        // a shared recorder would aggregate events of the same reason and keep only the first message
        let recorder = Recorder::new(self.client.clone(), self.reporter.clone());
        if let Err(error) = recorder.publish(&event.to_api(), &object_reference(job)).await {
            tracing::debug!("an event was not published: {error}");
        }
    }

    /// Reads or updates the in-memory state of the job with this UID.
    pub(crate) fn with_cache<T>(&self, uid: &str, update: impl FnOnce(&mut ReconcileCache) -> T) -> T {
        update(self.caches.lock().entry(uid.to_owned()).or_default())
    }

    /// Removes the entries of deleted jobs.
    pub(crate) fn retain(&self, is_live: &dyn Fn(&str) -> bool) {
        self.pod_cache.retain(is_live);
        self.owned_objects.retain(is_live);
        self.other_operators.retain(is_live);
        self.folders.clean_up();
        self.write_cache.retain(is_live);
        self.stage_status_poller.retain(is_live);
        self.log_tails.retain(is_live);
        self.telemetry.retain(is_live);
        self.caches.retain(is_live);
    }
}
