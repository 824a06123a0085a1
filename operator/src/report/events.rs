//! Kubernetes events, for `kubectl describe`. Published after the status was written.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;
use stagecoach_api::PipelineJobStatus;
use stagecoach_api::contract::{SPARE_TOOK_PLACE, takeover_note};
use stagecoach_api::job::{API_VERSION, Condition, JobPhase, KIND};
use stagecoach_display::meanwhile;
use stagecoach_lifecycle::InstanceId;

use super::StatusInputs;
use super::conditions::{REPLICAS_MISSING, SAVING_FAILS, is_normal_startup, missing_replicas};
use crate::build::{JobReference, PodRole};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobEvent {
    /// The reason, in CamelCase.
    pub reason: &'static str,
    /// A sentence for the user.
    pub note: String,
    /// Whether its type is Warning, else Normal.
    pub warning: bool,
}

/// The events for the change from the old status to `new`.
pub(crate) fn events(inputs: &StatusInputs, new: &PipelineJobStatus) -> Vec<JobEvent> {
    let (old, state) = (&inputs.job.status, &inputs.decision.state);
    let mut all = Vec::new();
    let mut push = |reason, note: String, warning| all.push(JobEvent { reason, note, warning });
    // also when more is known of the same failure
    let failure = state.last_failure.as_ref().filter(|_| state.last_failure != inputs.job.state.last_failure);
    if let Some(failure) = failure {
        let stage = failure.stage().map(|stage| format!("{stage}: ")).unwrap_or_default();
        push(
            "AttemptFailed",
            format!("attempt {}: {stage}{}: {}", failure.attempt, failure.label(), failure.message),
            true,
        );
    }
    if state.attempt.number > inputs.job.state.attempt.number {
        let note = format!("attempt {} with {}", state.attempt.number, state.attempt.mesh);
        push("AttemptStarted", note, false);
    }
    for (&rank, &now) in &state.incarnations {
        if now > inputs.job.state.incarnation(rank) {
            let instance = InstanceId { rank, incarnation: now };
            let stage = state.attempt.mesh.name(rank);
            let taker =
                inputs.snapshot.pods_of_attempt(state.attempt.number).find(|pod| pod.instance_id() == Some(instance));
            match taker.and_then(|pod| Some((pod.spare()?, &pod.name))) {
                Some((spare, pod)) => {
                    push(SPARE_TOOK_PLACE, takeover_note(spare, pod, &stage), false);
                }
                None => {
                    let pod = PodRole::Stage(instance).pod_name(
                        &inputs.job.reference,
                        state.attempt.number,
                        state.attempt.mesh,
                    );
                    let meanwhile = meanwhile(inputs.decision.training_replicas);
                    push("StageReplaced", format!("{stage} starts again as {pod}; {meanwhile}"), false);
                }
            }
        }
    }
    let missing = missing_replicas(inputs);
    // a status of an older version does not know them
    let other_replicas = old.training_replicas.is_some() && new.training_replicas != old.training_replicas;
    if new.phase != old.phase || other_replicas && new.phase == Some(JobPhase::Running) {
        match inputs.decision.job_phase {
            JobPhase::Running if missing.is_some() => push(REPLICAS_MISSING, missing.unwrap_or_default(), false),
            JobPhase::Running => push("Running", "all stages are ready".into(), false),
            JobPhase::Draining => push("Draining", "all stages save and exit".into(), false),
            JobPhase::Suspended => push("Suspended", "the job is suspended".into(), false),
            JobPhase::Complete => push("Complete", "training is complete".into(), false),
            JobPhase::Failed => {
                let why = condition(new, "Failed");
                push("Failed", why.map(|why| why.message.clone()).unwrap_or_default(), true);
            }
            JobPhase::Pending | JobPhase::Starting | JobPhase::Restarting => {}
        }
    }
    let failing = |status| condition(status, "CheckpointsHealthy").filter(|condition| condition.reason == SAVING_FAILS);
    match (failing(old), failing(new)) {
        (None, Some(condition)) => push(SAVING_FAILS, condition.message.clone(), true),
        (Some(_), None) => push("SavingWorksAgain", "checkpoints are committed again".into(), false),
        _ => {}
    }
    let blocking = |status: &PipelineJobStatus| {
        let scheduled = condition(status, "Scheduled");
        scheduled
            .filter(|condition| condition.reason != "NotWanted" && !is_normal_startup(condition))
            .map(|c| (c.reason.clone(), c.message.clone()))
    };
    if let Some((reason, message)) =
        blocking(new).filter(|(reason, _)| blocking(old).is_none_or(|(old, _)| old != *reason))
    {
        push("NotScheduled", format!("{reason}: {message}"), true);
    }
    all
}

fn condition<'s>(status: &'s PipelineJobStatus, kind: &str) -> Option<&'s Condition> {
    status.conditions.iter().find(|condition| condition.kind == kind)
}

impl JobEvent {
    /// As the API expects it; the note is truncated to 900 characters (the API allows 1,024 bytes).
    pub(crate) fn to_api(&self) -> kube::runtime::events::Event {
        let note: String = self.note.chars().take(900).collect();
        kube::runtime::events::Event {
            type_: if self.warning { EventType::Warning } else { EventType::Normal },
            reason: self.reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        }
    }
}

/// The reference to the job in its events.
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
