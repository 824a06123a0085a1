//! Reconciles a job that MultiKueue runs in another cluster. In this cluster, the job has only a Workload. The status
//! of the job is Kueue's copy of the status in the other cluster.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use kube::runtime::controller::Action;
use stagecoach_api::StoredSpec;
use stagecoach_api::job::{JobPhase, PipelineJobSpec};
use stagecoach_lifecycle::{FailurePolicy, UnixMillis};

use crate::build::JobReference;
use crate::build::kueue::{Demand, Workload, condition_type};
use crate::clients::Clients;
use crate::context::Context;
use crate::errors::ReconcileError;
use crate::job::{self, RawPipelineJob};
use crate::kueue::{self, RemoteJobState};
use crate::observe;
use crate::reconcile_queue;
use crate::rejection::Rejection;
use crate::status::JobEvent;
use crate::ttl::{delete_job, remaining_ttl};

/// The time, in seconds, that the status of a stopped copy of the job may take to arrive in this cluster, after the
/// grace period of the stages.
const COPY_SECONDS: u64 = 60;

/// Creates and updates the Workload of the job. Returns when to reconcile the job again.
///
/// # Errors
/// Returns an error of the API server.
pub(crate) async fn reconcile(object: &RawPipelineJob, context: &Context) -> Result<Action, ReconcileError> {
    // the CRD rejects most invalid specs, and the operator of the other cluster reports other errors in the status
    let Ok(StoredSpec { spec, .. }) = StoredSpec::from_json(object.spec()) else { return Ok(Action::await_change()) };
    let demand = Demand::new(object.labels(), object.annotations(), &spec);
    if !context.config.kueue || demand.as_ref().is_some_and(|demand| demand.prebuilt.is_some()) {
        return Ok(Action::await_change());
    }
    // Kueue's MultiKueue adapter for external kinds does not support slices
    let demand = demand.map(|demand| Demand { is_elastic: false, ..demand });
    let job = job::reference(object);
    let clients = Clients::new(&context.client, &job.namespace, &context.field_manager);
    let now = observe::now();
    let workloads = match context.workloads.of(&job, None) {
        Ok(workloads) => workloads,
        Err(not_listed) => return Ok(Action::requeue(not_listed.retry_delay())),
    };
    // parse only the phase, because an operator of another version may have written the status
    let phase = job::phase(object);
    let has_ended = phase.is_some_and(JobPhase::has_ended);
    let save_ends = save_ends(&spec, &workloads);
    let situation = RemoteJobState {
        is_suspended: spec.suspend,
        has_ended,
        has_stopped: has_ended
            || matches!(phase, Some(JobPhase::Pending | JobPhase::Suspended))
            || save_ends.is_some_and(|end| end <= now),
        is_running: phase == Some(JobPhase::Running),
    };
    let refused = rejection(&job, context);
    let actions = match reconcile_queue::waits_for_retry(&job, now, context) {
        true => Vec::new(),
        false => kueue::dispatched_actions(&job, demand.as_ref(), &workloads, situation),
    };
    let retry = reconcile_queue::write(&job, demand.as_ref(), &actions, &clients, now, context).await?;
    publish_refusal(&job, refused.as_ref(), context).await;

    // wait until Kueue has finished the Workload: before that, Kueue would not delete the copy of a deleted job
    let is_over = workloads.iter().all(|workload| workload.is_finished());
    let ttl = spec.ttl_seconds_after_finished.filter(|_| is_over);
    let remaining_ttl = remaining_ttl(object, ttl, &job::status(object).unwrap_or_default(), now);
    if remaining_ttl == Some(Duration::ZERO) {
        delete_job(&job, &clients).await?;
        return Ok(Action::await_change());
    }
    let next_look = save_ends.filter(|end| *end > now).map(|end| Duration::from_millis(end.0 - now.0));
    let delays = [retry, remaining_ttl, next_look];
    Ok(delays.into_iter().flatten().min().map_or_else(Action::await_change, Action::requeue))
}

/// Returns the time at which the copy of an evicted job counts as stopped, even if its status does not change because
/// the other cluster is lost. Returns `None` if no Workload is evicted.
fn save_ends(spec: &PipelineJobSpec, workloads: &[Arc<Workload>]) -> Option<UnixMillis> {
    let evicted = workloads.iter().filter(|workload| workload.is_evicted() && workload.has_reservation());
    let conditions = evicted.filter_map(|workload| workload.condition(condition_type::EVICTED));
    let since = conditions.map(|condition| condition.last_transition_time.0).max()?;
    let grace = FailurePolicy::for_pods(spec).grace_seconds;
    let since = UnixMillis::from_signed(since.as_millisecond()).unwrap_or_default();
    Some(since.plus_seconds(grace.saturating_add(COPY_SECONDS)))
}

fn rejection(job: &JobReference, context: &Context) -> Option<Rejection> {
    context.with_cache(&job.uid, |cache| cache.queue_rejection.clone())
}

/// Publishes a new rejection of the Workload as an event, because the status belongs to the other cluster.
async fn publish_refusal(job: &JobReference, before: Option<&Rejection>, context: &Context) {
    let Some(refused) = rejection(job, context) else { return };
    if before.is_some_and(|before| before.reason == refused.reason) {
        return;
    }
    let note = format!("{}: {}", refused.reason.reason, refused.reason.message);
    context.publish(job, &JobEvent { reason: "NotQueued", note, is_warning: true }).await;
}
