//! What is told to the user: the status, written once, then events.

mod conditions;
mod events;
mod pace;

use std::time::Duration;

use jiff::Timestamp;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{AttemptStatus, CheckpointStatus, LastFailure, Progress, RestartsStatus};
use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, Decision, InstanceState, JobState, UnixMillis};

pub(crate) use conditions::refused;
pub(crate) use events::{events, reference};
pub(crate) use pace::Telling;

use crate::build;
use crate::job::Job;
use crate::observe::{Look, Polled, Trouble};

/// What the status is made from.
pub(crate) struct Facts<'a> {
    /// The job, as it was when the decision was made.
    pub job: &'a Job,
    /// What was seen.
    pub look: &'a Look,
    /// What was decided.
    pub decision: &'a Decision,
    /// Why the last action was refused.
    pub refused: Option<&'a Trouble>,
    /// The end of the log of the stage that failed last, if that is new.
    pub log_tail: Option<String>,
    /// How long ago this operator wrote the job's status, if it has.
    pub told: Option<Duration>,
    /// The present.
    pub now: UnixMillis,
}

/// The status after a decision, as far as it is to be told now.
pub(crate) fn status(facts: &Facts) -> Telling {
    let Facts { job, look, decision, now, .. } = facts;
    let (old, state) = (&job.status, &decision.state);
    let attempt = state.attempt.number;
    let count =
        |wanted: fn(&InstanceState) -> bool| look.of(attempt).filter(|pod| wanted(&pod.instance.state)).count() as u32;
    let exist = count(|state| !matches!(state, InstanceState::Exited(_)));
    let finished = state.outcome().is_some();
    let polled = look.polled.as_ref().filter(|polled| polled.status.attempt == attempt);
    let mut new = PipelineJobStatus {
        observed_generation: Some(job.generation),
        start_time: old.start_time.clone().or_else(|| state.started_at.map(stamp)),
        completion_time: old.completion_time.clone().or_else(|| finished.then(|| stamp(*now))),
        phase: Some(decision.job_phase),
        stages: Some(exist),
        ready_stages: Some(count(|state| *state == InstanceState::Ready)),
        selector: Some(build::pod_query(&job.owner)),
        attempt: attempt_status(facts),
        progress: progress(old.progress.as_ref(), polled, look, attempt),
        checkpoint: old.checkpoint.clone(),
        restarts: Some(restarts(job, state)),
        last_failure: last_failure(facts),
        conditions: Vec::new(),
        record: serde_json::to_value(state).ok(),
    };
    let known = polled.and_then(|polled| polled.status.checkpoint.clone());
    let newer = known.filter(|known| old.checkpoint.as_ref().is_none_or(|old| known.step > old.step));
    new.checkpoint = newer.or(new.checkpoint);
    if let Some(step) =
        state.checkpoint_step.filter(|step| new.checkpoint.as_ref().is_none_or(|told| told.step < *step))
    {
        // heard of in a termination message alone
        new.checkpoint = Some(CheckpointStatus { step, ..CheckpointStatus::default() });
    }
    new.conditions = conditions::conditions(facts, &new);
    pace::pace(new, old, facts.told, *now)
}

fn attempt_status(facts: &Facts) -> Option<AttemptStatus> {
    let (job, state) = (facts.job, &facts.decision.state);
    let attempt = state.attempt;
    if attempt.number == 0 {
        return None;
    }
    let all_created = match (&state.attempt_phase, &job.state.attempt_phase) {
        (AttemptPhase::Running { all_created, .. }, _) => *all_created,
        // which may not be told yet
        (_, AttemptPhase::Running { all_created: true, .. }) if job.state.attempt.number == attempt.number => true,
        _ => job.status.attempt.as_ref().is_some_and(|old| old.number == attempt.number && old.pods_created),
    };
    let old = job.status.attempt.as_ref().filter(|old| old.number == attempt.number);
    let running = facts.look.of(attempt.number).find_map(|pod| pod.image.clone());
    let before = job.status.attempt.as_ref().filter(|_| keeps_image(&job.state, state));
    Some(AttemptStatus {
        number: attempt.number,
        generation: old.map_or(Some(job.generation), |old| old.generation),
        stages: attempt.stages,
        image: running.or_else(|| old.or(before)?.image.clone()),
        pods_created: all_created,
    })
}

/// Whether a new attempt runs the image of the one before: it has trained with it, and the user has changed nothing of what
/// a stage reads. An operator with another default image changes no job that is under way.
fn keeps_image(old: &JobState, new: &JobState) -> bool {
    old.best_step.is_some() && old.attempt.revision == new.attempt.revision
}

/// How far training is: stage 0's words, or the last words of one that ended.
fn progress(old: Option<&Progress>, polled: Option<&Polled>, look: &Look, attempt: u64) -> Option<Progress> {
    let said = polled.filter(|polled| polled.status.progress != Progress::default());
    let mut progress = match said {
        Some(polled) => Progress { updated_at: Some(stamp(polled.at)), ..polled.status.progress.clone() },
        None => old.cloned().unwrap_or_default(),
    };
    let ended = look.of(attempt).filter_map(|pod| match &pod.instance.state {
        InstanceState::Exited(exit) => exit.termination.as_ref()?.finished_steps,
        _ => None,
    });
    if let Some(step) = ended.max().filter(|step| *step > progress.step) {
        progress.step = step;
    }
    if let Some(old) = old.filter(|old| {
        Progress { updated_at: None, ..(*old).clone() } == Progress { updated_at: None, ..progress.clone() }
    }) {
        return Some(old.clone());
    }
    Some(progress).filter(|progress| *progress != Progress::default())
}

fn restarts(job: &Job, state: &JobState) -> RestartsStatus {
    let max = job.job.spec.restart.max_restarts;
    RestartsStatus {
        total: state.budget.total,
        counted: state.budget.counted,
        budget_left: max.saturating_sub(state.budget.counted_since_checkpoint),
    }
}

fn last_failure(facts: &Facts) -> Option<LastFailure> {
    let failure = facts.decision.state.last_failure.as_ref()?;
    if facts.job.state.last_failure.as_ref() == Some(failure) && facts.job.status.last_failure.is_some() {
        return facts.job.status.last_failure.clone();
    }
    Some(LastFailure {
        stage: failure.stage,
        pod: failure.stage.map(|stage| build::pod_name(&facts.job.owner, stage, failure.attempt)),
        reason: failure.label(),
        exit_code: failure.exit_code,
        action: failure.action.clone(),
        message: Some(failure.message.clone()),
        log_tail: facts.log_tail.clone(),
        at: Some(stamp(failure.failed_at)),
    })
}

/// The failure that `decision` is the first to record.
pub(crate) fn new_failure<'d>(job: &Job, decision: &'d Decision) -> Option<&'d AttemptFailure> {
    let failure = decision.state.last_failure.as_ref();
    failure.filter(|failure| job.state.last_failure.as_ref() != Some(failure))
}

/// The first trouble that keeps the attempt's pods from running.
fn pod_trouble(look: &Look, attempt: u64) -> Option<(String, Trouble)> {
    look.of(attempt).find_map(|pod| pod.trouble.clone().map(|trouble| (pod.name.clone(), trouble)))
}

/// RFC 3339, whole seconds, UTC.
pub(crate) fn stamp(time: UnixMillis) -> String {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}
