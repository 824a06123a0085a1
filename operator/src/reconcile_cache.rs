//! Reads and updates the in-memory state of a job: the rejections, the repairs, the recovery, and whether all pods were
//! created.

use std::time::Duration;

use stagecoach_lifecycle::{AttemptPhase, Decision, UnixMillis};

use crate::apply::Repair;
use crate::context::Context;
use crate::job::{CreatedAttempt, ParsedJob};
use crate::observe::{self, ChangedObject, ObservedPods};
use crate::rejection::{CreationResults, Rejections};
use crate::requeue::FOLLOW_UP_DELAY;
use crate::status::{self, RecoveryTimes};

/// Adds to `job` the cached state that its status does not have yet. Returns the rejections of the last tries.
pub(crate) fn restore_cached_state(job: &mut ParsedJob, context: &Context) -> Rejections {
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

/// Caches the fact that all pods of the attempt were created, because the status that records this fact may be written
/// later.
pub(crate) fn cache_all_created(job: &ParsedJob, decision: &Decision, context: &Context) {
    if let AttemptPhase::Running { all_created: true, .. } = decision.state.attempt_phase {
        let created = CreatedAttempt::of(&decision.state);
        context.with_cache(&job.reference.uid, |cache| cache.all_created_attempt = Some(created));
    }
}

/// Updates and returns the cached times of the recovery from the job's last failure; `None` if the operator measures no
/// such recovery.
pub(crate) fn update_recovery(
    job: &ParsedJob,
    pods: &ObservedPods,
    decision: &Decision,
    context: &Context,
) -> Option<RecoveryTimes> {
    let is_new = status::new_failure(job, decision).is_some();
    context.with_cache(&job.reference.uid, |cache| {
        cache.recovery = RecoveryTimes::update(cache.recovery.take(), is_new, &decision.state, pods);
        cache.recovery.clone()
    })
}

/// Returns the objects that another client repeatedly changes or deletes.
pub(crate) fn contested_objects(job: &ParsedJob, now: UnixMillis, context: &Context) -> Vec<ChangedObject> {
    context.with_cache(&job.reference.uid, |cache| {
        cache.repairs.forget_quiet(now);
        cache.repairs.contested().cloned().collect()
    })
}

/// Caches the completed repairs. Returns the delay until the reconcile that the repairs need; `None` if the repairs
/// need no reconcile.
pub(crate) fn cache_repairs(
    job: &ParsedJob,
    repaired: &[Repair],
    now: UnixMillis,
    context: &Context,
) -> Option<Duration> {
    context.with_cache(&job.reference.uid, |cache| {
        let contested_before = cache.repairs.contested().count();
        cache.repairs.add(repaired, now);
        match cache.repairs.contested().count() > contested_before {
            true => Some(FOLLOW_UP_DELAY),
            false => cache.repairs.requeue_delay(now),
        }
    })
}

/// Updates the cached rejections with the results `created`. Returns the delay until the reconcile that the rejections
/// need; `None` if the rejections need no reconcile.
pub(crate) fn cache_rejections(
    job: &ParsedJob,
    decision: &Decision,
    before: &Rejections,
    created: &CreationResults,
    context: &Context,
) -> Option<Duration> {
    let now = observe::now();
    let wants_spares = job.manifest.spec.spares > 0;
    let after = before.after(created, &decision.state, wants_spares, now);
    let retry_delay = after.retry_delay(decision.state.attempt, now);
    context.with_cache(&job.reference.uid, |cache| cache.rejections = after);
    if before.has_new_reason(created) { Some(FOLLOW_UP_DELAY) } else { retry_delay }
}
