//! The part of a reconcile that concerns the queue of the job. The operator reads the grant of the queue before
//! `lifecycle::decide`, and writes the job's Workloads after the decision.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use serde::Deserialize;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{JobPhase, condition_reason as reason};
use stagecoach_lifecycle::{Attempt, AttemptAction, AttemptPhase, Decision, JobOutcome, UnixMillis};

use crate::apply::ApplyError;
use crate::build::JobReference;
use crate::build::kueue::{Demand, PodSetPlacements, Workload, condition_type};
use crate::clients::Clients;
use crate::context::{Context, ReconcileCache};
use crate::errors::ReconcileError;
use crate::job::ParsedJob;
use crate::kueue::{self, NotListed, QueueCondition, QueueInputs, QueueState, WriteContext};
use crate::observe::{BlockingReason, ObservedPods};
use crate::rejection::Rejection;
use crate::requeue::{FOLLOW_UP_DELAY, PREBUILT_RETRY_DELAY};

/// The queue of a job, as one reconcile observes it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedQueue {
    workloads: Vec<Arc<Workload>>,
    state: QueueState,
    slices_are_off: bool,
    /// The delay until the next reconcile while the Workloads can't be listed.
    list_delay: Option<Duration>,
}

/// Reads the job's Workloads, and sets the demand and the grant of `job`. Returns the delay until the next reconcile as
/// the inner error if no decision about the job is possible yet.
///
/// # Errors
/// Returns an error of the API server.
pub(crate) async fn observe(
    job: &mut ParsedJob,
    clients: &Clients,
    context: &Context,
) -> kube::Result<Result<ObservedQueue, Duration>> {
    let (workloads, not_listed) = match workloads(job, clients, context).await? {
        Ok(workloads) => (workloads, None),
        Err(not_listed) if not_listed.blocks(&job.state.attempt_phase) => return Ok(Err(not_listed.retry_delay())),
        Err(not_listed) => (Vec::new(), Some(not_listed)),
    };
    let admitted = kueue::holder(&workloads).and_then(|holder| holder.admitted_mesh());
    let named = job.demand.take();
    job.demand = named.clone().map(|demand| demand.after_admission(admitted, true));
    let slices_are_off = slices_are_off(job, &workloads, clients, context).await;
    if slices_are_off {
        job.demand = named.map(|demand| demand.after_admission(admitted, false));
    }
    let ended = job.state.outcome().is_some();
    let state = match &job.demand {
        None => QueueState::default(),
        Some(_) if ended => QueueState::waiting(reason::FINISHED, "the job has ended"),
        Some(_) if !context.config.kueue => QueueState::waiting(
            reason::KUEUE_DISABLED,
            "the job names a queue of Kueue, and the operator runs without support for it: install the chart with \
             kueue.enabled, or remove the queue from the job",
        ),
        Some(_) if job.manifest.spec.suspend => {
            QueueState::waiting(JobPhase::Suspended.as_str(), "the job is suspended, and is in no queue")
        }
        Some(demand) => match not_listed.as_ref().and_then(NotListed::message) {
            Some(message) => QueueState::waiting(reason::QUEUED, message),
            None => QueueState::new(demand, &workloads, slices_are_off),
        },
    };
    job.grant = state.grant;
    let list_delay = not_listed.as_ref().map(NotListed::retry_delay);
    Ok(Ok(ObservedQueue { workloads, state, slices_are_off, list_delay }))
}

/// Whether an elastic job asks for counts that differ from its admission, and Kueue has Workload slices turned off. The
/// operator asks Kueue once for each admission.
async fn slices_are_off(job: &ParsedJob, workloads: &[Arc<Workload>], clients: &Clients, context: &Context) -> bool {
    let demand = job.demand.as_ref().filter(|demand| demand.is_elastic && demand.prebuilt.is_none());
    let changed = |demand: &&Demand, holder: &&Arc<Workload>| demand.matches(holder) && !demand.has_counts(holder);
    let Some((_, holder)) = demand.zip(kueue::holder(workloads)).filter(|(demand, holder)| changed(demand, holder))
    else {
        return false;
    };
    let id = holder.admission_id();
    let known = context.with_cache(&job.reference.uid, |cache| cache.slices_are_off);
    if let Some((_, are_off)) = known.filter(|(of, _)| *of == id) {
        return are_off;
    }
    // if Kueue does not answer, assume that slices are enabled: the operator retries the write of the slice
    let Ok(are_enabled) = kueue::slices_are_enabled(clients, holder).await else { return false };
    context.with_cache(&job.reference.uid, |cache| cache.slices_are_off = Some((id, !are_enabled)));
    !are_enabled
}

async fn workloads(
    job: &ParsedJob,
    clients: &Clients,
    context: &Context,
) -> kube::Result<Result<Vec<Arc<Workload>>, NotListed>> {
    let demand = match &job.demand {
        _ if !context.config.kueue => return Ok(Ok(Vec::new())),
        Some(demand) => demand,
        // without a queue, the job must not wait for the list of the Workloads
        None => return Ok(Ok(context.workloads.of(&job.reference, None).unwrap_or_default())),
    };
    let mut workloads = match context.workloads.of(&job.reference, demand.prebuilt.as_deref()) {
        Ok(workloads) => workloads,
        Err(not_listed) => return Ok(Err(not_listed)),
    };
    if let Some(name) = &demand.prebuilt
        && workloads.iter().all(|workload| workload.name_any() != *name)
        && let Some(prebuilt) = clients.workloads.get(name).await?
    {
        // the watch delivers a Workload of another controller only after the job has adopted it
        workloads.push(Arc::new(serde_json::from_value(prebuilt).map_err(kube::Error::SerdeError)?));
    }
    Ok(Ok(workloads))
}

impl ObservedQueue {
    /// Returns the condition `Admitted`, with the rejection of the last write; `None` for a job without a queue.
    pub(crate) fn condition(&self, job: &ParsedJob, context: &Context) -> Option<QueueCondition> {
        let condition = self.state.condition.clone()?;
        let rejected = context.with_cache(&job.reference.uid, |cache| cache.queue_rejection.clone());
        Some(match rejected {
            Some(Rejection { reason: BlockingReason { reason, message }, .. }) if !condition.is_admitted => {
                QueueCondition { is_admitted: false, reason, message }
            }
            Some(Rejection { reason: BlockingReason { message, .. }, .. }) => {
                QueueCondition { message: format!("{}; {message}", condition.message), ..condition }
            }
            None => condition,
        })
    }

    /// Returns the placement of the pods that the decision creates, or the reason why no placement is possible. Returns
    /// `None` for a job without an admitted Workload, or if the decision starts no stages.
    ///
    /// # Errors
    /// Returns an error of the API server.
    pub(crate) async fn placement(
        &self,
        job: &ParsedJob,
        decision: &Decision,
        clients: &Clients,
    ) -> kube::Result<Option<Result<PodSetPlacements, BlockingReason>>> {
        let Some(holder) =
            self.state.holder.as_ref().filter(|_| decision.actions.iter().any(AttemptAction::starts_stages))
        else {
            return Ok(None);
        };
        let api = clients.of_kueue("ResourceFlavor");
        let mut flavors = BTreeMap::new();
        for name in kueue::flavors_of(holder) {
            let Some(flavor) = api.get_opt(name).await? else {
                let message = format!("the ResourceFlavor {name}, for which the job is admitted, does not exist");
                return Ok(Some(Err(BlockingReason { reason: reason::FLAVOR_MISSING.into(), message })));
            };
            let spec = kueue::FlavorSpec::deserialize(&flavor.data["spec"]).map_err(kube::Error::SerdeError)?;
            flavors.insert(name.clone(), spec);
        }
        let sets = job.demand.as_ref().map(|demand| demand.pod_sets.as_slice()).unwrap_or_default();
        let placement = kueue::placement(holder, &flavors, sets);
        let contradiction = |message| BlockingReason { reason: reason::CONTRADICTORY_ADMISSION.into(), message };
        Ok(Some(placement.map_err(contradiction)))
    }

    /// Returns the next writes to the Workloads, and the time until the next write if nothing changes.
    pub(crate) fn plan(
        &self,
        job: &ParsedJob,
        pods: &ObservedPods,
        decision: &Decision,
        status: &PipelineJobStatus,
        context: &Context,
    ) -> QueuePlan {
        if !context.config.kueue {
            return QueuePlan::default();
        }
        if self.list_delay.is_some() {
            return QueuePlan { actions: Vec::new(), next_change: self.list_delay };
        }
        let inputs = self.inputs(job, pods, decision, status);
        let actions = match waits_for_retry(&job.reference, pods.observed_at, context) {
            true => Vec::new(),
            false => kueue::actions(&job.reference, job.demand.as_ref(), &self.workloads, &inputs),
        };
        let has_boost = inputs.is_running && self.state.holder.is_some();
        let next = kueue::next_boost_change(inputs.at_risk_since, inputs.now).filter(|_| has_boost);
        let next_boost_change = next.map(|next| Duration::from_millis(next.0.saturating_sub(inputs.now.0)));
        QueuePlan { actions, next_change: self.next_read(job).or(next_boost_change) }
    }

    /// Returns the time until the next read of a missing Workload that another controller creates.
    fn next_read(&self, job: &ParsedJob) -> Option<Duration> {
        let prebuilt = job.demand.as_ref()?.prebuilt.as_ref()?;
        let exists = self.workloads.iter().any(|workload| workload.name_any() == *prebuilt);
        (!exists && job.state.outcome().is_none()).then_some(PREBUILT_RETRY_DELAY)
    }

    fn inputs(
        &self,
        job: &ParsedJob,
        pods: &ObservedPods,
        decision: &Decision,
        status: &PipelineJobStatus,
    ) -> QueueInputs {
        let state = &decision.state;
        let is_over = matches!(state.attempt_phase, AttemptPhase::Idle | AttemptPhase::Finished(_));
        let has_stopped = is_over && !decision.instances_remain;
        let older = pods.all.iter().any(|pod| pod.attempt != state.attempt.number && !pod.has_exited());
        let granted = (job.grant.mesh, job.grant.replicas);
        let runs_as_granted = (Some(state.attempt.mesh), state.attempt.admitted_replicas) == granted
            && state.attempt_phase != AttemptPhase::Draining;
        let outcome = state.outcome().map(|outcome| match outcome {
            JobOutcome::Complete => (true, "training is complete".to_owned()),
            JobOutcome::Failed(reason) => (false, reason.explanation().to_owned()),
        });
        let last_checkpoint = status.checkpoint.as_ref().and_then(|checkpoint| checkpoint.committed_at.clone());
        QueueInputs {
            is_suspended: job.manifest.spec.suspend,
            outcome,
            has_stopped,
            exceeds_grant: !has_stopped && (older || !runs_as_granted),
            slices_are_off: self.slices_are_off,
            is_running: decision.job_phase == JobPhase::Running,
            at_risk_since: self.at_risk_since(last_checkpoint.as_deref()),
            last_checkpoint,
            now: pods.observed_at,
        }
    }

    /// Returns the time since which the job trains without a checkpoint: the time of the newest checkpoint or of the
    /// admission, whichever is later.
    fn at_risk_since(&self, last_checkpoint: Option<&str>) -> UnixMillis {
        let millis = |time: jiff::Timestamp| UnixMillis::from_signed(time.as_millisecond());
        let saved = last_checkpoint.and_then(|time| time.parse().ok()).and_then(millis);
        let holder = self.state.holder.as_ref();
        let admitted = holder.and_then(|holder| holder.condition(condition_type::ADMITTED));
        saved.max(admitted.and_then(|condition| millis(condition.last_transition_time.0))).unwrap_or_default()
    }
}

/// The next writes to the Workloads of a job.
#[derive(Debug, Default)]
pub(crate) struct QueuePlan {
    pub(crate) actions: Vec<kueue::WorkloadAction>,
    /// The time until the next change of the job's priority boost, or until the next read of a missing Workload.
    pub(crate) next_change: Option<Duration>,
}

/// Returns the time until the next try of a rejected write. A write to a Workload belongs to no attempt, so its
/// rejection has the number of `Attempt::default()`.
fn retry_delay(cache: &ReconcileCache, now: UnixMillis) -> Option<Duration> {
    cache.queue_rejection.as_ref()?.retry_delay(Attempt::default(), now)
}

/// Whether the next write must wait, because the API server rejected the last write.
pub(crate) fn waits_for_retry(job: &JobReference, now: UnixMillis, context: &Context) -> bool {
    context.with_cache(&job.uid, |cache| retry_delay(cache, now)).is_some()
}

/// Makes the writes to the Workloads. Returns the delay until the reconcile that retries a rejected write or makes the
/// next write; `None` if no such reconcile is needed.
///
/// # Errors
/// Returns an error of the API server, except a rejection.
pub(crate) async fn write(
    job: &JobReference,
    demand: Option<&Demand>,
    actions: &[kueue::WorkloadAction],
    clients: &Clients,
    now: UnixMillis,
    context: &Context,
) -> Result<Option<Duration>, ReconcileError> {
    let write_context = WriteContext { job, demand, clients, image: &context.config.trainer_image };
    let mut refused = None;
    for action in actions {
        match kueue::write(&write_context, action).await {
            Ok(Some(written)) => context.workloads.insert(written),
            Ok(None) => {
                if let kueue::WorkloadAction::Delete(deleted) = action {
                    context.workloads.remove(deleted);
                }
            }
            Err(ApplyError::Rejected(reason)) => refused = Some(reason),
            Err(ApplyError::Api(error)) => return Err(error.into()),
        }
    }
    let (is_new, retry) = context.with_cache(&job.uid, |cache| {
        // without a write, keep the last rejection
        if actions.is_empty() {
            return (false, retry_delay(cache, now));
        }
        let before = cache.queue_rejection.take();
        let is_new = before.as_ref().map(|before| &before.reason) != refused.as_ref();
        let number = Attempt::default().number;
        cache.queue_rejection = refused.map(|reason| Rejection::new(before.as_ref(), number, reason, now));
        (is_new, retry_delay(cache, now))
    });
    // another write may follow, and the watch triggers no reconcile for the operator's writes
    let has_written = !actions.is_empty() && retry.is_none();
    Ok(if is_new || has_written { Some(FOLLOW_UP_DELAY) } else { retry })
}
