//! One job, once: look, decide, record, tell, act.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::controller;
use kube::{Resource, ResourceExt};
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::Phase;
use stagecoach_lifecycle::{AttemptAction, AttemptPhase, Decision, UnixMillis, decide};

use crate::apply::{ApplyError, Kinds, Means, apply};
use crate::context::Context;
use crate::job::{self, Job, JobObject};
use crate::observe::{Look, now};
use crate::report::{self, Facts, Telling};
use crate::tell::{log_tail, publish, refuse, write};

/// A look at a job that nothing happens to.
const IDLE: Duration = Duration::from_secs(300);
/// After a refusal that somebody must do something about.
const REFUSED: Duration = Duration::from_secs(5);
/// What a look may take, answers that never come included: whatever was written is found the next time.
const PATIENCE: Duration = Duration::from_secs(10);
/// After a conflict: what the watch knows is about to be newer.
const CONFLICT: Duration = Duration::from_millis(50);
/// While the watch is about to say how a pod ended.
const AGAIN: Duration = Duration::from_millis(200);

/// Why a reconcile must be tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileError {
    /// The API server took too long.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    /// What was read is out of date.
    #[error("the job changed meanwhile")]
    Outdated,
    /// The API server's.
    #[error("{}", told(.0))]
    Api(#[from] kube::Error),
    /// A defect of the operator.
    #[error("the operator has a defect: {0}")]
    Panicked(String),
}

/// A panic while one job is looked at is that job's error: it must not end the operator, which serves all others.
async fn catch_panic<T>(work: impl Future<Output = Result<T, ReconcileError>>) -> Result<T, ReconcileError> {
    AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(ReconcileError::Panicked(message.unwrap_or("a panic without a message").to_owned()))
    })
}

/// The API server's own sentence, if it gave one.
fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => {
            format!("the API server answered {} {}: {}", status.code, status.reason, status.message)
        }
        other => other.to_string(),
    }
}

/// Brings one job a step further.
///
/// # Errors
/// What makes it worth another try.
pub(crate) async fn reconcile(
    object: Arc<JobObject>,
    context: Arc<Context>,
) -> Result<controller::Action, ReconcileError> {
    let started = Instant::now();
    let object = context.written.newest(object);
    let step = catch_panic(step(&object, &context));
    let result = tokio::time::timeout(PATIENCE, step).await.unwrap_or(Err(ReconcileError::Late));
    context.telemetry.reconciled(started.elapsed(), result.as_ref().err().map(reason));
    if result.is_ok() {
        context.memo(&object.uid().unwrap_or_default(), |memo| memo.failures = 0);
    }
    result
}

fn reason(error: &ReconcileError) -> &'static str {
    match error {
        ReconcileError::Late => "Late",
        ReconcileError::Panicked(_) => "Panicked",
        ReconcileError::Outdated => "Conflict",
        ReconcileError::Api(kube::Error::Api(status)) if status.code == 409 => "Conflict",
        ReconcileError::Api(kube::Error::Api(_)) => "Refused",
        ReconcileError::Api(_) => "Unreachable",
    }
}

/// When to try again.
pub(crate) fn error_policy(
    object: Arc<JobObject>,
    error: &ReconcileError,
    context: Arc<Context>,
) -> controller::Action {
    if reason(error) == "Conflict" {
        return controller::Action::requeue(CONFLICT);
    }
    let failures = context.memo(&object.uid().unwrap_or_default(), |memo| {
        memo.failures = memo.failures.saturating_add(1);
        memo.failures
    });
    let wait = Duration::from_millis(250).saturating_mul(1 << failures.min(5));
    tracing::warn!(job = object.name_any(), namespace = object.namespace(), ?wait, "reconcile failed: {error}");
    controller::Action::requeue(wait)
}

async fn step(object: &JobObject, context: &Context) -> Result<controller::Action, ReconcileError> {
    let idle = controller::Action::requeue(IDLE);
    if !job::is_ours(object) || object.meta().deletion_timestamp.is_some() {
        return Ok(idle);
    }
    let kinds = Kinds::new(&context.client, &object.namespace().unwrap_or_default());
    let mut job = match job::read(object) {
        Ok(job) => job,
        Err(unusable) => {
            refuse(object, &kinds, context, &unusable).await?;
            return Ok(idle);
        }
    };
    let uid = &job.owner.uid.clone();
    let memo = context.memo(uid, |memo| {
        // whoever takes the record away lets attempts count from 1 again
        memo.created = memo.created.filter(|_| job.status.record.is_some());
        memo.clone()
    });
    if let Some(attempt) = memo.created {
        job.note_created(attempt);
    }
    let (look, decision, present) = observe(&job, &kinds, context).await?;
    if let AttemptPhase::Running { all_created: true, .. } = decision.state.attempt_phase {
        context.memo(uid, |memo| memo.created = Some(decision.state.attempt.number));
    }
    let log_tail = match report::new_failure(&job, &decision) {
        Some(failure) => log_tail(&kinds, &look, failure).await,
        None => None,
    };
    let facts = Facts {
        job: &job,
        look: &look,
        decision: &decision,
        refused: memo.refused.as_ref(),
        log_tail,
        told: context.written.age(uid),
        now: present,
    };
    let Telling { status, more_after } = report::status(&facts);
    let wrote = status != job.status;
    if wrote {
        write(object, &kinds, context, &status).await?;
        context.telemetry.recorded(&facts, &status);
    }
    if acts(&decision) && !wrote && !is_current(&job, &kinds).await? {
        return Err(ReconcileError::Outdated);
    }
    let recorded = status.attempt.as_ref().and_then(|attempt| attempt.image.as_deref());
    let means = Means {
        kinds: &kinds,
        gangs: &context.gangs,
        readers: context.settings.readers(),
        image: recorded.unwrap_or(&context.settings.trainer_image),
    };
    let apply = apply(&means, &job, &look, &decision.actions);
    let tell = async {
        if wrote {
            publish(context, &facts, &status).await;
        }
    };
    let (applied, ()) = tokio::join!(apply, tell);
    let trouble = match applied {
        Ok(()) => None,
        Err(ApplyError::Refused(trouble)) => Some(trouble),
        Err(ApplyError::Api(error)) => return Err(error.into()),
    };
    let new = context.memo(uid, |memo| std::mem::replace(&mut memo.refused, trouble.clone())) != trouble;
    let left = time_to_live(&job, &status, present);
    if left.is_some_and(|left| left.is_zero()) {
        delete(&job, &kinds).await?;
        return Ok(idle);
    }
    let next = match (trouble, left) {
        // at once if it is news, to tell it
        (Some(_), _) if new => CONFLICT,
        (Some(_), _) => REFUSED,
        (None, Some(left)) => left,
        (None, None) => next(&decision, &look, context, present),
    };
    Ok(controller::Action::requeue(more_after.map_or(next, |more| more.min(next))))
}

/// Looks and decides. What is remembered may lag behind: it suffices as long as nothing follows from it.
async fn observe(job: &Job, kinds: &Kinds, context: &Context) -> Result<(Look, Decision, UnixMillis), ReconcileError> {
    if let Some(look) = Look::first(job, &context.watched) {
        let present = now();
        let decision = decide(&look.observed(job), present);
        return Ok((look, decision, present));
    }
    if let Some(mut look) = Look::remembered(job, &context.watched) {
        look.ask(job, &context.polls).await;
        let present = now();
        let decision = decide(&look.observed(job), present);
        if !acts(&decision) && !decides(job, &decision) {
            return Ok((look, decision, present));
        }
    }
    let mut look = Look::live(job, &kinds.seen_pods, &context.watched).await?;
    look.ask(job, &context.polls).await;
    let present = now();
    let decision = decide(&look.observed(job), present);
    Ok((look, decision, present))
}

/// Whether something was decided. That all pods were made stays true, however late it is noticed.
fn decides(job: &Job, decision: &Decision) -> bool {
    let (mut before, after) = (job.state.attempt_phase.clone(), &decision.state.attempt_phase);
    if let (AttemptPhase::Running { all_created, .. }, AttemptPhase::Running { all_created: true, .. }) =
        (&mut before, after)
    {
        *all_created = true;
    }
    before != *after || job.state.attempt != decision.state.attempt
}

/// Whether something is to be done; a kubelet kills by itself.
fn acts(decision: &Decision) -> bool {
    decision.actions.iter().any(|action| !matches!(action, AttemptAction::KillInstances { .. }))
}

/// When to look again if nothing happens.
fn next(decision: &Decision, look: &Look, context: &Context, present: UnixMillis) -> Duration {
    let wake = decision.wake_at.map(|wake| Duration::from_millis(wake.0.saturating_sub(present.0)));
    let alive =
        matches!(decision.job_phase, Phase::Starting | Phase::Running | Phase::Draining) && !look.pods.is_empty();
    let poll = alive.then(|| context.polls.every());
    let again = look.is_incomplete().then_some(AGAIN);
    [wake, poll, again].into_iter().flatten().min().unwrap_or(IDLE).min(IDLE)
}

/// Whether what was decided from is still what is recorded: a watch may lag behind, and an old record must not be acted on.
async fn is_current(job: &Job, kinds: &Kinds) -> Result<bool, ReconcileError> {
    let live = kinds.jobs.get_opt(&job.owner.name).await?;
    Ok(live.is_some_and(|live| {
        let recorded = job::status(&live).is_ok_and(|status| status.record == job.status.record);
        recorded && live.uid().as_deref() == Some(job.owner.uid.as_str())
    }))
}

/// What is left of a finished job's time to live; none if it lives on.
fn time_to_live(job: &Job, status: &PipelineJobStatus, present: UnixMillis) -> Option<Duration> {
    let seconds = job.job.spec.ttl_seconds_after_finished?;
    let ended: jiff::Timestamp = status.completion_time.as_ref()?.parse().ok()?;
    let due = UnixMillis(u64::try_from(ended.as_millisecond()).ok()?).plus_seconds(seconds);
    Some(Duration::from_millis(due.0.saturating_sub(present.0)))
}

/// Deletes the job: what it owns goes after it.
async fn delete(job: &Job, kinds: &Kinds) -> Result<(), ReconcileError> {
    let mut how = DeleteParams::background();
    how.preconditions = Some(Preconditions { uid: Some(job.owner.uid.clone()), ..Preconditions::default() });
    match kinds.jobs.delete(&job.owner.name, &how).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests {
    use super::*;

    /// They are a metric's labels, which alerts are written against.
    #[test]
    fn reasons_of_errors_never_change() {
        let api = |code: u16| {
            let answer = serde_json::json!({"status": "Failure", "message": "m", "reason": "r", "code": code});
            ReconcileError::Api(kube::Error::Api(serde_json::from_value(answer).unwrap()))
        };
        for (error, expected) in [
            (ReconcileError::Late, "Late"),
            (ReconcileError::Panicked(String::new()), "Panicked"),
            (ReconcileError::Outdated, "Conflict"),
            (api(409), "Conflict"),
            (api(403), "Refused"),
            (ReconcileError::Api(kube::Error::LinesCodecMaxLineLengthExceeded), "Unreachable"),
        ] {
            assert_eq!(reason(&error), expected);
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_job_it_came_from() {
        let answered = catch_panic(async { Ok::<_, ReconcileError>(7) }).await;
        assert!(matches!(answered, Ok(7)));
        for (message, literal) in [("index 3 of 2", false), ("a defect", true)] {
            let failed = catch_panic::<()>(async move {
                tokio::task::yield_now().await;
                if literal { panic!("a defect") } else { panic!("{message}") }
            });
            let error = failed.await.unwrap_err();
            assert_eq!(reason(&error), "Panicked");
            assert!(error.to_string().ends_with(message), "{error}");
        }
    }
}
