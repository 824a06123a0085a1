//! Reconciles one PipelineJob once: observe its pods, decide, write the status, publish events, apply the decision.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::runtime::controller::Action;
use kube::{Resource, ResourceExt};
use stagecoach_api::PipelineJobStatus;
use stagecoach_lifecycle::{AttemptAction, AttemptPhase, Decision, decide};

use crate::apply::{ApplyContext, ApplyError, Repair, apply, delete_lingering_pods, repair, repairs};
use crate::build::PolicyPeers;
use crate::build::kueue::PodSetPlacements;
use crate::clients::Clients;
use crate::context::Context;
use crate::errors::{RECONCILE_TIMEOUT, ReconcileError, catch_panic};
use crate::job::{self, InvalidJob, Manager, ParsedJob, RawPipelineJob};
use crate::observe::{BlockingReason, ObservedPods};
use crate::reconcile_cache::{
    cache_all_created, cache_rejections, cache_repairs, contested_objects, restore_cached_state, update_recovery,
};
use crate::rejection::{CreationResults, Rejections};
use crate::requeue::{LEAVING_RETRY_DELAY, SPARE_STATUS_RETRY_DELAY, requeue_delay};
use crate::status::{self, StatusInputs, StatusUpdate};
use crate::status_writer::{persist_status, publish_events, write_not_accepted};
use crate::ttl::{delete_job, remaining_ttl};
use crate::{reconcile_dispatched, reconcile_queue};

/// Reconciles one job.
///
/// # Errors
/// Returns any error of the reconcile. The controller retries after an error, see `error_policy`.
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

/// Reconciles one job, if this operator manages the job and the job is valid. Returns when to reconcile the job again.
async fn reconcile_job(object: &RawPipelineJob, context: &Context) -> Result<Action, ReconcileError> {
    if object.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    match job::manager(object) {
        Manager::Stagecoach => {}
        Manager::MultiKueue => return reconcile_dispatched::reconcile(object, context).await,
        Manager::Other => return Ok(Action::await_change()),
    }
    let namespace = object.namespace().unwrap_or_default();
    context.pod_cache.wait_for_first_list(&namespace).await;
    let clients = Clients::new(&context.client, &namespace, &context.field_manager);
    match job::parse(object).and_then(|job| with_folder(job, context)) {
        Ok(job) => reconcile_valid_job(object, job, &clients, context).await,
        Err(invalid) => {
            write_not_accepted(object, &clients, context, &invalid).await?;
            Ok(match invalid {
                InvalidJob::Folder(taken) if taken.is_leaving => Action::requeue(LEAVING_RETRY_DELAY),
                _ => Action::await_change(),
            })
        }
    }
}

/// Claims the job's folder. Returns the job, or an error if another job holds the folder.
fn with_folder(job: ParsedJob, context: &Context) -> Result<ParsedJob, InvalidJob> {
    let has_pods = |uid: &str| context.pod_cache.has_living(uid);
    context.folders.claim(&job.reference.uid, job.runs, has_pods).map_err(InvalidJob::Folder)?;
    Ok(job)
}

/// Observes the pods, decides, writes the status, publishes events and applies the decided actions. Returns when to
/// reconcile again.
async fn reconcile_valid_job(
    object: &RawPipelineJob,
    mut job: ParsedJob,
    clients: &Clients,
    context: &Context,
) -> Result<Action, ReconcileError> {
    let rejections = restore_cached_state(&mut job, context);
    let queue = match reconcile_queue::observe(&mut job, clients, context).await? {
        Ok(queue) => queue,
        Err(delay) => return Ok(Action::requeue(delay)),
    };
    let (pods, decision) = observe_and_decide(&job, &rejections, clients, context).await?;
    if pods.awaits_spare_status && starts_new_instances(&job, &decision) {
        // a stage that seems missing may be a former spare whose `/status` the operator has not read yet
        return Ok(Action::requeue(SPARE_STATUS_RETRY_DELAY));
    }
    cache_all_created(&job, &decision, context);
    let inputs = StatusInputs {
        job: &job,
        pods: &pods,
        decision: &decision,
        rejections: &rejections,
        log_tail: log_tail(&job, &pods, &decision, clients, context),
        recovery: update_recovery(&job, &pods, &decision, context),
        contested: contested_objects(&job, pods.observed_at, context),
        queue: queue.condition(&job, context),
        other_operators: context.other_operators.get(&job.reference.uid),
        field_manager: &context.field_manager,
        since_last_write: context.write_cache.age(&job.reference.uid),
    };
    let StatusUpdate { status, write_after } = status::next_status(&inputs);
    let placement = queue.placement(&job, &decision, clients).await?;
    let apply_context = apply_context(context, clients, &job, &pods, &decision, &status, placement.as_ref());
    let queue_plan = queue.plan(&job, &pods, &decision, &status, context);
    let mut repairs = repairs(&apply_context, &decision.state);
    context.with_cache(&job.reference.uid, |cache| cache.repairs.remove_waiting(&mut repairs, pods.observed_at));
    let writes_objects = has_actions(&decision) || !repairs.is_empty() || !queue_plan.actions.is_empty();
    persist_status(object, &inputs, &status, writes_objects, clients, context).await?;

    let (mut created, mut repaired) = (CreationResults::default(), Vec::new());
    let (applied, ()) = tokio::join!(
        apply_decision(&apply_context, &decision, repairs, &mut created, &mut repaired),
        publish_events(context, &inputs, &status),
    );
    // cache rejections even after an error: the API server may have rejected an earlier creation
    let retry_after = cache_rejections(&job, &decision, &rejections, &created, context);
    let next_repair = cache_repairs(&job, &repaired, pods.observed_at, context);
    applied?;
    let demand = job.demand.as_ref();
    let queue_retry =
        reconcile_queue::write(&job.reference, demand, &queue_plan.actions, clients, pods.observed_at, context).await?;

    let ttl = job.manifest.spec.ttl_seconds_after_finished;
    let remaining_ttl = remaining_ttl(object, ttl, &status, pods.observed_at);
    if remaining_ttl == Some(Duration::ZERO) {
        delete_job(&job.reference, clients).await?;
        return Ok(Action::await_change());
    }
    let delays = [
        remaining_ttl,
        retry_after,
        next_repair,
        write_after,
        queue_retry,
        queue_plan.next_change,
        requeue_delay(&decision, &pods),
    ];
    Ok(delays.into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}

/// Returns the end of the log of the stage that failed last, once the log was read. For a new failure, starts to read
/// the log.
fn log_tail(
    job: &ParsedJob,
    pods: &ObservedPods,
    decision: &Decision,
    clients: &Clients,
    context: &Context,
) -> Option<String> {
    if let Some(failure) = status::new_failure(job, decision) {
        context.log_tails.read(&job.reference, clients.pod_logs.clone(), pods, failure);
    }
    let last_failure = decision.state.last_failure.as_ref()?;
    context.log_tails.get(&job.reference.uid, last_failure)
}

/// Returns the inputs of the writes to the pods and objects of `job`, according to `decision` and the new `status`.
fn apply_context<'a>(
    context: &'a Context,
    clients: &'a Clients,
    job: &'a ParsedJob,
    pods: &'a ObservedPods,
    decision: &'a Decision,
    status: &'a PipelineJobStatus,
    placement: Option<&'a Result<PodSetPlacements, BlockingReason>>,
) -> ApplyContext<'a> {
    ApplyContext {
        job,
        pods,
        clients,
        pod_group_discovery: &context.pod_group_discovery,
        owned_objects: &context.owned_objects,
        log_tails: &context.log_tails,
        placement,
        peers: PolicyPeers { egress_cidrs: &job.manifest.spec.network_policy.egress_cidrs, ..context.config.peers() },
        default_image: &context.config.trainer_image,
        kept_image: status.attempt.as_ref().and_then(|attempt| attempt.image.as_deref()),
        excluded_nodes: &decision.state.excluded_nodes,
    }
}

/// Observes the pods and decides. The cached pods may be stale, so they are used only for a new job, or if the decision
/// has no action and keeps attempt, phase and incarnations.
async fn observe_and_decide(
    job: &ParsedJob,
    rejections: &Rejections,
    clients: &Clients,
    context: &Context,
) -> Result<(ObservedPods, Decision), ReconcileError> {
    if let Some(pods) = ObservedPods::of_new_job(job, &context.pod_cache) {
        let decision = decide_from(&pods, job, rejections);
        return Ok((pods, decision));
    }
    if let Some(mut pods) = ObservedPods::from_cache(job, &context.pod_cache) {
        pods.add_polled(job, &context.stage_status_poller);
        let decision = decide_from(&pods, job, rejections);
        if !has_actions(&decision) && !changes_state(job, &decision) {
            return Ok((pods, decision));
        }
    }
    let mut pods = ObservedPods::from_list(job, &clients.pod_reader, &context.pod_cache).await?;
    pods.add_polled(job, &context.stage_status_poller);
    let decision = decide_from(&pods, job, rejections);
    Ok((pods, decision))
}

fn decide_from(pods: &ObservedPods, job: &ParsedJob, rejections: &Rejections) -> Decision {
    let refusal = rejections.start.as_ref().and_then(|rejection| rejection.refusal(job.state.attempt));
    let mut decision = decide(&pods.decision_input(job, refusal), pods.observed_at);
    decision.state.excluded_nodes.extend(pods.nodes_that_computed_wrong());
    rejections.remove_backed_off_actions(&mut decision, pods.observed_at);
    // a spare that seems surplus may have become a stage, because the operator has not read its `/status` yet
    if pods.awaits_spare_status {
        decision.actions.retain(|action| !matches!(action, AttemptAction::RemoveSpares { .. }));
    }
    decision
}

/// Whether the decision replaces a stage, or replaces all stages with the next attempt.
fn starts_new_instances(job: &ParsedJob, decision: &Decision) -> bool {
    let (before, after) = (&job.state, &decision.state);
    (before.attempt.number, &before.incarnations) != (after.attempt.number, &after.incarnations)
}

/// Whether the decision changes the attempt, its phase or an incarnation. A change of `all_created` to true is ignored,
/// because even a stale cache that lists every pod proves that each pod was created.
fn changes_state(job: &ParsedJob, decision: &Decision) -> bool {
    let (mut old, new) = (job.state.attempt_phase.clone(), &decision.state.attempt_phase);
    if let (AttemptPhase::Running { all_created, .. }, AttemptPhase::Running { all_created: true, .. }) =
        (&mut old, new)
    {
        *all_created = true;
    }
    old != *new || job.state.attempt != decision.state.attempt || job.state.incarnations != decision.state.incarnations
}

/// Whether the decision has actions to apply. `KillInstances` does not count, because the kubelet sends SIGKILL after
/// the grace period.
fn has_actions(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| !matches!(action, AttemptAction::KillInstances { .. }))
}

/// Applies the decided actions, then makes the repairs. Adds the results of the pods' creation to `created` and the
/// completed repairs to `repaired`, even if the function returns an error.
async fn apply_decision(
    context: &ApplyContext<'_>,
    decision: &Decision,
    repairs: Vec<Repair>,
    created: &mut CreationResults,
    repaired: &mut Vec<Repair>,
) -> Result<(), ReconcileError> {
    apply(context, &decision.actions, created).await?;
    if created.is_start_rejected() {
        return Ok(());
    }
    if decision.state.outcome().is_some() {
        delete_lingering_pods(context).await?;
    }
    for needed in repairs {
        repair(context, decision.state.attempt, &needed).await.map_err(|error| match error {
            // This is an error and not a condition, because the job keeps running. The controller retries the
            // reconcile, and later repairs wait.
            ApplyError::Rejected(reason) => ReconcileError::NameTaken(reason.message),
            ApplyError::Api(error) => error.into(),
        })?;
        repaired.push(needed);
    }
    Ok(())
}
