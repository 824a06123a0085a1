//! Kubernetes events, for `kubectl describe`. The operator publishes the events after the write of the status.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use stagecoach_api::contract::{SPARE_TOOK_PLACE, promotion_note};
use stagecoach_api::job::{API_VERSION, Condition, JobPhase, KIND, condition_reason, condition_type};
use stagecoach_api::{PipelineJobStatus, visible};
use stagecoach_display::meanwhile;
use stagecoach_lifecycle::{Attempt, AttemptFailure, InstanceId};

use super::conditions::is_normal_startup;
use super::{StatusInputs, stage_prefix};
use crate::build::{JobReference, PodRole};

/// An event about a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobEvent {
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// A sentence for the user.
    pub note: String,
    /// Whether the type of the event is Warning and not Normal.
    pub is_warning: bool,
}

/// Returns the events for the change from the old status to `new`, in the order of their publication.
pub(crate) fn events(inputs: &StatusInputs, new: &PipelineJobStatus) -> Vec<JobEvent> {
    let mut all = Vec::new();
    all.extend(failure_event(inputs));
    all.extend(attempt_event(inputs));
    all.extend(replacement_events(inputs));
    all.extend(phase_event(inputs, new));
    all.extend(queue_event(&inputs.job.status, new));
    all.extend(checkpoint_event(&inputs.job.status, new));
    all.extend(scheduling_event(&inputs.job.status, new));
    all
}

fn normal(reason: &'static str, note: impl Into<String>) -> JobEvent {
    JobEvent { reason, note: note.into(), is_warning: false }
}

fn warning(reason: &'static str, note: impl Into<String>) -> JobEvent {
    JobEvent { reason, note: note.into(), is_warning: true }
}

/// Returns the event for a failed attempt. The operator publishes the event again when it has more details of the same
/// failure.
fn failure_event(inputs: &StatusInputs) -> Option<JobEvent> {
    let failure = inputs.decision.state.last_failure.as_ref()?;
    let is_new = inputs.job.state.last_failure.as_ref() != Some(failure);
    let AttemptFailure { attempt, message, .. } = failure;
    let note = || format!("attempt {attempt}: {}{}: {message}", stage_prefix(failure), failure.label());
    is_new.then(|| warning("AttemptFailed", note()))
}

fn attempt_event(inputs: &StatusInputs) -> Option<JobEvent> {
    let attempt = inputs.decision.state.attempt;
    let is_new = attempt.number > inputs.job.state.attempt.number;
    is_new.then(|| normal("AttemptStarted", format!("attempt {} with {}", attempt.number, attempt.mesh)))
}

/// Returns the events for replaced stages. A spare or a new pod replaces each of these stages.
fn replacement_events(inputs: &StatusInputs) -> impl Iterator<Item = JobEvent> {
    let state = &inputs.decision.state;
    let Attempt { number, mesh, .. } = state.attempt;
    let replaced = state.incarnations.iter().filter(|&(&rank, &now)| now > inputs.job.state.incarnation(rank));
    replaced.map(move |(&rank, &incarnation)| {
        let (instance, stage) = (InstanceId { rank, incarnation }, mesh.name(rank));
        let pod = inputs.pods.of_attempt(number).find(|pod| pod.instance_id() == Some(instance));
        if let Some((spare, pod)) = pod.and_then(|pod| Some((pod.spare()?, &pod.name))) {
            return normal(SPARE_TOOK_PLACE, promotion_note(spare, pod, &stage));
        }
        let pod = PodRole::Stage(instance).pod_name(&inputs.job.reference, number, mesh);
        let meanwhile = meanwhile(inputs.decision.training_replicas);
        normal("StageReplaced", format!("{stage} starts again as {pod}; {meanwhile}"))
    })
}

/// Returns the event for the phase that the job has entered, or for a changed number of training replicas.
fn phase_event(inputs: &StatusInputs, new: &PipelineJobStatus) -> Option<JobEvent> {
    let (old, phase) = (&inputs.job.status, inputs.decision.job_phase);
    // a status that an older version of the operator wrote has no `trainingReplicas`
    let has_other_replicas = old.training_replicas.is_some() && new.training_replicas != old.training_replicas;
    if new.phase == old.phase && !(has_other_replicas && phase == JobPhase::Running) {
        return None;
    }
    match phase {
        JobPhase::Running => Some(match inputs.missing_replicas() {
            Some(missing) => normal(condition_reason::REPLICAS_MISSING, missing),
            None => normal(phase.as_str(), "all stages are ready"),
        }),
        JobPhase::Draining => Some(normal(phase.as_str(), "all stages save and exit")),
        JobPhase::Suspended => Some(normal(phase.as_str(), "the job is suspended")),
        JobPhase::Complete => {
            let complete = new.condition(condition_type::COMPLETE);
            let ended_early = complete.filter(|complete| complete.reason == condition_reason::NO_IMPROVEMENT);
            Some(match ended_early {
                Some(early) => normal(condition_reason::NO_IMPROVEMENT, &early.message),
                None => normal(phase.as_str(), "training is complete"),
            })
        }
        JobPhase::Failed => {
            let failed = new.condition(condition_type::FAILED);
            Some(warning(phase.as_str(), failed.map(|failed| failed.message.clone()).unwrap_or_default()))
        }
        JobPhase::Pending | JobPhase::Starting | JobPhase::Restarting => None,
    }
}

/// Returns the event for an admission, for the loss of an admission, or for a wait in the queue.
fn queue_event(old: &PipelineJobStatus, new: &PipelineJobStatus) -> Option<JobEvent> {
    let Condition { status, reason, message, .. } = new.condition(condition_type::ADMITTED)?;
    let before = old.condition(condition_type::ADMITTED);
    let is_new = before.is_none_or(|before| (&before.status, &before.reason) != (status, reason));
    let event = match status.as_str() {
        "True" => normal("Admitted", message),
        _ if before.is_some_and(|before| before.status == "True") => normal("AdmissionLost", message),
        _ => normal("Queued", message),
    };
    is_new.then_some(event)
}

/// Returns the event for saves that fail, or that succeed again.
fn checkpoint_event(old: &PipelineJobStatus, new: &PipelineJobStatus) -> Option<JobEvent> {
    match (failing_save(old), failing_save(new)) {
        (None, Some(condition)) => Some(warning(condition_reason::SAVING_FAILS, &condition.message)),
        (Some(_), None) => Some(normal("SavingWorksAgain", "checkpoints are committed again")),
        _ => None,
    }
}

fn failing_save(status: &PipelineJobStatus) -> Option<&Condition> {
    let healthy = status.condition(condition_type::CHECKPOINTS_HEALTHY);
    healthy.filter(|condition| condition.reason == condition_reason::SAVING_FAILS)
}

/// Returns the event for pods that can't be created or scheduled, if the reason is new.
fn scheduling_event(old: &PipelineJobStatus, new: &PipelineJobStatus) -> Option<JobEvent> {
    let Condition { reason, message, .. } = blocked_scheduling(new)?;
    let is_new = blocked_scheduling(old).is_none_or(|old| old.reason != *reason);
    is_new.then(|| warning("NotScheduled", format!("{reason}: {message}")))
}

fn blocked_scheduling(status: &PipelineJobStatus) -> Option<&Condition> {
    let scheduled = status.condition(condition_type::SCHEDULED);
    scheduled.filter(|condition| condition.reason != condition_reason::NOT_WANTED && !is_normal_startup(condition))
}

/// The largest note that the API accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

impl JobEvent {
    /// Returns the event in the form that the API expects.
    pub(crate) fn to_api(&self) -> kube::runtime::events::Event {
        let mut note = visible(&self.note).into_owned();
        note.truncate(note.floor_char_boundary(MAX_NOTE_BYTES));
        kube::runtime::events::Event {
            type_: if self.is_warning { EventType::Warning } else { EventType::Normal },
            reason: self.reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        }
    }
}

/// Returns the reference to the job in its events.
pub(crate) fn object_reference(job: &JobReference) -> ObjectReference {
    ObjectReference {
        api_version: Some(API_VERSION.into()),
        kind: Some(KIND.into()),
        name: Some(job.name.clone()),
        namespace: Some(job.namespace.clone()),
        uid: Some(job.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_has_as_many_bytes_as_the_api_accepts() {
        let note = |text: String| warning("Failed", text).to_api().note.unwrap();
        assert_eq!(note("\u{e9}".repeat(600)), "\u{e9}".repeat(512));
        assert_eq!(note("a".repeat(1025)).len(), 1024);
    }
}
