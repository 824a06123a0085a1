//! Computes the status of a job, and the Kubernetes events that report changes of the status. `status_writer` writes
//! both.

mod conditions;
mod events;
mod recovery;
mod throttle;

use std::time::Duration;

use jiff::Timestamp;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::job::{AttemptStatus, CheckpointStatus, LastFailureStatus, ProgressStatus, RestartsStatus};
use stagecoach_display::Replicas;
use stagecoach_lifecycle::{AttemptFailure, AttemptPhase, Decision, InstanceState, JobState, UnixMillis};

pub(crate) use conditions::not_accepted;
pub(crate) use events::{JobEvent, events, object_reference};
pub(crate) use recovery::{PHASES, RecoveryTimes};
pub(crate) use throttle::StatusUpdate;

use crate::build::{self, PodRole};
use crate::job::ParsedJob;
use crate::kueue::QueueCondition;
use crate::observe::{ChangedObject, ObservedPod, ObservedPods, PolledStatus};
use crate::rejection::Rejections;

/// The inputs of the status and of the events.
pub(crate) struct StatusInputs<'a> {
    /// The job at the time of the decision.
    pub job: &'a ParsedJob,
    /// The job's observed pods.
    pub pods: &'a ObservedPods,
    /// The decision of `lifecycle::decide`.
    pub decision: &'a Decision,
    /// The API server's rejections of the last tries to create pods.
    pub rejections: &'a Rejections,
    /// The end of the log of the stage that failed last, once the log was read.
    pub log_tail: Option<String>,
    /// The times of the recovery from the last failure, if this operator has observed the recovery from its beginning.
    pub recovery: Option<RecoveryTimes>,
    /// The objects that another client repeatedly changes or deletes.
    pub contested: Vec<ChangedObject>,
    /// The condition `Admitted`; `None` for a job without a queue.
    pub queue: Option<QueueCondition>,
    /// The other operators that write the job's status, as `namespace/lease`.
    pub other_operators: Vec<String>,
    /// This operator's field manager.
    pub field_manager: &'a str,
    /// The time since this operator wrote the job's status; `None` if this operator has not written the status.
    pub since_last_write: Option<Duration>,
}

impl StatusInputs<'_> {
    /// Returns the number of replicas that train, or 0 if too few replicas are ready. If the leader reports its group
    /// (the stages that train together), the function counts the replicas in the group. Otherwise, it counts the
    /// replicas with only ready pods.
    fn training_replicas(&self) -> u32 {
        let Decision { state, training_replicas, .. } = self.decision;
        let polled = self.pods.leader_status.as_ref().filter(|polled| polled.is_reachable);
        let in_attempt = polled.filter(|polled| polled.status.attempt == state.attempt.number);
        let group =
            in_attempt.and_then(|polled| polled.status.group.as_ref()).map(|group| group.incarnations.as_slice());
        let stages = state.attempt.mesh.stages as usize;
        match group {
            Some(known)
                if *training_replicas > 0 && stages > 0 && known.len() == state.attempt.mesh.ranks() as usize =>
            {
                (known.iter().flatten().count() / stages) as u32
            }
            _ => *training_replicas,
        }
    }

    /// Returns a sentence about the missing replicas; `None` if all replicas train or no replica trains.
    fn missing_replicas(&self) -> Option<String> {
        Replicas::of(self.decision.state.attempt.mesh, self.training_replicas())?.missing()
    }
}

/// Returns the status after a decision, or the old status if the write can be delayed.
pub(crate) fn next_status(inputs: &StatusInputs) -> StatusUpdate {
    let StatusInputs { job, pods, decision, .. } = inputs;
    let (old, state, now) = (&job.status, &decision.state, pods.observed_at);
    let attempt = state.attempt.number;
    let count = |wanted: fn(&InstanceState) -> bool| {
        // replaced pods and spares do not count
        let is_current = |pod: &&ObservedPod| pod.instance_id().is_some_and(|instance| state.is_newest(instance));
        let current = pods.of_attempt(attempt).filter(is_current);
        current.filter(|pod| wanted(&pod.state)).count() as u32
    };
    let alive = count(|state| !matches!(state, InstanceState::Exited(_)));
    let is_finished = state.outcome().is_some();
    let polled = pods.leader_status.as_ref().filter(|polled| polled.status.attempt == attempt);
    let mut new = PipelineJobStatus {
        observed_generation: Some(job.generation),
        start_time: old.start_time.clone().or_else(|| state.started_at.map(to_rfc3339)),
        completion_time: old.completion_time.clone().or_else(|| is_finished.then(|| to_rfc3339(now))),
        phase: Some(decision.job_phase),
        stages: Some(alive),
        stages_per_replica: Some(alive.div_ceil(state.attempt.replicas().max(1))).filter(|stages| *stages > 0),
        ready_stages: Some(count(|state| *state == InstanceState::Ready)),
        training_replicas: Some(inputs.training_replicas()),
        selector: Some(build::pod_label_selector(&job.reference)),
        attempt: attempt_status(inputs),
        progress: progress(old.progress.as_ref(), polled, pods, attempt),
        checkpoint: old.checkpoint.clone(),
        restarts: Some(restarts(job, state)),
        last_failure: last_failure(inputs),
        last_recovery: inputs.recovery.as_ref().and_then(RecoveryTimes::status).or_else(|| old.last_recovery.clone()),
        conditions: Vec::new(),
        record: serde_json::to_string(state).ok(),
    };
    let known = polled.and_then(|polled| polled.status.checkpoint.clone());
    let newer = known.filter(|known| old.checkpoint.as_ref().is_none_or(|old| known.step > old.step));
    new.checkpoint = newer.or(new.checkpoint);
    if let Some(step) =
        state.checkpoint_step.filter(|step| new.checkpoint.as_ref().is_none_or(|known| known.step < *step))
    {
        // only a termination message has reported this checkpoint
        new.checkpoint = Some(CheckpointStatus { step, ..CheckpointStatus::default() });
    }
    new.conditions = conditions::conditions(inputs, &new);
    throttle::throttle(new, old, inputs.since_last_write, now)
}

fn attempt_status(inputs: &StatusInputs) -> Option<AttemptStatus> {
    let (job, state) = (inputs.job, &inputs.decision.state);
    let attempt = state.attempt;
    if attempt.number == 0 {
        return None;
    }
    let all_created = match (&state.attempt_phase, &job.state.attempt_phase) {
        (AttemptPhase::Running { all_created, .. }, _) => *all_created,
        // the recorded state shows that all pods were created, even if `status.attempt` does not show it yet
        (_, AttemptPhase::Running { all_created: true, .. }) if job.state.attempt.number == attempt.number => true,
        _ => job.status.attempt.as_ref().is_some_and(|old| old.number == attempt.number && old.pods_created),
    };
    let old = job.status.attempt.as_ref().filter(|old| old.number == attempt.number);
    let running = inputs.pods.of_attempt(attempt.number).find_map(|pod| pod.image.clone());
    let before = job.status.attempt.as_ref().filter(|_| keeps_image(&job.state, state));
    Some(AttemptStatus {
        number: attempt.number,
        generation: old.map_or(Some(job.generation), |old| old.generation),
        stages: attempt.mesh.stages,
        data_parallel: attempt.mesh.if_replicated().map(|mesh| mesh.data_parallel),
        image: running.or_else(|| old.or(before)?.image.clone()),
        pods_created: all_created,
    })
}

/// Whether a new attempt keeps the image of the previous attempt: the job has finished a step in any attempt, and no
/// spec field that defines an attempt has changed. If the operator gets a new default image for trainers, a job that
/// has made progress must not start to use this image.
fn keeps_image(old: &JobState, new: &JobState) -> bool {
    old.max_finished_steps.is_some() && old.attempt.revision == new.attempt.revision
}

/// Returns the training progress, from the `/status` of the leader or from the termination message of a stage that
/// ended. Without either, the progress does not change.
fn progress(
    old: Option<&ProgressStatus>,
    polled: Option<&PolledStatus>,
    pods: &ObservedPods,
    attempt: u64,
) -> Option<ProgressStatus> {
    let reported = polled.filter(|polled| polled.status.progress != ProgressStatus::default());
    let mut progress = match reported {
        Some(polled) => {
            ProgressStatus { updated_at: Some(to_rfc3339(polled.polled_at)), ..polled.status.progress.clone() }
        }
        None => old.cloned().unwrap_or_default(),
    };
    let ended = pods.of_attempt(attempt).filter_map(|pod| Some((pod.since, pod.last_progress.as_ref()?)));
    match ended.max_by_key(|(_, last)| last.step).filter(|(_, last)| last.step >= progress.step) {
        // no pod answers, and the last answer may be older than the end of the stage
        Some((since, last)) if polled.is_none() => {
            progress = ProgressStatus { updated_at: Some(to_rfc3339(since)), ..last.clone() };
        }
        Some((_, last)) => progress.step = last.step,
        None => {}
    }
    if let Some(old) = old.filter(|old| {
        ProgressStatus { updated_at: None, ..(*old).clone() } == ProgressStatus { updated_at: None, ..progress.clone() }
    }) {
        return Some(old.clone());
    }
    Some(progress).filter(|progress| *progress != ProgressStatus::default())
}

fn restarts(job: &ParsedJob, state: &JobState) -> RestartsStatus {
    let max = job.manifest.spec.restart.max_restarts;
    RestartsStatus {
        total: state.budget.total,
        counted: state.budget.counted,
        replaced: state.budget.replaced,
        budget_left: state.budget.remaining(max),
    }
}

fn last_failure(inputs: &StatusInputs) -> Option<LastFailureStatus> {
    let failure = inputs.decision.state.last_failure.as_ref()?;
    if inputs.job.state.last_failure.as_ref() == Some(failure) && inputs.job.status.last_failure.is_some() {
        let known = inputs.job.status.last_failure.clone();
        return known.map(|known| LastFailureStatus { log_tail: known.log_tail.or(inputs.log_tail.clone()), ..known });
    }
    Some(LastFailureStatus {
        stage: failure.rank.map(|rank| failure.mesh().stage(rank)),
        replica: failure.rank.and_then(|rank| failure.mesh().replica(rank)),
        pod: pod_that_failed(inputs, failure),
        reason: failure.label(),
        exit_code: failure.exit_code,
        action: failure.action.clone(),
        message: Some(failure.message.clone()),
        log_tail: inputs.log_tail.clone(),
        at: Some(to_rfc3339(failure.failed_at)),
    })
}

/// Returns the name of the pod of the stage that failed. Returns `None` if the pod does not exist and may have been
/// created as a spare, because its name is then unknown.
fn pod_that_failed(inputs: &StatusInputs, failure: &AttemptFailure) -> Option<String> {
    let instance = failure.instance_id()?;
    let known = inputs.pods.pod_that_failed(failure).map(|pod| pod.name.clone());
    let was_spare = || instance.incarnation > 0 && inputs.job.manifest.spec.spares > 0;
    known.or_else(|| {
        (!was_spare())
            .then(|| PodRole::Stage(instance).pod_name(&inputs.job.reference, failure.attempt, failure.mesh()))
    })
}

/// Returns the failure that `decision` records for the first time, if it records a new failure.
pub(crate) fn new_failure<'d>(job: &ParsedJob, decision: &'d Decision) -> Option<&'d AttemptFailure> {
    let before = job.state.last_failure.as_ref();
    let failure = decision.state.last_failure.as_ref();
    failure.filter(|failure| before.is_none_or(|before| !before.is_same(failure)))
}

/// Returns the failed stage as the beginning of a message, such as `stage 2: `. The text is empty if no stage is known.
fn stage_prefix(failure: &AttemptFailure) -> String {
    failure.stage().map(|stage| format!("{stage}: ")).unwrap_or_default()
}

/// Returns the time in RFC 3339, in whole seconds and UTC.
pub(crate) fn to_rfc3339(time: UnixMillis) -> String {
    let seconds = i64::try_from(time.0 / 1000).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH).to_string()
}

#[cfg(test)]
mod tests;
