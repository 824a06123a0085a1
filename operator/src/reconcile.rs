//! Reconciles one PipelineJob once: observe its pods, decide, write the status, publish events, apply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use stagecoach_api::PipelineJobStatus;
use stagecoach_lifecycle::{AttemptAction, AttemptPhase, Decision, UnixMillis, decide};

use crate::apply::{ApplyContext, ApplyError, Repair, apply, delete_lingering_pods, repair, repairs};
use crate::clients::Clients;
use crate::context::Context;
use crate::errors::{RECONCILE_TIMEOUT, ReconcileError, catch_panic};
use crate::job::{self, CreatedAttempt, ObservedJob, RawPipelineJob};
use crate::observe::{self, JobSnapshot};
use crate::rejection::{Rejected, Rejections};
use crate::report::{self, Recovery, StatusInputs, StatusUpdate};
use crate::requeue::{NEW_REJECTION_DELAY, SPARE_STATUS_RETRY_DELAY, requeue_delay};
use crate::status_writer::{publish_events, report_invalid_job, write_status};
use crate::ttl::{delete_job, remaining_ttl};

/// An observation of a job and the decision that was made from it.
struct Observation {
    snapshot: JobSnapshot,
    decision: Decision,
    now: UnixMillis,
}

/// Reconciles one job.
///
/// # Errors
/// Any error is retried, see `error_policy`.
pub(crate) async fn reconcile(object: Arc<RawPipelineJob>, context: Arc<Context>) -> Result<Action, ReconcileError> {
    let started = Instant::now();
    let object = context.write_cache.newest(object);
    let reconcile = catch_panic(reconcile_job(&object, &context));
    let result = tokio::time::timeout(RECONCILE_TIMEOUT, reconcile).await.unwrap_or(Err(ReconcileError::Timeout));
    context.telemetry.reconciled(started.elapsed(), result.as_ref().err().map(ReconcileError::reason));
    if result.is_ok() {
        context.with_cache(&object.uid().unwrap_or_default(), |cache| cache.api_failures = 0);
    }
    result
}

/// Observes the pods, decides, writes the status, publishes events and applies the decided actions. Returns when to
/// reconcile again.
async fn reconcile_job(object: &RawPipelineJob, context: &Context) -> Result<Action, ReconcileError> {
    if !job::is_managed_here(object) || object.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    context.pod_cache.wait_for_first_list(&object.namespace().unwrap_or_default()).await;
    let clients = Clients::new(&context.client, &object.namespace().unwrap_or_default());
    let mut job = match job::read(object) {
        Ok(job) => job,
        Err(invalid) => {
            report_invalid_job(object, &clients, context, &invalid).await?;
            return Ok(Action::await_change());
        }
    };
    let rejections = restore_cached_state(&mut job, context);

    let Observation { snapshot, decision, now } = observe_and_decide(&job, &rejections, &clients, context).await?;
    if snapshot.awaits_spare_status && replaces_stages(&job, &decision) {
        // A stage that seems missing may be a former spare whose `/status` was not read yet.
        return Ok(Action::requeue(SPARE_STATUS_RETRY_DELAY));
    }
    cache_all_created(&job, &decision, context);

    if let Some(failure) = report::new_failure(&job, &decision) {
        context.log_tails.read(&job.reference, clients.pod_logs.clone(), &snapshot, failure);
    }
    let recovery = follow_recovery(&job, &snapshot, &decision, now, context);
    let last_failure = decision.state.last_failure.as_ref();
    let inputs = StatusInputs {
        job: &job,
        snapshot: &snapshot,
        decision: &decision,
        rejection: rejections.start.as_ref().map(|rejection| &rejection.reason),
        spare_rejection: rejections.spare.as_ref().map(|rejection| &rejection.reason),
        log_tail: last_failure.and_then(|failure| context.log_tails.get(&job.reference.uid, failure.attempt)),
        recovery: recovery.as_ref(),
        since_last_write: context.write_cache.age(&job.reference.uid),
        now,
    };
    let StatusUpdate { status, write_after } = report::next_status(&inputs);
    let apply_context = ApplyContext {
        clients: &clients,
        pod_group_discovery: &context.pod_group_discovery,
        owned_objects: &context.owned_objects,
        log_tails: &context.log_tails,
        peers: context.config.peers(),
        default_image: &context.config.trainer_image,
        kept_image: status.attempt.as_ref().and_then(|attempt| attempt.image.as_deref()),
        excluded_nodes: &decision.state.excluded_nodes,
    };
    let repairs = repairs(&apply_context, &job, &snapshot, &decision.state);
    let writes_objects = has_actions(&decision) || !repairs.is_empty();
    persist_status(object, &inputs, &status, writes_objects, &clients, context).await?;

    let (rejected, ()) = tokio::join!(
        apply_actions(&apply_context, &job, &snapshot, &decision, &repairs),
        publish_events(context, &inputs, &status),
    );
    let retry_after = cache_rejections(&job, &decision, &rejections, &rejected?, context);

    let remaining_ttl = remaining_ttl(&job, &status, now);
    if remaining_ttl == Some(Duration::ZERO) {
        delete_job(&job, &clients).await?;
        return Ok(Action::await_change());
    }
    let delays = [remaining_ttl, retry_after, write_after, requeue_delay(&decision, &snapshot, now)];
    Ok(delays.into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}

/// Adds to `job` what is cached but not in its status yet. Returns what was rejected when it was tried last.
fn restore_cached_state(job: &mut ObservedJob, context: &Context) -> Rejections {
    let has_record = job.status.record.is_some();
    let cache = context.with_cache(&job.reference.uid, |cache| {
        // a removed `status.record` restarts the attempt numbers at 1, so the cached attempt is obsolete
        cache.all_created_attempt = cache.all_created_attempt.take().filter(|_| has_record);
        cache.clone()
    });
    if let Some(created) = &cache.all_created_attempt {
        job.mark_all_created(created);
    }
    cache.rejections
}

/// Caches that all pods of the attempt were created: the status that records it may be written later.
fn cache_all_created(job: &ObservedJob, decision: &Decision, context: &Context) {
    if let AttemptPhase::Running { all_created: true, .. } = decision.state.attempt_phase {
        let created = CreatedAttempt::of(&decision.state);
        context.with_cache(&job.reference.uid, |cache| cache.all_created_attempt = Some(created));
    }
}

/// Follows the recovery from the last failure, if there is one.
fn follow_recovery(
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    decision: &Decision,
    now: UnixMillis,
    context: &Context,
) -> Option<Recovery> {
    let is_new = report::new_failure(job, decision).is_some();
    context.with_cache(&job.reference.uid, |cache| {
        cache.recovery = Recovery::follow(cache.recovery.take(), is_new, &decision.state, snapshot, now);
        cache.recovery.clone()
    })
}

/// Caches what was rejected. Returns when to reconcile again for it.
fn cache_rejections(
    job: &ObservedJob,
    decision: &Decision,
    before: &Rejections,
    rejected: &Rejected,
    context: &Context,
) -> Option<Duration> {
    let now = observe::now();
    let wants_spares = job.manifest.spec.spares > 0;
    let after = before.after(rejected, decision, wants_spares, now);
    let retry_delay = after.retry_delay(decision.state.attempt, now);
    context.with_cache(&job.reference.uid, |cache| cache.rejections = after);
    if before.has_new_reason(rejected) { Some(NEW_REJECTION_DELAY) } else { retry_delay }
}

/// Observes the job and decides. The cached pods may be stale; they are used only if nothing has to be recorded or done.
async fn observe_and_decide(
    job: &ObservedJob,
    rejections: &Rejections,
    clients: &Clients,
    context: &Context,
) -> Result<Observation, ReconcileError> {
    if let Some(snapshot) = JobSnapshot::of_new_job(job, &context.pod_cache) {
        return Ok(decide_from(snapshot, job, rejections));
    }
    if let Some(mut snapshot) = JobSnapshot::from_cache(job, &context.pod_cache) {
        snapshot.poll(job, &context.status_poller);
        let observation = decide_from(snapshot, job, rejections);
        if !has_actions(&observation.decision) && !changes_state(job, &observation.decision) {
            return Ok(observation);
        }
    }
    let mut snapshot = JobSnapshot::from_list(job, &clients.pod_reader, &context.pod_cache).await?;
    snapshot.poll(job, &context.status_poller);
    Ok(decide_from(snapshot, job, rejections))
}

fn decide_from(snapshot: JobSnapshot, job: &ObservedJob, rejections: &Rejections) -> Observation {
    let now = observe::now();
    let refusal = rejections.start.as_ref().and_then(|rejection| rejection.refusal(job.state.attempt));
    let mut decision = decide(&snapshot.observed(job, refusal), now);
    decision.state.excluded_nodes.extend(snapshot.nodes_that_computed_wrong());
    rejections.remove_backed_off_actions(&mut decision, now);
    // A spare that seems surplus may have become a stage: its `/status` was not read yet.
    if snapshot.awaits_spare_status {
        decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveSpares { .. }));
    }
    Observation { snapshot, decision, now }
}

/// Whether the decision replaces a stage, or all with the next attempt.
fn replaces_stages(job: &ObservedJob, decision: &Decision) -> bool {
    let (before, after) = (&job.state, &decision.state);
    (before.attempt.number, &before.incarnations) != (after.attempt.number, &after.incarnations)
}

/// Whether the decision changes the attempt or its phase. That `all_created` becomes true is ignored: recording it late is
/// harmless.
fn changes_state(job: &ObservedJob, decision: &Decision) -> bool {
    let (mut old, new) = (job.state.attempt_phase.clone(), &decision.state.attempt_phase);
    if let (AttemptPhase::Running { all_created, .. }, AttemptPhase::Running { all_created: true, .. }) =
        (&mut old, new)
    {
        *all_created = true;
    }
    old != *new || job.state.attempt != decision.state.attempt || job.state.incarnations != decision.state.incarnations
}

/// Whether there is anything to apply. `KillInstances` is not counted: the kubelet sends SIGKILL after the grace period.
fn has_actions(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| !matches!(action, AttemptAction::KillInstances { .. }))
}

/// Whether the record that was read is still the stored one: the watch may be stale, and an old record must not be acted on.
async fn record_is_current(job: &ObservedJob, clients: &Clients) -> Result<bool, ReconcileError> {
    let stored = clients.jobs.get_opt(&job.reference.name).await?;
    Ok(stored.is_some_and(|stored| {
        let same_record = job::status(&stored).is_ok_and(|status| status.record == job.status.record);
        same_record && stored.uid().as_deref() == Some(job.reference.uid.as_str())
    }))
}

/// Writes the status if it has changed. Otherwise, before any other object is written, verifies that the record that was read is current.
async fn persist_status(
    object: &RawPipelineJob,
    inputs: &StatusInputs<'_>,
    status: &PipelineJobStatus,
    writes_objects: bool,
    clients: &Clients,
    context: &Context,
) -> Result<(), ReconcileError> {
    if *status != inputs.job.status {
        write_status(object, clients, context, status).await?;
        context.telemetry.status_written(inputs, status);
    } else if writes_objects && !record_is_current(inputs.job, clients).await? {
        return Err(ReconcileError::Conflict);
    }
    Ok(())
}

/// Applies the decided actions, then makes the repairs. Returns what the API server rejected.
async fn apply_actions(
    context: &ApplyContext<'_>,
    job: &ObservedJob,
    snapshot: &JobSnapshot,
    decision: &Decision,
    repairs: &[Repair],
) -> Result<Rejected, ReconcileError> {
    let spare = match apply(context, job, snapshot, &decision.actions).await {
        Ok(rejected_spare) => rejected_spare,
        Err(ApplyError::Rejected(reason)) => return Ok(Rejected { start: Some(reason), spare: None }),
        Err(ApplyError::Api(error)) => return Err(error.into()),
    };
    if decision.state.outcome().is_some() {
        delete_lingering_pods(context, job, snapshot).await?;
    }
    for needed in repairs {
        repair(context, job, decision.state.attempt, needed).await.map_err(|error| match error {
            // The job keeps running, so this is only logged; when an attempt starts it becomes the condition `Scheduled`.
            ApplyError::Rejected(reason) => ReconcileError::Taken(reason.message),
            ApplyError::Api(error) => error.into(),
        })?;
    }
    Ok(Rejected { start: None, spare })
}
